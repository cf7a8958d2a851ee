"""The last step of Gymnasium environments in batched worlds; see `VectorRows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import dm_env
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import batch_elements
from dm_env_rpc_client.adaptors.gymnasium.extras import EXTRAS, RowInfo
from dm_env_rpc_client.adaptors.gymnasium.lent_arrays import LentArrays
from dm_env_rpc_client.adaptors.gymnasium.proxy import observation_of
from dm_env_rpc_client.adaptors.gymnasium.to_dm_env import OBSERVATION
from dm_env_rpc_client.adaptors.gymnasium.vector_description import VECTOR_DESCRIPTION
from dm_env_rpc_client.adaptors.gymnasium.world_infos import (
    OwnWorldInfos,
    StackedWorldInfos,
    WorldInfos,
    zeros,
)
from dm_env_rpc_client.environment.many.batch_adaptor import BatchAdaptor
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.protocol.mid_steps import MidSteps
from dm_env_rpc_client.tensors import nesting

__all__ = ["WorldRows", "check_world"]

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
      has_own_infos: whether each row has an info of its own; otherwise they are stacked.

    Attributes:
      count: the number of rows.
      has_begun: whether an episode has begun, bool [N].
      ended: rows whose episode the server cannot follow by the next one, since it was lost.
      infos: takes the stacked infos that have come since the last time, of some rows or all.
    """

    def __init__(
        self,
        space: spaces.Space[Any],
        observation_specs: Mapping[str, Any],
        count: int,
        mode: AutoresetMode,
        copy: bool,
        has_own_infos: bool,
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
            {name: zeros((count, *observation_specs[name].shape), observation_specs[name].dtype)
             for name in names},
            stays=not copy,
        )  # fmt: skip
        self._names = names
        self._rewards = np.zeros(count, np.float64)
        self._terminations = np.zeros(count, np.bool_)
        self._truncations = np.zeros(count, np.bool_)
        stacked = StackedWorldInfos(count)
        self._infos: WorldInfos = OwnWorldInfos(count) if has_own_infos else stacked
        self.infos = stacked.stack
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
        if self._infos.kept:
            self._infos.forget(ids)
        was_mid, self._mid_count = self._mid_count == self.count, 0
        return was_mid

    def forget_restarts(self, ids: Sequence[int]) -> None:
        """Takes note that no episodes begin in environments that have ended one."""
        self.ended = [row for row in self.ended if row not in ids]

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Takes the last TimeStep of a row whose world was lost."""
        for name, array in self._observations.to_fill().items():
            array[index] = timestep.observation[name]
        self._rewards[index] = 0.0
        self._terminations[index], self._truncations[index] = False, True
        flat = {name: timestep.observation[name] for name in self._names}
        final = observation_of(self._space, nesting.nest(flat, nesting.SEPARATOR))
        begins = self._mode is AutoresetMode.SAME_STEP
        self._infos.put_lost(index, final, begins)
        if begins:
            self.ended.append(index)

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
        extras = str(observation[EXTRAS])
        if is_mid and not self.ended:
            self._put_mid(timestep, extras)
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
            if extras:
                self._infos.put(rows, extras, which, count)
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
        if extras:
            both = self._infos.put(rows, extras, which, count)
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
            both = self._infos.put(np.arange(self.count), extras, slice(None), self.count)
            if both is not None:
                self._truncations |= both

    def results(self, ids: Array | None) -> tuple[Any, Array, Array, Array, dict[str, Any]]:
        """Returns what `step` returns for some environments, or for all; see `VectorRows`."""
        return (*self.arrays(ids), self.infos(ids))

    def arrays(self, ids: Array | None) -> tuple[Any, Array, Array, Array]:
        """Returns the same without the infos."""
        rewards, terminations, truncations = self._rewards, self._terminations, self._truncations
        if ids is None:
            rewards, terminations = rewards.copy(), terminations.copy()
            return self.observations(None), rewards, terminations, truncations.copy()
        # Indices copy what they select.
        return self.observations(ids), rewards[ids], terminations[ids], truncations[ids]

    def observations(self, ids: Array | None) -> Any:
        """Returns the observations of some environments, or of all."""
        flat: dict[str, Any] = self._observations.rows(ids)
        value = nesting.nest(flat, nesting.SEPARATOR).get(OBSERVATION, {})
        return batch_elements.from_structure(self._space, value, "observation")

    def each_info(self) -> list[RowInfo]:
        """Takes the infos that have come since the last time, of each row."""
        return self._infos.each()


def check_world(world: BatchAdaptor) -> None:
    """Raises SpecError if a batched world is not one of Gymnasium environments, as it says."""
    discount = world.row_specs().discount
    if EXTRAS not in world.observation_spec():
        raise SpecError(
            f"world {world.world_name!r} has the property {VECTOR_DESCRIPTION!r}, but not the "
            f"observation {EXTRAS!r}, which it was asked for"
        )
    if discount.shape:
        raise SpecError(
            f"observation 'discount' of world {world.world_name!r} has the shape "
            f"{list(discount.shape)} in each row; expected one number, as of Gymnasium environments"
        )
