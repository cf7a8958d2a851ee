"""An environment that costs next to nothing, and what it observes."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
from dm_env import specs

PAYLOADS: dict[str, tuple[tuple[int, ...], type[Any]]] = {
    "float32 [1]": ((1,), np.float32),
    "uint8 84x84x4": ((84, 84, 4), np.uint8),
    "float32 84x84x4": ((84, 84, 4), np.float32),
}


def compute(work: int) -> int:
    """Computes in Python for a time that does not depend on what else runs."""
    total = 0
    for number in range(work):
        total += number & 3
    return total


class Cheap(dm_env.Environment):
    """Returns the same observation in every step, after some work."""

    def __init__(self, payload: str, work: int = 0):
        shape, dtype = PAYLOADS[payload]
        self._observation = np.zeros(shape, dtype)
        self._work = work

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart({"observation": self._observation})

    def step(self, action: Any) -> dm_env.TimeStep:
        compute(self._work)
        return dm_env.transition(1.0, {"observation": self._observation})

    def observation_spec(self) -> Any:
        observation = self._observation
        return {"observation": specs.Array(observation.shape, observation.dtype, "observation")}

    def action_spec(self) -> Any:
        return {"action": specs.DiscreteArray(2, dtype=np.int32, name="action")}
