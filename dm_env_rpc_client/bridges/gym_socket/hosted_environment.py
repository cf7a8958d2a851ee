"""An adaptor that turns an environment from a factory into the `gymnasium.Env` of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import gymnasium

from dm_env_rpc_client.adaptors.gymnasium.spaces import from_space, spec_to_space, to_space
from dm_env_rpc_client.bridges.gym_socket.space_json import conform
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.foreign_environments import check_time_step, is_gymnasium
from dm_env_rpc_client.tensors import casting, structures


class HostedDmEnv(gymnasium.Env[Any, Any]):
    """A dm_env.Environment, presented as a `gymnasium.Env` and checked against its own specs.

    `adaptors.gymnasium.GymnasiumEnv` is for users: it passes on an environment's values, adds the
    discount to infos, and imports the client. In this class, a value that violates the specs
    ends the session, because the client would receive a different value.

    The environment may have members in addition to those of dm_env: `info`, a mapping that becomes
    the info of each step; `sample_action()`; and `render()`. Without them, infos are empty,
    actions are sampled from the space, and there is no render mode.

    Args:
      environment: the environment, closed with this object.

    Attributes:
      environment: the adapted environment.

    Raises:
      SpecError: a spec has no corresponding space, or the reward is not a single number.
    """

    def __init__(self, environment: dm_env.Environment):
        if environment.reward_spec().shape != ():
            raise SpecError("gym-socket-api supports only scalar rewards")
        self.environment = environment
        self._action_spec = environment.action_spec()
        self.action_space = spec_to_space(self._action_spec, "action")
        spec = environment.observation_spec()
        self.observation_space = spec_to_space(spec, "observation")
        self._flatten = structures.flattener(spec, "observation")
        self._leaves = structures.leaves_with_path(spec)
        self._render = getattr(environment, "render", None)
        self.render_mode = None if self._render is None else "human"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode, ignoring the seed and options, since dm_env supports neither."""
        timestep = self.environment.reset()
        check_time_step(self.environment, "reset", timestep)
        return self._observed(timestep), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Take a step, and report truncation if the episode ends with a discount other than 0."""
        timestep = self.environment.step(from_space(self._action_spec, action, "action"))
        check_time_step(self.environment, "step", timestep)
        if timestep.first():
            raise RuntimeError("the environment returned a FIRST step in the middle of an episode")
        is_last, is_truncated = timestep.last(), bool(timestep.discount)
        return (
            self._observed(timestep),
            float(timestep.reward),
            is_last and not is_truncated,
            is_last and is_truncated,
            self._info(),
        )

    def sample_action(self) -> Any:
        """Return a sampled action, using the environment's own `sample_action` if it exists."""
        sample = getattr(self.environment, "sample_action", self.action_space.sample)
        return to_space(self.action_space, sample())

    def render(self) -> None:
        """Render the environment."""
        if self._render is not None:
            self._render()

    def close(self) -> None:
        """Close the environment."""
        self.environment.close()

    def _observed(self, timestep: dm_env.TimeStep) -> Any:
        values = self._flatten(timestep.observation)
        for (path, spec), value in zip(self._leaves, values, strict=True):
            where = ".".join(["the observation", *map(str, path)])
            conform(spec, casting.as_array(value, where), where)
        return to_space(self.observation_space, timestep.observation)

    def _info(self) -> dict[str, Any]:
        info = getattr(self.environment, "info", None)
        return dict(info) if isinstance(info, Mapping) else {}


def as_hosted(made: Any, maker: str = "the factory") -> gymnasium.Env[Any, Any]:
    """Return an environment as a `gymnasium.Env`, adapting it if necessary.

    Args:
      made: the environment.
      maker: the name of the factory in errors.

    Raises:
      SpecError: `made` is neither a dm_env.Environment nor a gymnasium.Env, or `HostedDmEnv`
        refuses it.
      TypeError: a Gymnasium environment has no spaces.
    """
    if isinstance(made, dm_env.Environment):
        return HostedDmEnv(made)
    if not is_gymnasium(made):
        raise SpecError(
            f"{maker} returned an object of type {type(made).__name__}; expected a "
            "dm_env.Environment or gymnasium.Env"
        )
    environment: gymnasium.Env[Any, Any] = made
    return environment
