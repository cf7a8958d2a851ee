"""A vector environment that stacks what its environments return, and checks nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space, iterate


class Stacked(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Steps environments one after the other, as simulators with arrays for rows do.

    Args:
      make: makes the environment of a row.
      num_envs: how many there are.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012  # as in Gymnasium

    def __init__(self, make: Callable[[int], Any], num_envs: int):
        self.num_envs = num_envs
        self._envs = [make(row) for row in range(num_envs)]
        self.single_action_space = self._envs[0].action_space
        self.single_observation_space = self._envs[0].observation_space
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self._is_over = [False] * num_envs

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        seeds = [seed] * self.num_envs if seed is None else list(range(seed, seed + self.num_envs))
        returned = _all(
            functools.partial(env.reset, seed=own, options=options)
            for env, own in zip(self._envs, seeds, strict=True)
        )
        self._is_over = [False] * self.num_envs
        observations, infos = zip(*returned, strict=True)
        return stacked(self.single_observation_space, observations), self._together(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        rows = zip(self._envs, iterate(self.action_space, actions), self._is_over, strict=True)
        returned = _all(
            functools.partial(_begun, env) if was_over else functools.partial(env.step, action)
            for env, action, was_over in rows
        )
        observations, rewards, terminated, truncated, infos = zip(*returned, strict=True)
        self._is_over = [bool(a or b) for a, b in zip(terminated, truncated, strict=True)]
        return (
            stacked(self.single_observation_space, observations),
            np.array(rewards),
            np.array(terminated, np.bool_),
            np.array(truncated, np.bool_),
            self._together(infos),
        )

    def close_extras(self, **kwargs: Any) -> None:
        for env in self._envs:
            env.close()

    def _together(self, infos: Sequence[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for row, info in enumerate(infos):
            found = self._add_info(found, info, row)
        return found


def _begun(env: Any) -> tuple[Any, float, bool, bool, Any]:
    observation, info = env.reset()
    return observation, 0.0, False, False, info


def _all(calls: Iterable[Callable[[], Any]]) -> list[Any]:
    """Makes all calls, and raises the first error."""
    returned, errors = [], []
    for call in calls:
        try:
            returned.append(call())
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return returned


def stacked(space: Any, values: Sequence[Any]) -> Any:
    """Stacks values in whatever dtype they have."""
    if isinstance(space, spaces.Dict):
        keys = values[0]
        return {key: stacked(space.get(key), [each[key] for each in values]) for key in keys}
    if isinstance(space, spaces.Tuple):
        parts = zip(space.spaces, *values, strict=True)
        return tuple(stacked(part, rows) for part, *rows in parts)
    if isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
        is_masked = any(isinstance(each, np.ma.MaskedArray) for each in values)
        return (np.ma if is_masked else np).stack([np.asanyarray(each) for each in values])
    return tuple(values)
