"""An environment of Gymnasium without a habit, from which the others are made."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

LENGTH = 3
"""The steps of an episode."""


class Usual(gymnasium.Env[Any, Any]):
    """All its numbers count, and those of each row are others."""

    action_space: spaces.Space[Any] = spaces.Discrete(3)
    observation_space: spaces.Space[Any] = spaces.Box(-999, 999, (2,), np.float64)

    def __init__(self, row: int):
        self.row = row
        self.episode, self.steps = -1, 0
        self.action: Any = None
        self.was_given: dict[str, Any] = {}

    @property
    def count(self) -> int:
        return 100 * self.episode + 10 * self.row + self.steps

    @property
    def when(self) -> str:
        """`reset` or `step` in the first episode, `end` of it, `later`."""
        if self.episode > 0:
            return "later"
        return {0: "reset", LENGTH: "end"}.get(self.steps, "step")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        self.was_given = {"seed": seed, "options": options}
        return self.observe(), self.inform()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.action = action
        self.steps += 1
        ends = self.ends()
        return self.observe(), self.reward(), *ends, self.inform()

    def observe(self) -> Any:
        return np.array([self.count, -self.count], np.float64)

    def reward(self) -> Any:
        return self.count / 8

    def ends(self) -> tuple[Any, Any]:
        return self.steps == LENGTH, False

    def inform(self) -> Any:
        return {"count": self.count}


class Observing(Usual):
    """Observes elements of a space, and a value that it was given.

    Args:
      row: the row.
      space: the space.
      value: the value.
      when: as `Usual.when`, of the only time when it observes it; "always"; "" for never.
    """

    def __init__(self, row: int, space: spaces.Space[Any], value: Any = None, when: str = ""):
        super().__init__(row)
        # Rows step in several threads.
        self.observation_space = copy.deepcopy(space)
        self._value, self._when = value, when

    def observe(self) -> Any:
        if self._when in (self.when, "always"):
            return self._value
        self.observation_space.seed(self.count)
        return self.observation_space.sample()
