"""The names used by batched worlds, whose arrays have one row for each environment.

Batches need no additions to the protocol. Actions and observations have one row per environment
along their first axis. All other data of a batch is sent as observations, settings and properties
with the names defined in this module. The guide "Serve a batch" (docs/how-to/batches.md) states the
rules, including those for servers in other languages. `num_rows` checks the rules for the specs of
a world, and `check_step` checks the rules for a step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD
from dm_env_rpc_client.tensors.memory_limits import described, sendable

NUM_ENVS = "num_envs"
"""The CreateWorld setting that contains the number of rows, an integer."""

ROWS = "rows"
"""The prefix of settings that have one value for each row, as in `rows.seed`."""

RESET_MASK = "reset_mask"
"""The Reset setting that selects the rows in which a new sequence begins, bool [N]."""

AUTORESET_MODE = "autoreset_mode"
"""The CreateWorld setting that requests a mode of Gymnasium's `AutoresetMode` by name. A property
of the world contains the mode in effect."""

STEP_MASK = "step_mask"
"""A reserved name. Older clients use this name for the action that steps only some rows of
a batch, and for the setting that requests this action. Servers reject both, but recordings made
with older clients contain them."""

STEP_TYPE = "step_type"
"""The observation that contains the type of each row's step, uint8 [N]: 0 is FIRST, 1 is MID, 2 is
LAST."""

ROW_ERRORS = "row_errors"
"""The observation that contains a step's errors, as a JSON object that maps row indices to error
messages, or "" if no row failed."""

INFO_ARRAYS = "info_arrays"
"""The observation that contains the concatenated bytes of large info arrays, uint8 [-1]."""

OF_BATCH = (STEP_TYPE, ROW_ERRORS, INFO_ARRAYS)
"""The observations that exist only for a whole batch and not for its rows."""

MAX_NUM_ENVS = "batch.max_num_envs"
"""The property that contains the maximum number of rows, on servers that create batches."""

WORLD_NUM_ENVS = "batch.num_envs"
"""The property of a batched world that contains its number of rows."""

WORLD_AUTORESET_MODE = "batch.autoreset_mode"
WORLD_FORM = "batch.form"
"""The properties of a batched world that contain the name of its `AutoresetMode` and a description
of its kind."""

SETTINGS = frozenset((NUM_ENVS, AUTORESET_MODE, STEP_MASK))
"""The CreateWorld settings that concern the batch rather than its rows."""

Specs: TypeAlias = Mapping[str, dm_env_rpc_pb2.TensorSpec]
"""TensorSpecs by flat name."""

ROW_ERROR_BYTES = 4096
"""The maximum size, in bytes, of a failed row's error message. Longer messages are truncated."""

_FIRST_MID_LAST = bytes((0, 1, 2))

_LAST = b"\2"

_DECODER = json.JSONDecoder()

_SPACE = re.compile(r"[ \t\n\r]*")

_NUMBERS = frozenset(
    getattr(dm_env_rpc_pb2, name)
    for name in ["FLOAT", "DOUBLE", "INT8", "INT32", "INT64", "UINT8", "UINT32", "UINT64", "BOOL"]
)


def num_rows(observations: Specs) -> int | None:
    """Return the number of rows of a batched world, or None for a world that is not batched.

    A world is batched if its step types and rewards have the same number of rows.

    Args:
      observations: the specs of its observations, by flat name.

    Raises:
      SpecError: a spec violates the rules for batches.
    """
    kinds, rewards = observations.get(STEP_TYPE), observations.get(REWARD)
    if kinds is None or rewards is None or kinds.dtype != dm_env_rpc_pb2.UINT8:
        return None
    if len(kinds.shape) != 1 or kinds.shape[0] < 1 or rewards.shape[:1] != kinds.shape:
        return None
    count: int = kinds.shape[0]
    for name in (REWARD, DISCOUNT):
        spec = observations.get(name)
        if spec is not None and (spec.dtype not in _NUMBERS or spec.shape[:1] != kinds.shape):
            raise _wrong_spec(f"observation {name!r}", spec, f"numbers in {count} rows")
    errors = observations.get(ROW_ERRORS)
    if errors is not None and (errors.dtype != dm_env_rpc_pb2.STRING or errors.shape):
        raise _wrong_spec(f"observation {ROW_ERRORS!r}", errors, "one STRING")
    return count


def _wrong_spec(what: str, spec: dm_env_rpc_pb2.TensorSpec, expected: str) -> SpecError:
    return SpecError(
        f"{what} of the batch is {dm_env_rpc_pb2.DataType.Name(spec.dtype)} {list(spec.shape)}; "
        f"expected {expected}; {STEP_TYPE!r} determines the number of rows"
    )


def checked_reset_mask(mask: Any, count: int) -> npt.NDArray[np.bool_]:
    """Validate the setting or option `reset_mask` and return it as an array.

    Args:
      mask: the mask.
      count: the number of rows.

    Raises:
      SpecError: the mask is not bool [N] with at least one True.
    """
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != (count,) or not array.any():
        raise SpecError(
            f"setting {RESET_MASK!r}: expected bool [{count}] with at least one True, got "
            f"{array.dtype} {list(array.shape)}"
        )
    return array


def check_step(values: Mapping[str, Any], count: int) -> None:
    """Validate a step of a batched world, for clients and readers of recordings.

    Validation takes about a microsecond for a step without row errors, and slightly more if rows
    end. Row errors take time in proportion to their size.

    Args:
      values: the observations by flat name. They must conform to their specs.
      count: the number of rows.

    Raises:
      ProtocolError: a value violates the rules for batches.
    """
    kinds = values.get(STEP_TYPE)
    if kinds is not None:
        packed = kinds.tobytes()
        if packed.translate(None, _FIRST_MID_LAST):
            row = next(row for row, kind in enumerate(packed) if kind not in _FIRST_MID_LAST)
            raise ProtocolError(
                f"observation {STEP_TYPE!r}: the step of row {row} has the type {packed[row]}; "
                "expected 0 (FIRST), 1 (MID) or 2 (LAST)"
            )
        if _LAST in packed:
            _check_discounts(values.get(DISCOUNT), packed)
    if values.get(ROW_ERRORS):
        row_errors(values[ROW_ERRORS], count)


def _check_discounts(discounts: Any, kinds: bytes) -> None:
    """Raise ProtocolError if a LAST row's discount does not show whether the row terminated."""
    if discounts is None or discounts.dtype.kind != "f":
        return
    is_nan = np.isnan(discounts)
    if not is_nan.any():
        return
    for row, kind in enumerate(kinds):
        if kind == _LAST[0] and np.any(is_nan[row]):
            raise ProtocolError(
                f"observation {DISCOUNT!r}: the step of row {row} is LAST and has the discount "
                "nan; expected 0 if its sequence has terminated, otherwise a nonzero number"
            )


def row_errors(text: Any, count: int) -> dict[int, str]:
    """Return the error messages in the observation `row_errors` by row index.

    Parsing stops at the first invalid entry. In contrast, a JSON parser would build everything
    that a hostile server sends, and would silently keep the last of two messages for one row.

    Args:
      text: the observation.
      count: the number of rows.

    Raises:
      ProtocolError: the text violates the rules for batches.
    """
    text, found = str(text), dict[int, str]()
    if not text:
        return found
    at = _behind(text, 0, "{", "an object")
    if text[at : at + 1] != "}":
        while True:
            key, at = _scanned(text, at, "the key of an entry")
            row = row_index(key, count, f"observation {ROW_ERRORS!r}")
            if row in found:
                raise _invalid(f"row {row} has two error messages")
            at = _behind(text, at, ":", f"a colon after the key {key!r}")
            error, at = _scanned(text, at, f"the error message of row {row}")
            found[row] = sendable(error, ROW_ERROR_BYTES)
            at = _end_of_space(text, at)
            if text[at : at + 1] == "}":
                break
            at = _behind(text, at, ",", f"a comma or the end after the error message of row {row}")
    if _end_of_space(text, at + 1) != len(text):
        raise _invalid(f"unexpected text after the object, at character {at + 1}")
    return found


def row_error(error: BaseException) -> str:
    """Return the error message of a failed row."""
    return sendable(described(error), ROW_ERROR_BYTES)


def row_errors_text(failures: Mapping[int, BaseException | str]) -> str:
    """Return the observation `row_errors`, which is "" or a JSON object of messages by row.

    Args:
      failures: the exceptions raised by rows, or their messages.
    """
    if not failures:
        return ""
    texts = {}
    for row in sorted(failures):
        failure = failures[row]
        texts[row] = failure if isinstance(failure, str) else row_error(failure)
    return json.dumps(texts)


def _end_of_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    assert found is not None, "it matches nothing, too"
    return found.end()


def _behind(text: str, at: int, mark: str, what: str) -> int:
    """Return the position after a punctuation mark and the white space around it."""
    at = _end_of_space(text, at)
    if text[at : at + 1] != mark:
        raise _invalid(f"expected {what} at character {at}, got {text[at : at + 20]!r}")
    return _end_of_space(text, at + 1)


def _scanned(text: str, at: int, what: str) -> tuple[str, int]:
    """Return the JSON string at a position, and the position after it."""
    if text[at : at + 1] != '"':
        raise _invalid(f"{what} is not a string: {text[at : at + 20]!r} at character {at}")
    try:
        found, end = _DECODER.raw_decode(text, at)
    except ValueError as error:
        raise _invalid(f"{what} is not a JSON string: {error}") from None
    return str(found), end


def row_index(key: Any, count: int, where: str) -> int:
    """Return the row index for the key of a JSON object, such as "3".

    Args:
      key: the key.
      count: the number of rows.
      where: the name of the object in error messages.

    Raises:
      ProtocolError: the key is not the canonical text of an index from 0 to `count` - 1.
    """
    is_index = isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10
    if not is_index or str(int(key)) != key or int(key) >= count:
        raise ProtocolError(f"{where}: expected an index from 0 to {count - 1}, got {key!r:.60}")
    return int(key)


def _invalid(what: str) -> ProtocolError:
    return ProtocolError(
        f"observation {ROW_ERRORS!r}: {what}; expected a JSON object of messages by row, such as "
        '{"3": "OSError: ..."}'
    )
