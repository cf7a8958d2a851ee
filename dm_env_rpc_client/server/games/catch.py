"""Catch, a game in which a paddle in the bottom row of a board catches a falling ball."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import dm_env
import numpy as np
from dm_env import specs


class Catch(dm_env.Environment):
    """A small example environment for tutorials and tests.

    The ball appears in a random column of the top row and falls one row per step. The
    paddle starts in the middle of the bottom row. The reward is 1 when the ball lands on
    the paddle and -1 when it lands beside it, which ends the episode.

    Actions: `{"paddle": int32 scalar}`, 0 to the left, 1 to stay, 2 to the right. A served paddle
    stays if a step omits the action.
    Observations: `{"board": float32 [rows, columns]}`, 1 at the ball and at
    the paddle, 0 elsewhere.

    Args:
      rows: height of the board, at least 2.
      columns: width of the board, at least 1.
      seed: seed of the random columns in which balls appear; None for a different sequence
        each time.
    """

    default_actions: Mapping[str, Any] = MappingProxyType({"paddle": 1})
    """The default values of actions that a step omits."""

    def __init__(self, rows: int = 10, columns: int = 5, seed: int | None = None):
        if rows < 2 or columns < 1:
            raise ValueError(
                f"a board needs at least 2 rows and 1 column, got rows={rows}, columns={columns}"
            )
        self._rows = rows
        self._columns = columns
        self._random = np.random.default_rng(seed)
        self._row = rows - 1

    def reset(self) -> dm_env.TimeStep:
        """Start an episode."""
        self._row = 0
        self._ball = int(self._random.integers(self._columns))
        self._paddle = self._columns // 2
        return dm_env.restart(self._observation())

    def step(self, action: Any) -> dm_env.TimeStep:
        """Move the paddle, and move the ball down by one row."""
        if self._row == self._rows - 1:
            return self.reset()
        move = int(action["paddle"]) - 1
        self._paddle = min(max(self._paddle + move, 0), self._columns - 1)
        self._row += 1
        if self._row == self._rows - 1:
            reward = 1.0 if self._ball == self._paddle else -1.0
            return dm_env.termination(reward, self._observation())
        return dm_env.transition(0.0, self._observation())

    def action_spec(self) -> dict[str, specs.Array]:
        """Return the spec of the action; see the class docstring."""
        return {"paddle": specs.DiscreteArray(3, np.int32, "paddle")}

    def observation_spec(self) -> dict[str, specs.Array]:
        """Return the specs of the observations; see the class docstring."""
        shape = (self._rows, self._columns)
        return {"board": specs.BoundedArray(shape, np.float32, 0.0, 1.0, "board")}

    def _observation(self) -> dict[str, Any]:
        board = np.zeros((self._rows, self._columns), np.float32)
        board[self._row, self._ball] = 1.0
        board[-1, self._paddle] = 1.0
        return {"board": board}
