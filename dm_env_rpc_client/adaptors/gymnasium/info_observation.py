"""The observation `gymnasium`, which accompanies a Gymnasium environment's own observations.

The observation is empty or a JSON object:

| sender | key | value |
| --- | --- | --- |
| an environment | `info` | the info of the step or reset |
| | `truncated` | true if an episode was both terminated and truncated |
| rows of a batch | `info` | the infos of all rows, stacked as in Gymnasium |
| | `rows` | instead of `info`: an object for each row, keyed by the row's index, with the row's `info` and, if its episode has ended and the next has begun, `final_info` and `final_obs` |
| | `truncated` | a mask, bool [N], of the rows that were both terminated and truncated |

Clients request the observation with the setting `infos` of a Reset. The value True selects the
`info` of rows, for clients that do not support NumPy strings (see `value_json`). `STACKED` selects
the same `info` with exact types, and `OWN` selects `rows`. `BLOCKS` is like `STACKED`, but a
second observation contains the concatenated bytes of all large arrays. The list `infos` in a
description contains the forms that the server supports.
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
"""The name of the observation that carries the infos."""

OF_AGENTS = "pettingzoo"
"""The name of the observation that carries the infos of an agent of a PettingZoo environment."""

INFOS = "infos"
"""The setting of a Reset that requests infos. Descriptions list the strings that it supports."""

OWN, STACKED, BLOCKS = "own", "stacked", "blocks"
"""Strings that the setting `infos` of a Reset accepts."""

INFO, FINAL_INFO, FINAL_OBSERVATION = "info", "final_info", "final_obs"
"""The keys of a row's infos. Gymnasium also uses the last two of them in stacked infos."""

_TRUNCATED, _ROWS = "truncated", "rows"


class Extras(NamedTuple):
    """Values that accompany each observation of one environment.

    Attributes:
      info: the info of the step or reset.
      is_truncated: whether the episode was both terminated and truncated.
    """

    info: dict[str, Any]
    is_truncated: bool


class RowInfo(NamedTuple):
    """The infos that one row of a batch returns in one step.

    Attributes:
      info: the info of the step, or of the reset if the step also began the next episode.
      final_info: the info of the step that ended an episode, if it also began the next one.
      final_observation: the last observation of the ended episode; None if unknown.
    """

    info: dict[str, Any]
    final_info: dict[str, Any] = {}  # noqa: RUF012  # Replaced, not changed.
    final_observation: Any = None


def encoded(info: Any, is_truncated_too: bool, is_exact: bool) -> str:
    """Return the observation `gymnasium` for one environment.

    Args:
      info: the info returned by the environment.
      is_truncated_too: whether the episode was both terminated and truncated.
      is_exact: whether the client supports all types of `value_json`.
    """
    extras: dict[str, Any] = {INFO: info} if info else {}
    if is_truncated_too:
        extras[_TRUNCATED] = True
    return value_json.encode_extras(extras, is_exact)


def encoded_blocks(infos: Any, both: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """Return the observations with stacked infos: a JSON string, and the bytes of large arrays."""
    blocks: list[bytes] = []
    text = encoded_stack(value_json.moved(infos, blocks), both, is_exact=True)
    return {EXTRAS: text, batches.INFO_ARRAYS: np.frombuffer(b"".join(blocks), np.uint8)}


def encoded_stack(infos: Mapping[str, Any], both: npt.NDArray[np.bool_], is_exact: bool) -> str:
    """Return the observation `gymnasium` for rows with stacked infos.

    Args:
      infos: the infos of all rows, stacked as in Gymnasium.
      both: whether the episode of each row was both terminated and truncated, bool [N].
      is_exact: as for `encoded`.
    """
    extras: dict[str, Any] = {INFO: infos} if infos else {}
    if both.any():
        extras[_TRUNCATED] = both
    return value_json.encode_extras(extras, is_exact)


def encoded_rows(rows: Mapping[int, Any], both: npt.NDArray[np.bool_]) -> str:
    """Return the observation `gymnasium` for rows with separate infos.

    Args:
      rows: the JSON value of each row's infos, by the index of the row.
      both: whether the episode of each row was both terminated and truncated, bool [N].

    Raises:
      SpecError: the infos of a row cannot be written as text.
    """
    extras: dict[str, Any] = {_ROWS: rows} if rows else {}
    if both.any():
        extras[_TRUNCATED] = value_json.to_jsonable(both)
    return value_json.text_of(extras) if extras else ""


def extras_of(observation: Mapping[str, Any]) -> Extras:
    """Return the values sent with an observation, or raise ProtocolError if they are invalid."""
    text = str(observation[EXTRAS])
    if not text:
        return Extras({}, False)
    value = value_json.decode(text, f"observation {EXTRAS!r}")
    info = value.get(INFO, {}) if isinstance(value, dict) else None
    if not isinstance(info, dict):
        shown = arguments.shown(value)
        raise ProtocolError(
            f"observation {EXTRAS!r}: expected a JSON object with an 'info', got {shown}"
        )
    return Extras(info, value.get(_TRUNCATED) is True)


class RowExtras(NamedTuple):
    """Values that accompany the observations of a batch's rows.

    Attributes:
      stacked: the infos of all rows, stacked as in Gymnasium.
      own: infos that are not stacked, by row.
      both: whether the episode of each row was both terminated and truncated, bool [N]; None if
        there is no such episode.
    """

    stacked: dict[str, Any]
    own: dict[int, RowInfo]
    both: npt.NDArray[np.bool_] | None


def extras_of_rows(text: str, count: int, arrays: Any = None) -> RowExtras:
    """Return the values sent with the observations of `count` rows; `text` must not be empty.

    Args:
      text: the observation `EXTRAS`.
      count: the number of rows.
      arrays: the observation `INFO_ARRAYS`, if there is one.

    Raises:
      ProtocolError: the text is invalid or describes another number of rows.
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

    Stacking has converted integers, floats and bools to NumPy scalars. A value that is not an
    array of rows, such as the log of a simulator, is copied to each row.
    """
    found = []
    for own in _unstacked(infos, count):
        final = own.pop(FINAL_INFO, {})
        # Gymnasium before 1.0 used this name, and some simulators still do.
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
    """Whether a part of stacked infos has one value for each of `count` rows."""
    return isinstance(value, np.ndarray) and value.shape[:1] == (count,)


def _invalid(text: str, count: int) -> ProtocolError:
    return ProtocolError(
        f"observation {EXTRAS!r}: expected infos of {count} rows, got {text[:200]}"
    )
