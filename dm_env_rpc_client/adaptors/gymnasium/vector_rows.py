"""The last step of each of several environments, in the form of Gymnasium's vector environments.

`VectorRows` are those of dm_env's environments, and of Gymnasium's on streams of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
from dm_env import specs
from gymnasium.vector import AutoresetMode, VectorEnv

from dm_env_rpc_client.adaptors.gymnasium.batches import ObservationBatch, ProxyObservationBatch
from dm_env_rpc_client.adaptors.gymnasium.episode_rows import Array, EpisodeRows
from dm_env_rpc_client.adaptors.gymnasium.extras import (
    EXTRAS,
    FINAL_INFO,
    FINAL_OBSERVATION,
    Extras,
    RowInfo,
    extras_of,
)
from dm_env_rpc_client.adaptors.gymnasium.from_dm_env import info_of, is_terminated
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.many.rows import rows_at
from dm_env_rpc_client.errors import EnvironmentsFailedError, SpecError
from dm_env_rpc_client.protocol.batches import STEP_TYPE
from dm_env_rpc_client.protocol.mid_steps import MidSteps
from dm_env_rpc_client.protocol.timesteps import DISCOUNT, REWARD

_FIRST, _MID, _LAST = map(int, dm_env.StepType)

__all__ = ["VectorRows"]


class VectorRows(EpisodeRows):
    """The rows: `put` fills one, `put_mid_steps` and `put_rows` many at once.

    Args:
      environments: the environments, one for each row; those of batched worlds are not asked.
      count: the number of rows.
      discount: the spec of the discount of one row.
      observations: takes the observations.
      is_proxy: whether these are Gymnasium environments at the servers, which send their own infos.
      mode: when episodes begin.
    """

    def __init__(
        self,
        environments: Sequence[DmEnvAdaptor],
        count: int,
        discount: specs.Array,
        observations: ObservationBatch | ProxyObservationBatch,
        is_proxy: bool,
        mode: AutoresetMode,
    ):
        super().__init__(count, mode)
        self._environments = environments
        self._observations = observations
        self.observations = observations.rows
        self._is_proxy = is_proxy
        # Infos are stacked as Gymnasium does. A method of the caller would be a reference cycle,
        # which would delay the closing of an environment that was forgotten.
        stack: VectorEnv[Any, Any, Any] = VectorEnv()
        stack.num_envs = count
        self._add_info = stack._add_info
        # The infos of Gymnasium environments, and those of the steps that ended an episode.
        self._own_infos: list[dict[str, Any]] = [{}] * count
        self._final_infos: list[dict[str, Any]] = [{}] * count
        dtype = discount.dtype if discount.shape else np.float64
        self._discounts = np.zeros((count, *discount.shape), dtype)
        self._has_discount = np.zeros(count, np.bool_)
        # The last observation of each environment whose episode has ended in this step.
        self._final_observations = np.full(count, None, object)
        self._is_final = np.zeros(count, np.bool_)
        self._was_lost = np.zeros(count, np.bool_)

    def put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Stores a TimeStep; returns whether to begin the next episode at once."""
        self.has_begun[index] = True
        was_lost = self._environments[index].interruption is not None
        is_last = timestep.step_type is dm_env.StepType.LAST
        terminated = is_last and is_terminated(self._environments[index], timestep)
        begins_again = self._put(index, timestep, was_lost, terminated)
        self._mid_count += timestep.step_type is dm_env.StepType.MID
        return begins_again

    def put_lost(self, index: int, timestep: dm_env.TimeStep) -> None:
        """Stores the last TimeStep of an environment whose world was lost."""
        self.has_begun[index] = True
        self._put(index, timestep, True, False)

    def put_rows(self, at: Any, taken: Any, timestep: dm_env.TimeStep) -> None:
        """Stores the rows of a world; see `BatchConsumer`."""
        assert isinstance(self._observations, ObservationBatch), "others are in WorldRows"
        rows = np.arange(self.count)[slice(None) if at is None else at]
        which = slice(None) if taken is None else taken
        observation = timestep.observation
        kinds = observation[STEP_TYPE][which]
        is_first, is_last = kinds == _FIRST, kinds == _LAST
        self.has_begun[rows] = True
        if self._restarting and self._restarting.issuperset(rows.tolist()):
            # The rest of these rows belongs to the step that ended the episode.
            self._restarting.difference_update(rows.tolist())
            self._observations.put_rows(at, which, observation)
            return
        discounts = np.zeros_like(self._discounts[rows])
        if timestep.discount is not None:
            discounts[~is_first] = timestep.discount[which][~is_first]
        self._was_lost[rows] = False
        self._rewards[rows] = 0.0 if timestep.reward is None else timestep.reward[which]
        axes = tuple(range(1, discounts.ndim))
        self._terminations[rows] = terminated = is_last & ~np.any(discounts, axis=axes)
        self._truncations[rows] = is_last & ~terminated
        self._has_discount[rows] = ~is_first
        self._discounts[rows] = discounts
        self._final_observations[rows] = None
        self._is_final[rows] = False
        if self.has_to_begin and is_last.any():
            self._is_final[rows] = is_last
            self._restarting.difference_update(rows.tolist())
            self._restarting.update(rows[is_last].tolist())
            for place in np.flatnonzero(is_last):
                own = {name: values[which][place] for name, values in observation.items()
                       if np.ndim(values) > 0}  # fmt: skip
                self._final_observations[rows[place]] = self._observations.single(own)
        self._observations.put_rows(at, which, observation)
        self._mid_count += int(np.count_nonzero(kinds == _MID))

    def _put(self, index: int, timestep: dm_env.TimeStep, was_lost: bool, terminated: bool) -> bool:
        if was_lost:
            extras = Extras({"restarted": True}, False)
        elif not self._is_proxy:
            extras = Extras({}, False)
        else:
            extras = extras_of(timestep.observation)
        self._own_infos[index] = extras.info
        if index in self._restarting:
            # The rest of the row belongs to the step that ended the episode.
            self._restarting.remove(index)
            self._observations.put(index, timestep.observation)
            return False
        self._was_lost[index] = was_lost
        is_last = timestep.step_type is dm_env.StepType.LAST
        self._rewards[index] = 0.0 if timestep.reward is None else float(timestep.reward)
        self._terminations[index] = terminated
        self._truncations[index] = extras.is_truncated or (is_last and not terminated)
        self._has_discount[index] = timestep.discount is not None
        self._discounts[index] = 0 if timestep.discount is None else timestep.discount
        if is_last and self.has_to_begin:
            self._is_final[index] = True
            self._restarting.add(index)
            self._final_observations[index] = self._observations.single(timestep.observation)
            self._final_infos[index] = extras.info
            return True
        self._is_final[index] = False
        self._final_observations[index] = None
        self._observations.put(index, timestep.observation)
        return False

    def put_mid_steps(self, indices: list[int], steps: MidSteps) -> None:
        """Stores steps in the middle of episodes; no episode begins after them."""
        at = rows_at(indices)
        self.has_begun[at] = True
        self._was_lost[at] = self._is_final[at] = self._terminations[at] = False
        self._truncations[at] = False
        self._final_observations[at] = None
        self._has_discount[at] = True
        steps.put(REWARD, self._rewards, at, 0.0)
        steps.put(DISCOUNT, self._discounts, at, 1.0)
        if self._is_proxy:
            for index, text in zip(indices, steps.values(EXTRAS), strict=True):
                extras = extras_of({EXTRAS: text})
                self._own_infos[index] = extras.info
                self._truncations[index] = extras.is_truncated
        self._observations.put_mid_steps(indices, at, steps)
        # Last, for an error above is followed by a second call.
        self._mid_count += len(indices)

    def infos(self, ids: Array | None) -> dict[str, Any]:
        """Returns the infos of the last step: by `key`, and the mask of rows by `_key`.

        Args:
          ids: the environments; None for all.
        """
        if self._is_proxy:
            rows = range(self.count) if ids is None else ids.tolist()
            return self._proxy_infos(rows, is_selection=ids is not None)
        which = slice(None) if ids is None else ids
        if self._mid_count == self.count:
            discounts = self._discounts[which]
            return {"discount": discounts.copy(), "_discount": np.ones(len(discounts), np.bool_)}
        has_discount, is_final = self._has_discount[which], self._is_final[which]
        discounts = self._discounts[which]
        was_lost = self._was_lost[which]
        infos = _info("discount", discounts, has_discount & ~is_final)
        infos |= _info("restarted", was_lost.copy(), was_lost & ~is_final)
        if is_final.any():
            finals = self._final_observations[which].copy()
            info = _info("discount", discounts, is_final)
            info |= _info("restarted", was_lost.copy(), was_lost & is_final)
            infos |= {**_info("final_obs", finals, is_final), **_info("final_info", info, is_final)}
        return infos

    def first_infos(self, ids: Sequence[int]) -> dict[str, Any]:
        """Returns the infos of Gymnasium environments that were reset; others have none then."""
        return self._proxy_infos(ids) if self._is_proxy else {}

    def _proxy_infos(self, ids: Sequence[int], is_selection: bool = False) -> dict[str, Any]:
        """Returns the infos of Gymnasium environments, in the rows of their indices.

        If `ids` are a selection, their rows are in its order, and there are no others.

        Raises:
          EnvironmentsFailedError: Gymnasium cannot put the info of one beside those of the others.
        """
        infos: dict[str, Any] = {}
        failures: dict[int, Exception] = {}
        for position, index in enumerate(ids):
            row = position if is_selection else index
            try:
                if self._is_final[index]:
                    final = {
                        FINAL_OBSERVATION: self._final_observations[index],
                        FINAL_INFO: self._final_infos[index],
                    }
                    infos = self._add_info(infos, final, row)
                if self._own_infos[index]:
                    infos = self._add_info(infos, self._own_infos[index], row)
            except Exception as error:  # Of another shape than others, or too large an integer.
                text = f"{type(error).__name__}: {error}"
                failures[index] = SpecError(f"its info does not fit into those of all: {text}")
        if failures:
            where = {index: self._environments[index].connection.address for index in failures}
            raise EnvironmentsFailedError(failures, where)
        return _first_rows(infos, len(ids)) if is_selection else infos

    def each_info(self) -> list[RowInfo]:
        """Returns the infos of the last step of each environment, or of its reset."""
        if self._is_proxy:
            own: Sequence[dict[str, Any]] = self._own_infos
            final: Sequence[dict[str, Any]] = self._final_infos
        else:
            # After the end of an episode they are of the step, not of the reset.
            own = final = [self._info_of(index) for index in range(self.count)]
        return [
            RowInfo(
                own[index] if self._is_proxy else {},
                final[index],
                self._final_observations[index],
            )
            if self._is_final[index]
            else RowInfo(own[index])
            for index in range(self.count)
        ]

    def _info_of(self, index: int) -> dict[str, Any]:
        """Returns the info of an environment that has none of its own; see `GymnasiumEnv`."""
        info = info_of(self._discounts[index].copy() if self._has_discount[index] else None)
        return {**info, "restarted": True} if self._was_lost[index] else info


def _first_rows(infos: Mapping[str, Any], count: int) -> dict[str, Any]:
    return {
        key: _first_rows(value, count) if isinstance(value, dict) else value[:count]
        for key, value in infos.items()
    }


def _info(key: str, values: Any, mask: Array) -> dict[str, Any]:
    """Returns values where a mask is true, zeros elsewhere; nothing if it is false everywhere."""
    if not mask.any():
        return {}
    if isinstance(values, np.ndarray) and values.dtype != object:
        values = np.where(mask.reshape(mask.shape + (1,) * (values.ndim - 1)), values, 0)
    return {key: values, f"_{key}": mask.copy()}
