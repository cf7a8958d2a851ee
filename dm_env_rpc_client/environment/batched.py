"""Several remote environments combined into one dm_env.Environment with stacked arrays."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client import arguments
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS, Environment
from dm_env_rpc_client.environment.gymnasium_names import DmEnvNames, takes_settings
from dm_env_rpc_client.environment.made_again import MadeByArguments
from dm_env_rpc_client.environment.many.open_rows import described, open_worlds
from dm_env_rpc_client.environment.many.pool_servers import Addresses
from dm_env_rpc_client.environment.many.row_settings import Settings, for_each
from dm_env_rpc_client.environment.many.rows import Rows, RowSpecs
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.timesteps import ACTION, OBSERVATION
from dm_env_rpc_client.tensors import array_kinds, nesting
from dm_env_rpc_client.tensors.columns import batch_spec

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from dm_env_rpc_client.environment.make_options import BatchKeywords

__all__ = ["BatchedEnvironment"]


class BatchedEnvironment(DmEnvNames, MadeByArguments, Environment):
    """N remote environments stepped together from one thread.

    Every field of a TimeStep and every action is stacked along a new first axis. Each environment
    has its own sequences: `step_type` is an array [N], and so are `timestep.first()`, `.mid()` and
    `.last()`. A row that follows a LAST row is FIRST, and its action is ignored. A FIRST row has
    reward 0 and discount 1.

    `step` waits for all environments. With `send` and `recv`, fast environments do not wait for
    slow environments: `send` starts steps, and `recv` returns their results as the answers arrive.

    If some environments fail, the answers of all others have been read, and `reset` might make the
    environments work again.

    Args:
      addresses: one address, or several, over which the environments are distributed in turn. An
        address can also specify a server to launch, as for `make`. A single server is launched once
        for all environments; each server in a list is launched separately.
      num_envs: the number of environments, N; None for one at each address, or for all rows of
        a served batch, such as a vector environment.
      create_world_settings: settings for creating the worlds: one mapping for all environments, a
        sequence with one mapping per environment, or a function of an environment's index.
      join_world_settings: settings for joining the worlds, in the same form.
      copy: False to return the same arrays from every step; each step overwrites their contents.
      nested_tensors: False for flat dictionaries with the periods left in the names.
      unwrap_single: whether actions are one array [N, ...], not a mapping, if they are one array
        in the environments at the server; likewise for observations. See `DmEnvAdaptor`.
      num_batches: the number of batches at each server that makes batches; None for as few as the
        server allows, 0 for a separate stream for each environment. A batch is a world of several
        environments that steps them with one request and one answer. See the guide "Serve a
        batch".
      arrays: "numpy", "torch" or "jax": the library of the arrays in TimeSteps; see `DmEnvAdaptor`.
      device: the device of these arrays; None for the library's default.
      **make_kwargs: arguments of `make`, such as `request_timeout`, `requested_observations` or
        `restart`. With `restart`, the row of a lost environment is LAST, with its last
        observation, and then FIRST.

    Raises:
      SpecError: an argument has a wrong type or is out of range, and nothing was sent or started;
        or the environments do not have the same specs.
      EnvironmentsFailedError: some environments could not be opened. No world is left on the
        servers.
    """

    _gymnasium_call = (
        'gymnasium.make_vec("dm_env_rpc_client.gymnasium:Remote-v0", num_envs=..., address=...)'
    )

    def __init__(
        self,
        addresses: Addresses,
        num_envs: int | None = None,
        create_world_settings: Settings = NO_SETTINGS,
        join_world_settings: Settings = NO_SETTINGS,
        *,
        copy: bool = True,
        nested_tensors: bool = True,
        unwrap_single: bool = False,
        num_batches: int | None = None,
        arrays: str = "numpy",
        device: Any = None,
        **make_kwargs: Unpack[BatchKeywords],
    ):
        self._copy = arguments.flag("copy", copy)
        self._kind = array_kinds.named(arrays, device)
        if not copy and self._kind.library != "numpy":
            raise SpecError(
                f"copy=False cannot be used with {arrays} arrays, because they might share "
                "memory that the next step overwrites; use copy=True"
            )
        self._nested_tensors = arguments.flag("nested_tensors", nested_tensors)
        self._unwrap_single = arguments.flag("unwrap_single", unwrap_single)
        self._worlds = open_worlds(
            addresses,
            num_envs,
            create_world_settings,
            join_world_settings,
            num_batches=num_batches,
            **make_kwargs,
        )
        self._use(self._worlds.specs())
        try:
            self._rows = Rows(self._specs, self.num_envs, copy)
        except BaseException:
            # No caller has the environments yet.
            self._worlds.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return described(
            type(self).__name__, self._worlds, self._specs.actions, self._specs.observations
        )

    @property
    def num_envs(self) -> int:
        """The number of environments."""
        return self._worlds.num_envs

    @property
    def restarts(self) -> int:
        """The number of environment restarts, which is always 0 without the argument `restart`."""
        return self._worlds.restarts

    @takes_settings
    def reset(self, settings: Settings | None = None) -> dm_env.TimeStep:
        """Begin a new sequence in every environment.

        Args:
          settings: settings of the next sequences: one mapping for all environments, a sequence
            with one mapping per environment, or a function of an environment's index. They can
            change the specs, but must change them equally for all environments.

        Returns:
          A TimeStep whose rows are all FIRST.

        Raises:
          SpecError: a setting cannot be sent, or the specs of the environments now differ.
          EnvironmentsFailedError: some environments failed.
        """
        # One mapping is for all environments, a sequence has one for each.
        each = for_each(self.num_envs, {} if settings is None else settings, "settings")
        worlds = self._worlds
        return worlds.exchange(
            self._timestep, worlds.reset, dict(enumerate(each)), self._rows, self._adopt_specs
        )

    def step(self, action: Any) -> dm_env.TimeStep:
        """Step every environment and wait for all of them.

        Args:
          action: arrays [N, ...] by name, nested as in `action_spec` or by flat name; one array
            if `action_spec` is one spec.

        Returns:
          The TimeStep: `step_type` int64 [N], `reward` and `discount` [N, ...], and
          `observation` of arrays [N, ...], as in `observation_spec`.

        Raises:
          SpecError: an action does not conform; nothing was sent to any environment.
          EnvironmentsFailedError: some environments failed; the others have taken their step.
        """
        return self._step(action, ())

    def send(self, action: Any, env_ids: Sequence[int] | npt.NDArray[Any] | None = None) -> None:
        """Step some environments without waiting for them.

        Args:
          action: arrays [M, ...] by name, a row for each of `env_ids`.
          env_ids: the indices of M environments without a pending step; None for all. The rows
            of a batch step together, so the indices must cover whole batches (see `num_batches`).

        Raises:
          SpecError: an action does not conform, an environment has a pending step, or the indices
            cover only part of a batch; nothing was sent to any environment.
          EnvironmentsFailedError: nothing can be sent to some environments.
        """
        ids = range(self.num_envs) if env_ids is None else env_ids
        self._worlds.send(self._actions(action), check_ids(ids, self.num_envs))

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None
    ) -> tuple[dm_env.TimeStep, npt.NDArray[np.int64]]:
        """Wait for steps that `send` started.

        Args:
          min_envs: the number of environments to wait for.
          max_envs: the maximum number to return, in the order of arrival; None for all that have
            arrived by then.

        Returns:
          The TimeStep of M environments, every field [M, ...], and their indices, int64 [M].

        Raises:
          SpecError: fewer than `min_envs` environments have a pending step.
          EnvironmentsFailedError: some environments failed. The others can still be received.
        """
        worlds = self._worlds
        return worlds.exchange(self._received, worlds.receive, min_envs, max_envs, self._rows)

    def action_spec(self) -> Any:
        """Return the action specs by name, each with the shape [N, ...]."""
        return self._shaped(self._batched(self._specs.actions), ACTION)

    def observation_spec(self) -> Any:
        """Return the observation specs by name, each with the shape [N, ...].

        Observations of variable length are arrays of objects, [N].
        """
        return self._shaped(self._batched(self._specs.observations), OBSERVATION)

    def reward_spec(self) -> specs.Array:
        """Return the spec of the reward, with the shape [N, ...]."""
        return batch_spec(self._specs.reward, self.num_envs)

    def discount_spec(self) -> specs.Array:
        """Return the spec of the discount, with the shape [N, ...]."""
        return batch_spec(self._specs.discount, self.num_envs)

    def close(self) -> None:
        """Leave and destroy all worlds, without raising errors. A second call does nothing."""
        self._worlds.close()

    def _step(self, action: Any, idle: Collection[int]) -> dm_env.TimeStep:
        """Take a step in which the rows in `idle` begin a sequence regardless of their actions."""
        worlds = self._worlds
        actions = self._actions(action)
        return worlds.exchange(self._timestep, worlds.step, actions, self._rows, idle)

    def _single_specs(self) -> tuple[Any, Any, specs.Array, specs.Array]:
        """Return the specs of one environment: actions, observations, reward and discount."""
        own = self._specs
        return (
            self._shaped(dict(own.actions), ACTION),
            self._shaped(dict(own.observations), OBSERVATION),
            own.reward,
            own.discount,
        )

    def _adopt_specs(self, may_differ: bool) -> None:
        if may_differ:
            self._use(self._worlds.specs())
            self._rows.adopt(self._specs)

    def _use(self, own: RowSpecs) -> None:
        self._specs = own
        # Determined once, because looking at all names in each step takes 3 us.
        self._has_levels = nesting.has_levels((*own.actions, *own.observations))

    def _actions(self, action: Any) -> Mapping[str, Any]:
        names = self._specs.actions.keys()
        if self._kind.library != "numpy":
            action = array_kinds.to_numpy(action, ACTION)
        # The usual action has flat names already, and needs no copy of the mapping.
        if type(action) is dict and action.keys() <= names:
            return action
        if self._unwrap_single and names == {ACTION} and not isinstance(action, Mapping):
            action = {ACTION: action}
        if not isinstance(action, Mapping):
            raise SpecError(
                f"an action must be a mapping of names to arrays, got {type(action).__name__}; "
                f"actions: {', '.join(map(repr, names)) or 'none'}"
            )
        return nesting.flatten_dict(action, nesting.SEPARATOR, strict=False)

    def _timestep(self, ids: npt.NDArray[np.int64] | None = None) -> dm_env.TimeStep:
        rows = self._rows
        # Without `copy`, the caller gets the arrays that the next step overwrites.
        fields = rows.step_type, rows.reward, rows.discount
        # Indexing with an array copies, so these rows are the caller's already.
        if ids is not None:
            fields = rows.step_type[ids], rows.reward[ids], rows.discount[ids]
        elif self._copy:
            fields = rows.step_type.copy(), rows.reward.copy(), rows.discount.copy()
        timestep = dm_env.TimeStep(*fields, self._shaped(rows.lend(ids), OBSERVATION))
        if self._kind.library == "numpy":
            return timestep
        converted: dm_env.TimeStep = array_kinds.from_numpy(timestep, self._kind, "the TimeStep")
        return converted

    def _received(
        self, ids: npt.NDArray[np.int64]
    ) -> tuple[dm_env.TimeStep, npt.NDArray[np.int64]]:
        return self._timestep(ids), ids

    def _batched(self, single: Mapping[str, specs.Array]) -> dict[str, Any]:
        return {name: batch_spec(spec, self.num_envs) for name, spec in single.items()}

    def _shaped(self, flat: dict[str, Any], single: str) -> Any:
        """Return the specs or values in `flat` nested, flat or unwrapped, as the caller requested.

        An array named `single` can be unwrapped, that is, used without a mapping around it.
        """
        if self._unwrap_single and flat.keys() == {single}:
            return flat[single]
        is_nested = self._nested_tensors and self._has_levels
        return nesting.nest(flat, nesting.SEPARATOR) if is_nested else flat


def check_ids(env_ids: Sequence[int] | npt.NDArray[Any], count: int) -> list[int]:
    """Return environment indices as ints, or raise SpecError if any of them is invalid."""
    # Duplicates would step one environment twice with one action; negative indices are a mistake.
    ids = np.asarray(env_ids)
    if (
        ids.ndim != 1
        or ids.size == 0
        or ids.dtype.kind not in "iu"
        or len(set(ids.tolist())) != ids.size
        or not 0 <= ids.min() <= ids.max() < count
    ):
        raise SpecError(
            f"env_ids must be a one-dimensional sequence of distinct indices from 0 to "
            f"{count - 1}, got {env_ids!r}"
        )
    return [int(index) for index in ids]
