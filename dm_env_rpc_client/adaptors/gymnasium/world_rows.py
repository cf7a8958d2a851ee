"""The last step of Gymnasium environments in batched worlds; see `VectorRows`.

The infos of a world come stacked. What is left to do is to put those of several worlds together,
and to select those of some rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import batch_elements, values
from dm_env_rpc_client.adaptors.gymnasium.lent_arrays import LentArrays
from dm_env_rpc_client.adaptors.gymnasium.proxy import observation_of
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import EXTRAS, OBSERVATION
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.protocol.mid_steps import MidSteps
from dm_env_rpc_client.tensors import nesting

__all__ = ["WorldRows"]

Array: TypeAlias = npt.NDArray[Any]

_MID, _LAST = int(dm_env.StepType.MID), int(dm_env.StepType.LAST)


class WorldRows:
    """The rows.

    Args:
      space: the space of one observation.
      observation_specs: of one row, by flat name.
      count: the number of rows.
      mode: when episodes begin.
      copy: whether observations belong to callers.

    Attributes:
      count: the number of rows.
      has_begun: whether an episode has begun, bool [N].
      ended: rows whose episode the server cannot follow by the next one, since it was lost.
    """

    def __init__(
        self,
        space: spaces.Space[Any],
        observation_specs: Mapping[str, Any],
        count: int,
        mode: AutoresetMode,
        copy: bool,
    ):
        self._space = space
        self.count = count
        self._mode = mode
        names = [
            name
            for name in observation_specs
            if name.partition(nesting.SEPARATOR)[0] == OBSERVATION
        ]
        self._observations = LentArrays(
            {name: _zeros((count, *observation_specs[name].shape), observation_specs[name].dtype)
             for name in names},
            stays=not copy,
        )  # fmt: skip
        self._names = names
        self._rewards = np.zeros(count, np.float64)
        self._terminations = np.zeros(count, np.bool_)
        self._truncations = np.zeros(count, np.bool_)
        self._infos: list[tuple[Array, Mapping[str, Any]]] = []
        self._mid_count = 0
        # What `step_type` is in most steps of a world that has all rows.
        self._all_mid = bytes([_MID]) * count
        self.has_begun = np.zeros(count, np.bool_)
        self.ended: list[int] = []

    def begin(self, ids: Sequence[int]) -> bool:
        """Begins a step of some environments, or their next episodes.

        Infos of theirs are left over if the last step of another environment has failed.

        Returns:
          Whether episodes are known to be running in all environments.
        """
        if self._infos:
            self.infos(np.array(ids))
        was_mid, self._mid_count = self._mid_count == self.count, 0
        return was_mid

    def forget_restarts(self, ids: Sequence[int]) -> None:
        """Takes note that no episodes begin in environments that have ended one."""
        self.ended = [row for row in self.ended if row not in ids]

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Takes the last TimeStep of a row whose world was lost."""
        row, yes = np.array([index]), np.ones(1, np.bool_)
        for name, array in self._observations.to_fill().items():
            array[index] = timestep.observation[name]
        self._rewards[index] = 0.0
        self._terminations[index], self._truncations[index] = False, True
        infos: dict[str, Any] = {"restarted": yes, "_restarted": yes}
        if self._mode is AutoresetMode.SAME_STEP:
            flat = {name: timestep.observation[name] for name in self._names}
            final = np.full(1, None, object)
            final[0] = observation_of(self._space, nesting.nest(flat, nesting.SEPARATOR))
            infos = {"final_obs": final, "_final_obs": yes, "final_info": infos, "_final_info": yes}
            self.ended.append(index)
        self._infos.append((row, infos))

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Takes none: rows of a world arrive together."""
        raise AssertionError("this is of environments on streams of their own")

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> None:
        """Takes none, either."""
        raise AssertionError("this is of environments on streams of their own")

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> None:
        """Takes the rows of a world; see `RowConsumer`."""
        observation = timestep.observation
        # Rows that do not take part have their last values in the message.
        has_all_rows = len(observation[STEP_TYPE]) == self.count
        if has_all_rows:
            self._observations.replace(observation)
        is_mid = at is None and observation[STEP_TYPE].tobytes() == self._all_mid
        if is_mid and not self.ended:
            self._put_mid(timestep, str(observation[EXTRAS]))
            return
        which = slice(None) if taken is None else taken
        rows = np.arange(self.count)[slice(None) if at is None else at]
        if not has_all_rows:
            for name, array in self._observations.to_fill().items():
                array[rows] = observation[name][which]
        self.has_begun[rows] = True
        count = len(observation[STEP_TYPE])
        if self.ended and set(rows.tolist()) <= set(self.ended):
            # The rest of these rows belongs to the step that ended the episode.
            self.forget_restarts(rows.tolist())
            self._take_infos(rows, str(observation[EXTRAS]), which, count)
            return
        kinds = observation[STEP_TYPE][which]
        is_last = kinds == _LAST
        self._rewards[rows] = 0.0 if timestep.reward is None else timestep.reward[which]
        terminated = is_last
        if timestep.discount is not None:
            terminated = is_last & (timestep.discount[which] == 0)
        self._terminations[rows] = terminated
        self._truncations[rows] = is_last & ~terminated
        self._mid_count += int(np.count_nonzero(kinds == _MID))
        both = self._take_infos(rows, str(observation[EXTRAS]), which, count)
        if both is not None:
            self._truncations[rows] |= both

    def _put_mid(self, timestep: dm_env.TimeStep, extras: str) -> None:
        """Takes all rows in the middle of episodes, as `put_rows`, without their observations."""
        self.has_begun.fill(True)
        self._rewards[:] = 0.0 if timestep.reward is None else timestep.reward
        self._terminations.fill(False)
        self._truncations.fill(False)
        self._mid_count += self.count
        if extras:
            both = self._take_infos(np.arange(self.count), extras, slice(None), self.count)
            if both is not None:
                self._truncations |= both

    def results(self, ids: Array | None) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Returns what `step` returns for some environments, or for all; see `VectorRows`."""
        flags = self._rewards, self._terminations, self._truncations
        # Indices copy what they select.
        rewards, terminations, truncations = (
            of_rows.copy() if ids is None else of_rows[ids] for of_rows in flags
        )
        return self.observations(ids), rewards, terminations, truncations, self.infos(ids)

    def observations(self, ids: Array | None) -> Any:
        """Returns the observations of some environments, or of all."""
        flat: dict[str, Any] = self._observations.rows(ids)
        value = nesting.nest(flat, nesting.SEPARATOR).get(OBSERVATION, {})
        return batch_elements.from_structure(self._space, value, "observation")

    def infos(self, ids: Array | None) -> dict[str, Any]:
        """Returns the infos that have come since the last time: those of some rows, or all."""
        chunks, self._infos = self._infos, []
        if ids is None and len(chunks) == 1 and len(chunks[0][0]) == self.count:
            return dict(chunks[0][1])
        infos: dict[str, Any] = {}
        count = self.count if ids is None else len(ids)
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
                self._infos.append((rows[kept], left))
        return infos

    def _take_infos(self, rows: Array, text: str, which: Any, count: int) -> Array | None:
        """Takes what came with the observations; returns which episodes have ended in both ways."""
        if not text:
            return None
        where = f"observation {EXTRAS!r}"
        extras = values.decode(text, where)
        infos = extras.get("info", {}) if isinstance(extras, dict) else None
        both = extras.get("truncated") if isinstance(extras, dict) else None
        if not isinstance(infos, dict) or not _has_rows(infos, count) or not (
            both is None or (isinstance(both, np.ndarray) and both.shape == (count,))
        ):  # fmt: skip
            raise ProtocolError(f"{where}: expected infos of {count} rows, got {text[:200]}")
        if infos:
            if isinstance(which, slice):
                self._infos.append((rows, infos))
            else:
                own: dict[str, Any] = {}
                _put_together(own, infos, np.array(which), np.arange(len(rows)), len(rows))
                self._infos.append((rows, own))
        return None if both is None else both[which]


def _has_rows(infos: Mapping[str, Any], count: int) -> bool:
    return all(
        _has_rows(value, count)
        if isinstance(value, dict)
        else isinstance(value, np.ndarray) and value.shape[:1] == (count,)
        for value in infos.values()
    )


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
            target[key] = _zeros((count, *value.shape[1:]), value.dtype)
        target[key][places] = value[source]


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.zeros(shape, dtype) if dtype.kind in "biuf" else np.full(shape, None, object)
