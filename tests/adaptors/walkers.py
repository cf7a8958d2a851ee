"""An environment of one array."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs


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
