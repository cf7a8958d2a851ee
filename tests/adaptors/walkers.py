"""Environments with nested specs and with one array."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class Walker(dm_env.Environment):
    """Episodes of `length` steps; nested specs of floats, images, texts and numbers."""

    def __init__(self, length: int = 7, start: int = 0, end: float = 0.0):
        self._length, self._start, self._end = length, start, end

    def action_spec(self) -> dict[str, Any]:
        return {
            "legs": {
                "left": specs.BoundedArray((2,), np.float64, [-2, 0], [4, 0.1]),
                "right": specs.BoundedArray((), np.float32, -0.3, 0.7),
                "speed": specs.Array((), np.float64),
            },
            "gear": specs.DiscreteArray(3),
            "say": specs.StringArray(()),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "camera": specs.BoundedArray((2, 3), np.uint8, 0, 255),
            "position": {
                "x": specs.BoundedArray((2,), np.float64, [-2, 0], [4, 1e300]),
                "step": specs.DiscreteArray(100, np.int32),
            },
            "said": specs.StringArray(()),
        }

    def reward_spec(self) -> specs.Array:
        return specs.BoundedArray((), np.float32, -1, 2)

    def discount_spec(self) -> specs.Array:
        return specs.BoundedArray((), np.float64, 0, 0.9)

    def reset(self) -> dm_env.TimeStep:
        self._step = self._start
        self._x = np.zeros(2)
        return dm_env.restart(self._observe("begin"))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._step += 1
        self._x = action["legs"]["left"] + [0, 0.25]
        observation = self._observe(str(action["say"]))
        reward = np.float32(action["legs"]["right"] + 0.1 * self._step)
        if self._step == self._start + self._length:
            return dm_env.TimeStep(dm_env.StepType.LAST, reward, np.float64(self._end), observation)
        return dm_env.TimeStep(dm_env.StepType.MID, reward, np.float64(0.9), observation)

    def _observe(self, said: str) -> dict[str, Any]:
        return {
            "camera": np.full((2, 3), self._step, np.uint8),
            "position": {"x": self._x, "step": np.int32(self._step)},
            "said": said,
        }


class Arm(dm_env.Environment):
    """One array of actions and one of observations; three rewards; discounts of 0.5."""

    def __init__(self, length: int = 4):
        self._length = length

    def action_spec(self) -> specs.Array:
        return specs.BoundedArray((3,), np.float64, -5, 5)

    def observation_spec(self) -> specs.Array:
        return specs.Array((3,), np.float64)

    def reward_spec(self) -> specs.Array:
        return specs.Array((3,), np.int32)

    def discount_spec(self) -> specs.Array:
        return specs.BoundedArray((), np.float32, 0, 1)

    def reset(self) -> dm_env.TimeStep:
        self._step = 0
        return dm_env.restart(np.zeros(3))

    def step(self, action: Any) -> dm_env.TimeStep:
        self._step += 1
        reward = np.arange(self._step, self._step + 3, dtype=np.int32)
        if self._step == self._length:
            return dm_env.truncation(reward, action, np.float32(0.5))
        return dm_env.transition(reward, action, np.float32(0.5))
