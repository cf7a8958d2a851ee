"""Several remote environments as a gymnasium.vector.VectorEnv. Needs the extra `gymnasium`.

import gymnasium
envs = gymnasium.make_vec(
    "dm_env_rpc_client.gymnasium:Remote-v0", num_envs=16, address="localhost:50051"
)

`BatchedEnvironment` is the same for dm_env and does not need Gymnasium.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import dm_env
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client.adaptors.gymnasium import check_reward_spec, is_terminated
from dm_env_rpc_client.adaptors.gymnasium_batches import ActionBatch, ObservationBatch
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.batched import BatchedEnvironment, check_ids
from dm_env_rpc_client.environment.pool import NO_ACTION, EnvironmentPool, Settings
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import State

__all__ = ["BatchedEnvironment", "RemoteVectorEnv"]

Array: TypeAlias = npt.NDArray[Any]
Results: TypeAlias = tuple[Any, Array, Array, Array, dict[str, Any]]


class RemoteVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Array]):
    """Steps N remote environments at once, from one thread.

    The spaces are those of `GymnasiumEnv`, batched as Gymnasium does. Episodes are
    terminated if the server sends TERMINATED and truncated if it sends INTERRUPTED.
    `info["discount"]` is float64 [N], with the mask `info["_discount"]`: a step that begins an
    episode has no discount.

    `step` waits for all environments. With `send` and `recv` fast environments do not wait for
    slow ones: `send` starts steps, `recv` returns them as their answers arrive.

    If environments fail, the answers of all others have been read.

    Args:
      address: one address, or several, over which the environments are distributed in turn.
      num_envs: the number of environments, N; None for one at each address.
      create_world_settings: settings with which the world of each environment is created:
        for all, one for each, or a function of an environment's index.
      join_world_settings: the same for joining it.
      autoreset_mode: `NEXT_STEP`: the step after the end of an episode ignores its action and
        begins the next, as dm_env does. `SAME_STEP`: the step that ends an episode begins the
        next, and its last observation and info are `info["final_obs"]` and
        `info["final_info"]`. `DISABLED`: episodes begin only with `reset`, with the option
        `reset_mask`.
      copy: False to return the same arrays of observations in every step, overwritten by each.
      unwrap_single: False to keep the mappings around a single action or observation.
      seed_setting: the name of the setting that takes the seed of a reset; None to not send
        seeds.
      render_mode: None; rendering is not supported.
      **make_kwargs: for `dm_env_rpc_client.make`, such as `request_timeout` or
        `requested_observations`.

    Raises:
      SpecError: the environments do not have the same specs, or there is no space for them.
      EnvironmentsFailedError: some could not be opened. No world is left on the servers.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "render_modes": [],
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        address: str | Sequence[str],
        num_envs: int | None = None,
        create_world_settings: Settings = NO_SETTINGS,
        join_world_settings: Settings = NO_SETTINGS,
        *,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
        copy: bool = True,
        unwrap_single: bool = True,
        seed_setting: str | None = "seed",
        render_mode: str | None = None,
        **make_kwargs: Any,
    ):
        super().__init__()
        if render_mode is not None:
            raise SpecError(f"RemoteVectorEnv does not render, got render_mode {render_mode!r}")
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = {**self.metadata, "autoreset_mode": self._mode}
        self._copy = copy
        self._unwrap_single = unwrap_single
        self._seed_setting = seed_setting
        self._pool = EnvironmentPool(
            address, num_envs, create_world_settings, join_world_settings, **make_kwargs
        )
        try:
            self._read_specs()
        except BaseException:
            self._pool.close()
            raise

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Any, dict[str, Any]]:
        """Begins an episode in every environment, or in some of them.

        Args:
          seed: sent as the setting `seed_setting`: one for each environment, or the first of N
            consecutive ones.
          options: settings of the next episodes, by name. With `reset_mask`, bool [N], only
            the environments for which it is True are reset.

        Returns:
          The observations [N, ...], unchanged for environments that were not reset, and no
          infos.

        Raises:
          SpecError: a setting cannot be sent, or changes the specs; a wrong mask or number of
            seeds.
          gymnasium.error.ResetNeeded: the first reset does not include all environments.
          EnvironmentsFailedError: some failed.
        """
        settings = dict(options or {})
        mask = self._mask(settings.pop("reset_mask", None))
        if not np.all(mask | self._has_begun):
            raise gymnasium.error.ResetNeeded("the first reset must include all environments")
        ids = np.flatnonzero(mask).tolist()
        seeds = self._seeds(seed)
        each = {
            index: settings
            if seeds[index] is None or self._seed_setting is None
            else {self._seed_setting: seeds[index], **settings}
            for index in ids
        }
        self._pool.reset(each, self._put_first, self._check_specs)
        return self._observation_batch.rows(None, self._copy), {}

    def step(self, actions: Any) -> Results:
        """Steps every environment and waits for all of them.

        Args:
          actions: an element of `action_space`.

        Returns:
          Observations [N, ...], rewards float64 [N], terminations bool [N], truncations bool
          [N] and infos.

        Raises:
          SpecError: an action does not conform; nothing was sent to any environment.
          gymnasium.error.ResetNeeded: an environment was never reset, or its episode has ended
            and autoreset is disabled.
          EnvironmentsFailedError: some failed; the others have taken their step.
        """
        ids = list(range(self.num_envs))
        self._pool.step(self._actions(actions, ids), self._put)
        return self._results(None)

    def send(self, actions: Any, env_ids: Sequence[int] | Array | None = None) -> None:
        """Steps some environments without waiting for them.

        Args:
          actions: rows of an element of `action_space`, one for each of `env_ids`.
          env_ids: the indices of M environments without a step under way; None for all.

        Raises:
          As `step`.
        """
        ids = range(self.num_envs) if env_ids is None else env_ids
        self._pool.send(self._actions(actions, check_ids(ids, self.num_envs)))

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None
    ) -> tuple[Any, Array, Array, Array, dict[str, Any], Array]:
        """Waits for steps that `send` started.

        Args:
          min_envs: how many environments to wait for.
          max_envs: how many to return at most; None for all that have arrived by then. They
            are in the order of arrival.

        Returns:
          What `step` returns, for M environments, and their indices, int64 [M].

        Raises:
          SpecError: fewer than `min_envs` have a step under way.
          EnvironmentsFailedError: some failed. The others can still be received.
        """
        ids = np.array(self._pool.receive(min_envs, max_envs, self._put), np.int64)
        return (*self._results(ids), ids)

    def render(self) -> None:
        """Renders nothing."""

    def close_extras(self, **kwargs: Any) -> None:
        """Leaves and destroys all worlds and closes the connections; raises nothing."""
        # Gymnasium 1.1 also calls this for an environment whose constructor failed.
        if hasattr(self, "_pool"):
            self._pool.close()

    def _read_specs(self) -> None:
        environment = self._pool.environments[0]
        self.num_envs = len(self._pool)
        check_reward_spec(environment.reward_spec())
        self._action_batch = ActionBatch(
            environment.action_spec(), self.num_envs, self._unwrap_single, "action"
        )
        self._observation_batch = ObservationBatch(
            environment.observation_spec(), self.num_envs, self._unwrap_single, "observation"
        )
        self.single_action_space = self._action_batch.single_space
        self.action_space = self._action_batch.space
        self.single_observation_space = self._observation_batch.single_space
        self.observation_space = self._observation_batch.space
        discount = environment.discount_spec()
        dtype = discount.dtype if discount.shape else np.float64
        self._discounts = np.zeros((self.num_envs, *discount.shape), dtype)
        self._has_discount = np.zeros(self.num_envs, np.bool_)
        self._rewards = np.zeros(self.num_envs, np.float64)
        self._terminations = np.zeros(self.num_envs, np.bool_)
        self._truncations = np.zeros(self.num_envs, np.bool_)
        # The last observation of each environment whose episode has ended in this step.
        self._final_observations = np.full(self.num_envs, None, object)
        self._is_final = np.zeros(self.num_envs, np.bool_)
        self._has_begun = np.zeros(self.num_envs, np.bool_)
        self._is_restarting = np.zeros(self.num_envs, np.bool_)

    def _check_specs(self) -> None:
        environment = self._pool.environments[0]
        if (
            environment.action_spec() != self._action_batch.specs
            or environment.observation_spec() != self._observation_batch.specs
        ):
            raise SpecError(
                "the specs of the environments have changed, but the spaces of a Gymnasium "
                "environment cannot change; make another environment with these settings"
            )

    def _mask(self, mask: Any) -> Array:
        if mask is None:
            return np.ones(self.num_envs, np.bool_)
        if (
            not isinstance(mask, np.ndarray)
            or mask.dtype != np.bool_
            or mask.shape != (self.num_envs,)
            or not mask.any()
        ):
            raise SpecError(
                f"reset_mask is a bool array [{self.num_envs}] with at least one True, got {mask!r}"
            )
        return mask

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            super().reset(seed=int(seed))
            return [int(seed) + index for index in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise SpecError(f"expected {self.num_envs} seeds, got {len(seed)}")
        return seed

    def _actions(self, actions: Any, ids: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        self._pool.check_idle(ids)
        environments = self._pool.environments
        idle = {index for index in ids if environments[index].state is not State.RUNNING}
        never = [index for index in ids if not self._has_begun[index]]
        if never or (idle and self._mode is AutoresetMode.DISABLED):
            raise gymnasium.error.ResetNeeded(
                f"no episode is running in environments {never or sorted(idle)}: call reset(), "
                "with the option reset_mask for these alone"
            )
        rows = self._action_batch.split(actions, len(ids))
        self._is_restarting[ids] = False  # Left over if an episode failed to begin.
        return {
            index: NO_ACTION if index in idle else row for index, row in zip(ids, rows, strict=True)
        }

    def _put_first(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Stores a TimeStep after a reset, which drops steps that were under way."""
        self._is_restarting[index] = False
        return self._put(index, timestep)

    def _put(self, index: int, timestep: dm_env.TimeStep) -> bool:
        """Stores a TimeStep; returns whether to begin the next episode at once."""
        self._has_begun[index] = True
        if self._is_restarting[index]:
            # The rest of the row belongs to the step that ended the episode.
            self._is_restarting[index] = False
            self._observation_batch.put(index, timestep.observation)
            return False
        is_last = timestep.step_type is dm_env.StepType.LAST
        terminated = is_last and is_terminated(self._pool.environments[index], timestep)
        self._rewards[index] = 0.0 if timestep.reward is None else timestep.reward
        self._terminations[index] = terminated
        self._truncations[index] = is_last and not terminated
        self._has_discount[index] = timestep.discount is not None
        self._discounts[index] = 0 if timestep.discount is None else timestep.discount
        if is_last and self._mode is AutoresetMode.SAME_STEP:
            self._is_final[index] = self._is_restarting[index] = True
            self._final_observations[index] = self._observation_batch.single(timestep.observation)
            return True
        self._is_final[index] = False
        self._final_observations[index] = None
        self._observation_batch.put(index, timestep.observation)
        return False

    def _results(self, ids: Array | None) -> Results:
        which = slice(None) if ids is None else ids
        return (
            self._observation_batch.rows(ids, self._copy),
            self._rewards[which].copy(),
            self._terminations[which].copy(),
            self._truncations[which].copy(),
            self._infos(which),
        )

    def _infos(self, which: slice | Array) -> dict[str, Any]:
        """Returns the infos of environments in Gymnasium's form: `key`, and the mask `_key`."""
        has_discount, is_final = self._has_discount[which], self._is_final[which]
        discounts = self._discounts[which]
        infos = _info("discount", discounts, has_discount & ~is_final)
        if is_final.any():
            finals = self._final_observations[which].copy()
            info = _info("discount", discounts, is_final)
            infos |= {**_info("final_obs", finals, is_final), **_info("final_info", info, is_final)}
        return infos


def _info(key: str, values: Any, mask: Array) -> dict[str, Any]:
    """Returns values where a mask is true, zeros elsewhere; nothing if it is false everywhere."""
    if not mask.any():
        return {}
    if isinstance(values, np.ndarray) and values.dtype != object:
        values = np.where(mask.reshape(mask.shape + (1,) * (values.ndim - 1)), values, 0)
    return {key: values, f"_{key}": mask.copy()}
