"""The infos of N environments between their answers and the caller: stacked, or those of each row.

Those of environments on streams come one by one. Those of a batch come stacked as Gymnasium stacks
them, or one by one in one text; see `extras`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium
import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.adaptors.gymnasium.extras import (
    FINAL_INFO,
    FINAL_OBSERVATION,
    RowInfo,
    extras_of_rows,
    unstacked,
)
from dm_env_rpc_client.errors import EnvironmentsFailedError, SpecError

__all__ = ["EpisodeInfos"]

Array: TypeAlias = npt.NDArray[Any]


class EpisodeInfos:
    """The infos that have come, and that nobody has taken yet.

    Args:
      addresses: where the server of each environment is, for errors.
    """

    def __init__(self, addresses: Sequence[str]):
        self._addresses = addresses
        # Those of single environments, and those of several with their indices.
        self._own: dict[int, RowInfo] = {}
        self._stacks: list[tuple[Array, Mapping[str, Any]]] = []

    def put(self, index: int, info: dict[str, Any]) -> None:
        """Takes the info of a step, or that of the reset that begins the next episode in it."""
        former = self._own.get(index)
        self._own[index] = RowInfo(info) if former is None else former._replace(info=info)

    def put_final(self, index: int, info: dict[str, Any], observation: Any) -> None:
        """Takes the info and observation of a step in which the next episode is to begin."""
        self._own[index] = RowInfo({}, info, observation)

    def put_rows(self, rows: Array, text: str, which: Any, count: int) -> Array | None:
        """Takes what came with the observations of a batch.

        Args:
          rows: the indices of the rows that take part.
          text: the observation `gymnasium`, which is not empty.
          which: selects these rows in the batch; a slice for all of them.
          count: the number of rows of the batch.

        Returns:
          Which of their episodes have ended in both ways; None for none.

        Raises:
          ProtocolError: the text is invalid.
        """
        stack, own, both = extras_of_rows(text, count)
        places = np.arange(count)[which]
        if stack:
            self._stacks.append((rows, stack if type(which) is slice else _rows(stack, places)))
        if own:
            for row, place in zip(rows.tolist(), places.tolist(), strict=True):
                info, former = own.get(place), self._own.get(row)
                if info is not None:
                    # An episode that was lost has ended in this step, and the next one begins.
                    self._own[row] = info if former is None else former._replace(info=info.info)
        return None if both is None else both[which]

    def forget(self, rows: Collection[int]) -> None:
        """Drops the infos of some rows."""
        if self._own:
            for row in rows:
                self._own.pop(row, None)
        if self._stacks:
            self._taken(np.array(list(rows)))

    def each(self) -> list[RowInfo]:
        """Takes the infos of each row."""
        own, self._own = self._own, {}
        found = unstacked(self._taken(None), len(self._addresses))
        for row, info in own.items():
            found[row] = info._replace(info={**found[row].info, **info.info})
        return found

    def stack(self, ids: Array | None, are_spread: bool = False) -> dict[str, Any]:
        """Takes the infos of some rows, or of all, stacked.

        Args:
          ids: the rows; None for all.
          are_spread: whether each has the place of its index, among all rows.

        Raises:
          EnvironmentsFailedError: Gymnasium cannot put the info of one beside those of the others.
        """
        count = len(self._addresses)
        infos = self._taken(ids) if self._stacks else {}
        if are_spread and ids is not None and infos:
            stacked, infos = infos, {}
            put_together(infos, stacked, np.arange(len(ids)), ids, count)
        if not self._own:
            return infos
        rows = range(count) if ids is None else ids.tolist()
        self.num_envs = count if are_spread else len(rows)
        failures: dict[int, Exception] = {}
        for place, row in zip(rows if are_spread else range(len(rows)), rows, strict=True):
            own = self._own.pop(row, None)
            if own is None:
                continue
            try:
                if own.final_observation is not None:
                    final = {FINAL_OBSERVATION: own.final_observation, FINAL_INFO: own.final_info}
                    infos = self._add_info(infos, final, place)
                infos = self._add_info(infos, own.info, place)
            except Exception as error:  # Of another shape than others, or too large an integer.
                text = f"{type(error).__name__}: {error}"
                failures[row] = SpecError(f"its info does not fit into those of all: {text}")
        if failures:
            raise EnvironmentsFailedError(failures, {row: self._addresses[row] for row in failures})
        return infos

    # As of Gymnasium's own vector environments, which need `num_envs` for it and nothing else.
    _add_info: Any = gymnasium.vector.VectorEnv._add_info

    def _taken(self, ids: Array | None) -> dict[str, Any]:
        """Takes the stacks of some rows, or of all, as one."""
        stacks, self._stacks = self._stacks, []
        count = len(self._addresses) if ids is None else len(ids)
        if ids is None and len(stacks) == 1 and len(stacks[0][0]) == count:
            return dict(stacks[0][1])
        infos: dict[str, Any] = {}
        for rows, own in stacks:
            if ids is None:
                put_together(infos, own, np.arange(len(rows)), rows, count)
                continue
            is_wanted = np.isin(rows, ids)
            if is_wanted.any():
                places = [int(np.flatnonzero(ids == row)[0]) for row in rows[is_wanted]]
                put_together(infos, own, np.flatnonzero(is_wanted), np.array(places), count)
            if not is_wanted.all():
                kept = np.flatnonzero(~is_wanted)
                self._stacks.append((rows[kept], _rows(own, kept)))
        return infos


def _rows(infos: Mapping[str, Any], which: Array) -> dict[str, Any]:
    """Returns some rows of stacked infos."""
    own: dict[str, Any] = {}
    put_together(own, infos, which, np.arange(len(which)), len(which))
    return own


def put_together(
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
            put_together(target.setdefault(key, {}), value, source, places, count)
            continue
        if key not in target:
            shape = (count, *value.shape[1:])
            is_object = value.dtype.kind == "O"
            target[key] = np.full(shape, None) if is_object else np.zeros(shape, value.dtype)
        elif value.dtype.kind in "SU":  # Another length of texts is another dtype.
            target[key] = target[key].astype(np.result_type(target[key], value), copy=False)
        target[key][places] = value[source]
