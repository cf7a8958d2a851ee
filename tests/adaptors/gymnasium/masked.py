"""An environment with methods and attributes that a server may allow clients to use."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt


class Masked(gymnasium.Env[Any, Any]):
    """Asks for the action that it shows, and allows it and the next one only.

    Args:
      level: an attribute.
      length: the steps of an episode.
    """

    action_space = gymnasium.spaces.Discrete(4)
    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)

    def __init__(self, level: int = 0, length: int = 5):
        self.level = level
        self._length = length
        self._steps = 0
        self._shown = 0
        self.calls: list[Any] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return self._observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_masks()[action]:
            raise ValueError(f"action {action} is masked")
        self._steps += 1
        reward = float(action == self._shown)
        return self._observed(), reward, False, self._steps >= self._length, {}

    def action_masks(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(4, np.bool_)
        mask[[self._shown, (self._shown + 1) % 4]] = True
        return mask

    def jump(self, height: float, *, where: str = "here") -> dict[str, Any]:
        if height < 0:
            raise ValueError("cannot jump down")
        self.calls.append(height)
        return {"level": self.level, "to": [height, where], "count": len(self.calls)}

    def _observed(self) -> npt.NDArray[np.float32]:
        self._shown = int(self.np_random.integers(4))
        observation = np.zeros(4, np.float32)
        observation[self._shown] = 1.0
        return observation
