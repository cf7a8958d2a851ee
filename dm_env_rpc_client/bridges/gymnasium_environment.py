"""A Gymnasium environment as a dm_env.Environment. Needs the extra `gymnasium`.

People import it from `adaptors.gymnasium`. It is a bridge because `gym_socket` serves Gymnasium
environments too, and bridges import no adaptors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dm_env
import numpy as np
from dm_env import specs

from dm_env_rpc_client.errors import SpecError

if TYPE_CHECKING:
    import gymnasium

__all__ = ["GymnasiumEnvironment"]


class GymnasiumEnvironment(dm_env.Environment):
    """Steps a Gymnasium environment, for instance to serve it.

    The last TimeStep of an episode has discount 0 if Gymnasium calls the episode terminated, and 1
    if it is only truncated.

    Args:
      env: the Gymnasium environment; `close` closes it too.
      seed: of the first reset; None for a new one each time.

    Raises:
      SpecError: dm_env has no spec for a space of this type.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], seed: int | None = None):
        self._environment = env
        self._seed = seed
        self._action_spec = _spec(env.action_space, "action")
        self._observation_spec = _spec(env.observation_space, "observation")
        self._is_running = False
        self._info: Mapping[str, Any] = {}

    @property
    def info(self) -> Mapping[str, Any]:
        """The info that the environment returned with the last step or reset."""
        return self._info

    def reset(self) -> dm_env.TimeStep:
        """Begins an episode."""
        observation, self._info = self._environment.reset(seed=self._seed)
        self._seed = None
        self._is_running = True
        return dm_env.restart(_arrays(observation))

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step, or begins an episode if none is running."""
        if not self._is_running:
            return self.reset()
        observation, reward, terminated, truncated, self._info = self._environment.step(
            _plain(self._action_spec, action)
        )
        self._is_running = not (terminated or truncated)
        if terminated:
            return dm_env.termination(float(reward), _arrays(observation))
        if truncated:
            return dm_env.truncation(float(reward), _arrays(observation))
        return dm_env.transition(float(reward), _arrays(observation))

    def action_spec(self) -> Any:
        """Returns the spec of actions: a structure if the space is a Tuple or Dict."""
        return self._action_spec

    def observation_spec(self) -> Any:
        """Returns the spec of observations: a structure if the space is a Tuple or Dict."""
        return self._observation_spec

    def sample_action(self) -> Any:
        """Returns an action sampled by the environment's own action space."""
        return _arrays(self._environment.action_space.sample())

    def render(self) -> None:
        """Renders the environment, if it was made with a render mode."""
        if self._environment.render_mode is not None:
            self._environment.render()

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()


def _spec(space: gymnasium.Space[Any], name: str) -> Any:
    from gymnasium import spaces

    if isinstance(space, spaces.Tuple):
        return tuple(_spec(part, f"{name}.{index}") for index, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        return {key: _spec(part, f"{name}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Box):
        return specs.BoundedArray(space.shape, space.dtype, space.low, space.high, name)
    if isinstance(space, spaces.Discrete):
        n, start = int(space.n), int(space.start)
        if start == 0:
            return specs.DiscreteArray(n, np.int64, name)
        return specs.BoundedArray((), np.int64, start, start + n - 1, name)
    if isinstance(space, spaces.MultiBinary):
        return specs.BoundedArray(space.shape, np.int8, 0, 1, name)
    if isinstance(space, spaces.MultiDiscrete):
        # `nvec` holds numbers of values and may have any integer dtype; a spec holds bounds.
        low = space.start.astype(np.int64)
        return specs.BoundedArray(space.shape, np.int64, low, low + space.nvec - 1, name)
    if isinstance(space, spaces.Text):
        return specs.StringArray((), name=name)
    raise SpecError(
        f"the {name} space is a {type(space).__name__}, which has no dm_env spec; known are Box, "
        "Discrete, MultiBinary, MultiDiscrete, Text, Tuple and Dict"
    )


def _arrays(value: Any) -> Any:
    """The value with an array or scalar for each leaf."""
    if isinstance(value, Mapping):
        return {key: _arrays(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_arrays, value))
    return value if isinstance(value, str) else np.asarray(value)


def _plain(spec: Any, action: Any) -> Any:
    """The action in the form of Gymnasium's spaces: a Discrete is an int, not an array."""
    if isinstance(spec, Mapping):
        return {key: _plain(part, action[key]) for key, part in spec.items()}
    if isinstance(spec, tuple):
        return tuple(_plain(part, item) for part, item in zip(spec, action, strict=True))
    is_discrete = spec.shape == () and spec.dtype.kind == "i"
    return int(action) if is_discrete else np.asarray(action, spec.dtype)
