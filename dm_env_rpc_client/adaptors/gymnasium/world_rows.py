"""The last step of Gymnasium environments in batched worlds; see `VectorRows`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium.episode_rows import Array, EpisodeRows
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
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.tensors import nesting

__all__ = ["WorldRows", "check_world"]

_MID, _LAST = int(dm_env.StepType.MID), int(dm_env.StepType.LAST)


class WorldRows(EpisodeRows):
    """The rows. The server follows an episode by the next one, unless it was lost.

    Args:
      space: the space of one observation.
      observation_specs: of one row, by flat name.
      count: the number of rows.
      mode: when episodes begin.
      copy: whether observations belong to callers.
      has_own_infos: whether each row has an info of its own; otherwise they are stacked.
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
        super().__init__(count, mode)
        self._space = space
        names = [
            name
            for name in observation_specs
            if name.partition(nesting.SEPARATOR)[0] == OBSERVATION
        ]
        self._arrays = LentArrays(
            {name: zeros((count, *observation_specs[name].shape), observation_specs[name].dtype)
             for name in names},
            stays=not copy,
        )  # fmt: skip
        self._names = names
        self._infos: WorldInfos = (OwnWorldInfos if has_own_infos else StackedWorldInfos)(count)
        # What `step_type` is in most steps of a world that has all rows.
        self._all_mid = bytes([_MID]) * count

    def begin(self, ids: Sequence[int]) -> bool:
        """Begins a step of some environments; see `EpisodeRows.begin`.

        Infos of theirs are left over if the last step of another environment has failed.
        """
        if self._infos.kept:
            self._infos.forget(ids)
        was_mid, self._mid_count = self._mid_count == self.count, 0
        return was_mid

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Takes the last TimeStep of a row whose world was lost."""
        for name, array in self._arrays.to_fill().items():
            array[index] = timestep.observation[name]
        self._rewards[index] = 0.0
        self._terminations[index], self._truncations[index] = False, True
        flat = {name: timestep.observation[name] for name in self._names}
        final = observation_of(self._space, nesting.nest(flat, nesting.SEPARATOR))
        self._infos.put_lost(index, final, self.has_to_begin)
        if self.has_to_begin:
            self._restarting.add(index)

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> None:
        """Takes the rows of a world; see `BatchConsumer`."""
        observation = timestep.observation
        # Rows that do not take part have their last values in the message.
        has_all_rows = len(observation[STEP_TYPE]) == self.count
        if has_all_rows:
            self._arrays.replace(observation)
        is_mid = at is None and observation[STEP_TYPE].tobytes() == self._all_mid
        extras = str(observation[EXTRAS])
        if is_mid and not self._restarting:
            self._put_mid(timestep, extras)
            return
        which = slice(None) if taken is None else taken
        rows = np.arange(self.count)[slice(None) if at is None else at]
        if not has_all_rows:
            for name, array in self._arrays.to_fill().items():
                array[rows] = observation[name][which]
        self.has_begun[rows] = True
        count = len(observation[STEP_TYPE])
        if self._restarting and self._restarting.issuperset(rows.tolist()):
            # The rest of these rows belongs to the step that ended the episode.
            self._restarting.difference_update(rows.tolist())
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

    def observations(self, ids: Array | None) -> Any:
        """Returns the observations of some environments; None for all."""
        flat: dict[str, Any] = self._arrays.rows(ids)
        value = nesting.nest(flat, nesting.SEPARATOR).get(OBSERVATION, {})
        return elements.from_structure(self._space, value, "observation", of_rows=True)

    def infos(self, ids: Array | None) -> dict[str, Any]:
        """Takes the stacked infos that have come since the last time, of some rows or all."""
        return self._infos.stack(ids)

    def first_infos(self, ids: Sequence[int]) -> dict[str, Any]:
        """Takes the stacked infos of all rows, which came with those that were reset."""
        return self._infos.stack(None)

    def each_info(self) -> list[RowInfo]:
        """Takes the infos that have come since the last time, of each row."""
        return self._infos.each()


def check_world(world: DmEnvAdaptor, discount: specs.Array) -> None:
    """Raises SpecError if a batched world is not one of Gymnasium environments, as it says.

    Args:
      world: the world.
      discount: the spec of the discount of one row.
    """
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
