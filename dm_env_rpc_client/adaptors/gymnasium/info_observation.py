"""Values that accompany the observations of a Gymnasium environment: the observation `gymnasium`.

It is empty, or a JSON object:

| who | key | value |
| --- | --- | --- |
| an environment | `info` | the info of the step or reset |
| | `truncated` | true if an episode that was terminated was truncated, too |
| rows of a batch | `info` | the infos of all rows, stacked as Gymnasium stacks them |
| | `rows` | instead, by the index of the row, an object with its `info` and, if its episode has ended and the next has begun, `final_info` and `final_obs` |
| | `truncated` | of which rows, bool [N] |

A client asks for it with the setting `infos` of a Reset. True is for clients that do not know the
strings of NumPy (see `value_json`) and get the `info` of rows; `STACKED` is the same with exact types;
`OWN` is for `rows`. `BLOCKS` is `STACKED`, with large arrays in a second observation, whose bytes
are theirs one after another. A description has what its server knows in the list `infos`.
"""  # noqa: E501  # a table

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.protocol import batches

EXTRAS = "gymnasium"
"""The name of the observation."""

INFOS = "infos"
"""The setting of a Reset; in a description, the list of the texts that the setting may be."""

OWN, STACKED, BLOCKS = "own", "stacked", "blocks"
"""The texts that it may be."""

INFO, FINAL_INFO, FINAL_OBSERVATION = "info", "final_info", "final_obs"
"""The keys of the infos of a row. In a stack, the last two are Gymnasium's."""

_TRUNCATED, _ROWS = "truncated", "rows"


class Extras(NamedTuple):
    """Values that accompany each observation of one environment.

    Attributes:
      info: the info of the step or reset.
      is_truncated: whether an episode that was terminated was truncated, too.
    """

    info: dict[str, Any]
    is_truncated: bool


class RowInfo(NamedTuple):
    """The infos of a row in one step.

    Attributes:
      info: that of the step; if the next episode has begun in it, that of the reset.
      final_info: that of the step which ended an episode, if the next one has begun in it.
      final_observation: the last one of that episode; None if it is not known.
    """

    info: dict[str, Any]
    final_info: dict[str, Any] = {}  # noqa: RUF012  # Replaced, not changed.
    final_observation: Any = None


def encoded(info: Any, is_truncated_too: bool, is_exact: bool) -> str:
    """Return the info text for an observation of one environment.

    Args:
      info: what the environment returned.
      is_truncated_too: whether an episode was terminated and truncated.
      is_exact: whether the client knows all types.
    """
    extras: dict[str, Any] = {INFO: info} if info else {}
    if is_truncated_too:
        extras[_TRUNCATED] = True
    return value_json.encode_extras(extras, is_exact)


def encoded_blocks(infos: Any, both: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return both observations of rows whose infos are stacked."""
    blocks: list[bytes] = []
    text = encoded_stack(value_json.moved(infos, blocks), both, is_exact=True)
    return {EXTRAS: text, batches.INFO_ARRAYS: np.frombuffer(b"".join(blocks), np.uint8)}


def encoded_stack(infos: Mapping[str, Any], both: npt.NDArray[np.bool_], is_exact: bool) -> str:
    """Return the info text for the observations of rows with stacked infos.

    Args:
      infos: the infos of all rows, stacked as Gymnasium stacks them.
      both: the rows whose episode was terminated and truncated.
      is_exact: as for `encoded`.
    """
    extras: dict[str, Any] = {INFO: infos} if infos else {}
    if both.any():
        extras[_TRUNCATED] = both
    return value_json.encode_extras(extras, is_exact)


def encoded_rows(rows: Mapping[int, Any], both: npt.NDArray[np.bool_]) -> str:
    """Return the info text for the observations of rows with separate infos.

    Args:
      rows: by the index of the row, the JSON value with the keys of its infos.
      both: the rows whose episode was terminated and truncated.

    Raises:
      SpecError: there is no text for one of the rows.
    """
    extras: dict[str, Any] = {_ROWS: rows} if rows else {}
    if both.any():
        extras[_TRUNCATED] = value_json.to_jsonable(both)
    return value_json.text_of(extras) if extras else ""


def extras_of(observation: Mapping[str, Any]) -> Extras:
    """Return the values that came with an observation; ProtocolError if they are invalid."""
    text = str(observation[EXTRAS])
    if not text:
        return Extras({}, False)
    value = value_json.decode(text, f"observation {EXTRAS!r}")
    info = value.get(INFO, {}) if isinstance(value, dict) else None
    if not isinstance(info, dict):
        shown = arguments.shown(value)
        raise ProtocolError(f"observation {EXTRAS!r}: expected an object with an info, got {shown}")
    return Extras(info, value.get(_TRUNCATED) is True)


class RowExtras(NamedTuple):
    """Values that accompany the observations of a batch's rows.

    Attributes:
      stacked: the infos of all rows, stacked as Gymnasium stacks them.
      own: the infos of rows that are not stacked, by row.
      both: which episodes have ended in both ways, bool [N]; None for none.
    """

    stacked: dict[str, Any]
    own: dict[int, RowInfo]
    both: npt.NDArray[np.bool_] | None


def extras_of_rows(text: str, count: int, arrays: Any = None) -> RowExtras:
    """Return the values that came with the observations of `count` rows, unless the text is empty.

    Args:
      text: the observation `EXTRAS`.
      count: the number of rows.
      arrays: the observation `INFO_ARRAYS`, if there is one.

    Raises:
      ProtocolError: it is not that of `count` rows.
    """
    extras = value_json.decode(text, f"observation {EXTRAS!r}")
    if not isinstance(extras, dict):
        raise _invalid(text, count)
    if arrays is not None:
        extras = value_json.placed(extras, arrays, f"observation {batches.INFO_ARRAYS!r}")
    both, stacked, own = extras.get(_TRUNCATED), extras.get(INFO, {}), extras.get(_ROWS, {})
    is_mask = isinstance(both, np.ndarray) and both.shape == (count,) and both.dtype == np.bool_
    if not (both is None or is_mask) or not isinstance(stacked, dict) or not isinstance(own, dict):
        raise _invalid(text, count)
    rows: dict[int, RowInfo] = {}
    for key, value in own.items():
        if not isinstance(value, dict):
            raise _invalid(text, count)
        row = RowInfo(value.get(INFO, {}), value.get(FINAL_INFO, {}), value.get(FINAL_OBSERVATION))
        if not isinstance(row.info, dict) or not isinstance(row.final_info, dict):
            raise _invalid(text, count)
        rows[batches.row_index(key, count, f"observation {EXTRAS!r}")] = row
    return RowExtras(stacked, rows, both)


def unstacked(infos: Mapping[str, Any], count: int) -> list[RowInfo]:
    """Split the stacked infos of `count` rows into the infos of each row.

    What was an integer, a float or a bool has become one of NumPy when it was stacked. What is not
    of rows, such as the log of a simulator, each row has.
    """
    found = []
    for own in _unstacked(infos, count):
        final = own.pop(FINAL_INFO, {})
        # The other name is that of Gymnasium before 1.0, which simulators have kept.
        final_observation = own.pop("final_observation", None)
        final_observation = own.pop(FINAL_OBSERVATION, final_observation)
        found.append(RowInfo(own, final if isinstance(final, dict) else {}, final_observation))
    return found


def _unstacked(infos: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{} for _ in range(count)]
    masks = {f"_{key}" for key in infos}
    for key, value in infos.items():
        if key in masks:
            continue
        parts = _unstacked(value, count) if isinstance(value, dict) else value
        if not isinstance(value, dict) and not is_of_rows(value, count):
            parts = [value] * count
        mask = infos.get(f"_{key}")
        has = np.flatnonzero(mask).tolist() if is_of_rows(mask, count) else range(count)
        for index in has:
            found[index][key] = parts[index]
    return found


def is_of_rows(value: Any, count: int) -> TypeGuard[npt.NDArray[Any]]:
    """Whether a part of stacked infos has a value for each of so many rows."""
    return isinstance(value, np.ndarray) and value.shape[:1] == (count,)


def _invalid(text: str, count: int) -> ProtocolError:
    return ProtocolError(
        f"observation {EXTRAS!r}: expected infos of {count} rows, got {text[:200]}"
    )
