"""The names of a batched world: several environments whose arrays have a row for each.

Nothing is added to the protocol: the rows are the first axis of actions and observations, and what
else a row needs are observations, settings and properties of these names. The rules are those of
the guide "Serve a batch" (docs/how-to/batches.md), for servers in other languages, too.
"""

from __future__ import annotations

from typing import Any

from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors import bounded_json

__all__ = [
    "AUTORESET_MODE",
    "AUTORESET_MODES",
    "MAX_NUM_ENVS",
    "NUM_ENVS",
    "OF_BATCH",
    "RESET_MASK",
    "ROWS",
    "ROW_ERRORS",
    "SETTINGS",
    "STEP_MASK",
    "STEP_TYPE",
    "WORLD_AUTORESET_MODE",
    "WORLD_NUM_ENVS",
    "row_errors",
    "row_index",
]

NUM_ENVS = "num_envs"
"""The setting of a CreateWorld with the number of rows, an integer."""

ROWS = "rows"
"""What the names of settings begin with that have a value for each row, as in `rows.seed`."""

RESET_MASK = "reset_mask"
"""The setting of a Reset that says in which rows a sequence begins, bool [N]."""

AUTORESET_MODE = "autoreset_mode"
"""The setting of a CreateWorld that asks for a mode of Gymnasium's `AutoresetMode` by its name; the
property of the world says which one it has."""

AUTORESET_MODES = {"NEXT_STEP": "NextStep", "SAME_STEP": "SameStep", "DISABLED": "Disabled"}
"""The names of the modes, and their values in Gymnasium."""

STEP_MASK = "step_mask"
"""The setting of a CreateWorld that asks for the action of this name, bool [N]: which rows step."""

STEP_TYPE = "step_type"
"""The observation with the type of each row's step, uint8 [N]: 0 FIRST, 1 MID, 2 LAST."""

ROW_ERRORS = "row_errors"
"""The observation with what rows have raised in this step: "" or the JSON of texts by index."""

OF_BATCH = (STEP_TYPE, ROW_ERRORS)
"""The observations that a batch has and its rows do not."""

MAX_NUM_ENVS = "batch.max_num_envs"
"""The property of a server that makes batches: how many rows one may have."""

WORLD_NUM_ENVS = "batch.num_envs"
"""The property of a batched world: the number of its rows."""

WORLD_AUTORESET_MODE = "batch.autoreset_mode"
"""The property of a batched world: the name of a mode of Gymnasium's `AutoresetMode`."""

SETTINGS = frozenset((NUM_ENVS, AUTORESET_MODE, STEP_MASK))
"""The settings of a CreateWorld that are of the batch and not of its rows."""

_MAX_ERROR_VALUES = 1 << 20
"""What looks like a value in the texts of all rows, such as a comma in one of them."""


def row_errors(text: Any) -> dict[int, str]:
    """Returns what rows have raised, by index, of the observation `row_errors`.

    Raises:
      ProtocolError: it is not what a batch sends.
    """
    if not str(text):
        return {}
    where = f"observation {ROW_ERRORS!r}"
    found = bounded_json.decode(str(text).encode(), where, _MAX_ERROR_VALUES)
    try:
        return {int(row): str(error) for row, error in found.items()}
    except (ValueError, AttributeError) as error:
        raise ProtocolError(f"{where} is invalid: {error}") from error


def row_index(key: Any, count: int, where: str) -> int:
    """Returns the index of a row that is the key of an object, such as "3".

    Args:
      key: the key.
      count: the number of rows.
      where: what the object is, for error messages.

    Raises:
      ProtocolError: it is no index from 0 to `count` - 1, written in one way only.
    """
    is_index = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10
    if not is_index or str(int(key)) != key or int(key) >= count:
        raise ProtocolError(f"{where}: expected an index from 0 to {count - 1}, got {key!r:.60}")
    return int(key)
