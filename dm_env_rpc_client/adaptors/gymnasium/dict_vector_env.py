"""Remote environments that return one info dict each, as in Stable-Baselines3.

Gymnasium's vector environments stack infos. Stacking converts integers to NumPy integers and fails
if the infos of the rows are incompatible. In this module, the infos of a batch's rows are sent as
separate dicts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.adaptors.gymnasium.info_observation import OWN
from dm_env_rpc_client.adaptors.gymnasium.vector_env import RemoteVectorEnv

Array: TypeAlias = npt.NDArray[Any]

DummyResults: TypeAlias = tuple[Any, Array, Array, list[dict[str, Any]]]
"""The return type of `DummyVecEnv.step` in Stable-Baselines3."""


class DictVectorEnv(RemoteVectorEnv):
    """A `RemoteVectorEnv` that steps like Stable-Baselines3's DummyVecEnv, in mode SAME_STEP.

    Vector environments and servers of older versions send stacked infos, which this class splits.
    """

    _form = OWN

    def __repr__(self) -> str:
        return self._described(RemoteVectorEnv.__name__)

    def reset_each(
        self,
        seeds: Sequence[int | None],
        options: Mapping[str, Any] | None,
        reset_infos: list[dict[str, Any]],
    ) -> Any:
        """Begin an episode in every environment, and return the observations [N, ...].

        Args:
          seeds: one seed for each environment.
          options: as for `reset`.
          reset_infos: receives the infos.

        Raises:
          As `reset`.
        """

        def results(_: None) -> Any:
            reset_infos[:] = [row.info for row in self._rows.each_info()]
            return self._rows.elements(None)

        return self._reset(self._settings_of(seeds, options), results)

    def step_each(self, actions: Any, reset_infos: list[dict[str, Any]]) -> DummyResults:
        """Step every environment, and begin the next episode wherever an episode ends.

        Args:
          actions: the actions [N, ...].
          reset_infos: receives the infos of the new episodes.

        Returns:
          Observations [N, ...], rewards float32 [N], ended episodes bool [N], and the infos of the
          steps.

        Raises:
          As `step`.
        """
        idle = self._idle(range(self.num_envs))
        by_name = self._spaces.actions(actions, self.num_envs)
        results = functools.partial(self._results, reset_infos)
        return self._worlds.exchange(results, self._worlds.step, by_name, self._rows, idle)

    def _results(self, reset_infos: list[dict[str, Any]], _: None) -> DummyResults:
        observations, rewards, terminations, truncations = self._rows.arrays(None)
        dones = terminations | truncations
        infos = []
        for index, row in enumerate(self._rows.each_info()):
            info = {**(row.final_info if dones[index] else row.info)}
            info["TimeLimit.truncated"] = bool(truncations[index] and not terminations[index])
            if dones[index]:
                reset_infos[index] = row.info
                if row.final_observation is not None:
                    info["terminal_observation"] = row.final_observation
            infos.append(info)
        return observations, rewards.astype(np.float32), dones, infos
