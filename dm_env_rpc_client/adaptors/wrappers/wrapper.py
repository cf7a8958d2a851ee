"""What all wrappers have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import numpy.typing as npt
import tree
from dm_env import specs

from dm_env_rpc_client.environment.gymnasium_names import DmEnvNames, takes_settings
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import nesting

Array = npt.NDArray[Any]


class Wrapper(DmEnvNames, dm_env.Environment):
    """An environment that passes everything on to another one.

    A subclass overrides `adopt_specs`, `convert_action` and `convert_timestep`. The wrapped
    environment is any `dm_env.Environment`, or a batch: one with `num_envs`, `send` and `recv`, as
    `BatchedEnvironment` has them. Other attributes are not passed on, because steps that are taken
    with them would not be converted; they are those of `environment`.

    Args:
      environment: the environment. `close` closes it.

    Attributes:
      environment: the wrapped environment.
      num_envs: the number of environments of a batch; None for a single environment.
    """

    def __init__(self, environment: dm_env.Environment):
        self.environment = environment
        self.num_envs: int | None = getattr(environment, "num_envs", None)
        self.adopt_specs()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.environment!r}>"

    def adopt_specs(self) -> None:
        """Prepares for the specs of the wrapped environment, which a reset may have changed.

        Raises:
          SpecError: the specs do not fit the wrapper.
        """

    def convert_action(self, action: Any) -> Any:
        """Returns the action of the wrapped environment; rows of actions if it is a batch."""
        return action

    def convert_timestep(
        self, timestep: dm_env.TimeStep, env_ids: npt.NDArray[np.int64] | None
    ) -> dm_env.TimeStep:
        """Returns the TimeStep of this environment.

        Args:
          timestep: that of the wrapped environment.
          env_ids: of which environments of the batch it has rows; None for all, and for a single
            environment.
        """
        return timestep

    @takes_settings
    def reset(self, settings: Any = None) -> dm_env.TimeStep:
        """Begins a new sequence.

        Args:
          settings: passed on to the wrapped environment's `reset`, if there are any.

        Returns:
          A FIRST TimeStep.
        """
        timestep = self.environment.reset() if not settings else self.environment.reset(settings)
        self.adopt_specs()
        return self.convert_timestep(timestep, None)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step.

        Args:
          action: conforms to `action_spec`; a remote environment also takes parts of it, and flat
            names.

        Returns:
          A TimeStep that conforms to the specs.

        Raises:
          SpecError: the action does not conform; nothing was sent.
          Otherwise as the wrapped environment.
        """
        return self.convert_timestep(self.environment.step(self.convert_action(action)), None)

    def send(self, action: Any, env_ids: Sequence[int] | Array | None = None) -> None:
        """Steps some environments of a batch without waiting; see `BatchedEnvironment.send`."""
        self._batch().send(self.convert_action(action), env_ids)

    def recv(
        self, min_envs: int = 1, max_envs: int | None = None
    ) -> tuple[dm_env.TimeStep, npt.NDArray[np.int64]]:
        """Waits for steps that `send` started; see `BatchedEnvironment.recv`."""
        timestep, ids = self._batch().recv(min_envs, max_envs)
        return self.convert_timestep(timestep, ids), ids

    def action_spec(self) -> Any:
        """Returns the specs of the actions."""
        return self.environment.action_spec()

    def observation_spec(self) -> Any:
        """Returns the specs of the observations."""
        return self.environment.observation_spec()

    def reward_spec(self) -> Any:
        """Returns the spec of the reward."""
        return self.environment.reward_spec()

    def discount_spec(self) -> Any:
        """Returns the spec of the discount."""
        return self.environment.discount_spec()

    def close(self) -> None:
        """Closes the wrapped environment."""
        self.environment.close()

    def _batch(self) -> Any:
        if self.num_envs is None:
            raise SpecError("send and recv are for a batch of environments; use step")
        return self.environment

    @property
    def _batch_axes(self) -> int:
        """How many axes of an array are those of the batch."""
        return 0 if self.num_envs is None else 1


def map_named(function: Callable[..., Any], *structures: Any) -> Any:
    """Calls `function(name, *leaves)` for the leaves of nested specs or observations.

    The name is flat, with periods between levels; "" if the structure is a single array.
    """

    def call(path: tuple[Any, ...], *leaves: Any) -> Any:
        return function(nesting.SEPARATOR.join(map(str, path)), *leaves)

    return tree.map_structure_with_path(call, *structures)


def by_name(structure: Any) -> dict[str, Any]:
    """Returns the leaves of nested specs by flat name."""
    found: dict[str, Any] = {}
    map_named(found.__setitem__, structure)
    return found


def map_actions(
    function: Callable[[str, specs.Array, Any], Any],
    action_specs: Mapping[str, specs.Array],
    action: Any,
) -> Any:
    """Calls `function(name, spec, value)` for the values of an action that have one of these specs.

    The action keeps its form: nested, flat, or with names left out. What has no spec stays as it
    is; the environment refuses it if it is none of its actions.

    Args:
      function: returns the new value.
      action_specs: some specs of the actions by flat name, "" if an action is a single array.
      action: the action.

    Raises:
      SpecError: a mapping was given for an array.
    """

    def convert(name: str, value: Any) -> Any:
        spec = action_specs.get(name)
        if isinstance(value, Mapping):
            if spec is not None:
                raise SpecError(f"{where(name)} is one array, got a mapping")
            return {key: convert(_below(name, key), each) for key, each in value.items()}
        if spec is not None:
            return function(name, spec, value)
        if isinstance(value, list | tuple):
            converted = [convert(_below(name, i), each) for i, each in enumerate(value)]
            return converted if isinstance(value, list) else tuple(converted)
        return value

    return convert("", action)


def where(name: str) -> str:
    """How error messages name an action."""
    return f"action {name!r}" if name else "the action"


def _below(name: str, key: Any) -> str:
    return f"{name}{nesting.SEPARATOR}{key}" if name else str(key)
