"""The infos of Gymnasium environments in batched worlds, at a client.

They come stacked, or with a dict for each row; see `extras`. What is left to do is to put those of
several worlds together, and to select those of some rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.adaptors.gymnasium.extras import (
    FINAL_INFO,
    FINAL_OBSERVATION,
    RowInfo,
    rows_of,
    stack_of,
    unstacked,
)

__all__ = ["OwnWorldInfos", "StackedWorldInfos", "WorldInfos", "zeros"]

Array: TypeAlias = npt.NDArray[Any]

_RESTARTED = "restarted"


class StackedWorldInfos:
    """Infos that are stacked as Gymnasium stacks them.

    Args:
      count: the number of all rows.

    Attributes:
      kept: the infos that have come and that nobody has taken yet.
    """

    def __init__(self, count: int):
        self._count = count
        self.kept: list[tuple[Array, Mapping[str, Any]]] = []

    def put(self, rows: Array, text: str, which: Any, count: int) -> Array | None:
        """Takes what came with the observations of a world.

        Args:
          rows: the indices of the rows that take part.
          text: the observation `gymnasium`, which is not empty.
          which: selects these rows in the world.
          count: the number of rows of the world.

        Returns:
          Which of their episodes have ended in both ways; None for none.

        Raises:
          ProtocolError: the text is invalid.
        """
        infos, both = stack_of(text, count)
        if infos:
            if isinstance(which, slice):
                self.kept.append((rows, infos))
            else:
                own: dict[str, Any] = {}
                _put_together(own, infos, np.array(which), np.arange(len(rows)), len(rows))
                self.kept.append((rows, own))
        return None if both is None else both[which]

    def put_lost(self, index: int, final_observation: Any, begins: bool) -> None:
        """Takes that the world of a row was lost.

        Args:
          index: the row.
          final_observation: its last observation.
          begins: whether the next episode follows in the same step.
        """
        yes = np.ones(1, np.bool_)
        infos: dict[str, Any] = {_RESTARTED: yes, f"_{_RESTARTED}": yes}
        if begins:
            final = np.full(1, None, object)
            final[0] = final_observation
            infos = {FINAL_OBSERVATION: final, f"_{FINAL_OBSERVATION}": yes,
                     FINAL_INFO: infos, f"_{FINAL_INFO}": yes}  # fmt: skip
        self.kept.append((np.array([index]), infos))

    def forget(self, rows: Sequence[int]) -> None:
        """Drops the infos of some rows."""
        self.stack(np.array(rows))

    def each(self) -> list[RowInfo]:
        """Takes the infos of each row."""
        return unstacked(self.stack(None), self._count)

    def stack(self, ids: Array | None) -> dict[str, Any]:
        """Takes the infos of some rows, or of all, stacked."""
        chunks, self.kept = self.kept, []
        if ids is None and len(chunks) == 1 and len(chunks[0][0]) == self._count:
            return dict(chunks[0][1])
        infos: dict[str, Any] = {}
        count = self._count if ids is None else len(ids)
        for rows, own in chunks:
            if ids is None:
                _put_together(infos, own, np.arange(len(rows)), rows, count)
                continue
            is_wanted = np.isin(rows, ids)
            if is_wanted.any():
                places = [int(np.flatnonzero(ids == row)[0]) for row in rows[is_wanted]]
                _put_together(infos, own, np.flatnonzero(is_wanted), np.array(places), count)
            if not is_wanted.all():
                left: dict[str, Any] = {}
                kept = np.flatnonzero(~is_wanted)
                _put_together(left, own, kept, np.arange(len(kept)), len(kept))
                self.kept.append((rows[kept], left))
        return infos


class OwnWorldInfos:
    """Infos of which each row has its own.

    Args:
      count: the number of all rows.
    """

    def __init__(self, count: int):
        self._count = count
        self.kept: dict[int, RowInfo] = {}

    def put(self, rows: Array, text: str, which: Any, count: int) -> Array | None:
        """Takes what came with the observations of a world; see `StackedWorldInfos.put`."""
        found, both = rows_of(text, count)
        places = range(count) if isinstance(which, slice) else which
        for row, place in zip(rows.tolist(), places, strict=True):
            own = found.get(place)
            if own is not None:
                former = self.kept.get(row)
                # A lost episode has ended in this step, and the next one begins.
                self.kept[row] = own if former is None else former._replace(info=own.info)
        return None if both is None else both[which]

    def put_lost(self, index: int, final_observation: Any, begins: bool) -> None:
        """Takes that the world of a row was lost."""
        info = {_RESTARTED: True}
        self.kept[index] = RowInfo({}, info, final_observation) if begins else RowInfo(info)

    def forget(self, rows: Sequence[int]) -> None:
        """Drops the infos of some rows."""
        for row in rows:
            self.kept.pop(row, None)

    def stack(self, ids: Array | None) -> dict[str, Any]:
        """Returns nothing, since these infos are taken one by one."""
        return {}

    def each(self) -> list[RowInfo]:
        """Takes the infos of each row."""
        infos, self.kept = self.kept, {}
        return [infos.get(row) or RowInfo({}) for row in range(self._count)]


WorldInfos: TypeAlias = StackedWorldInfos | OwnWorldInfos


def _put_together(
    target: dict[str, Any], infos: Mapping[str, Any], source: Array, places: Array, count: int
) -> None:
    """Puts rows of stacked infos into those of more rows, in which keys may be new.

    Args:
      target: the infos to add to.
      infos: the infos of some rows; the mask of `key` is `_key`.
      source: the rows to take of them.
      places: the rows that they become.
      count: the number of rows of `target`.
    """
    masks = {f"_{key}" for key in infos}
    for key, value in infos.items():
        # Of rows without this info there is no key.
        mask = value if key in masks else infos.get(f"_{key}")
        if isinstance(mask, np.ndarray) and not mask[source].any():
            continue
        if isinstance(value, dict):
            _put_together(target.setdefault(key, {}), value, source, places, count)
            continue
        if key not in target:
            target[key] = zeros((count, *value.shape[1:]), value.dtype)
        target[key][places] = value[source]


def zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Returns an array of zeros, or of None if it is one of objects."""
    return np.zeros(shape, dtype) if dtype.kind in "biuf" else np.full(shape, None, object)
