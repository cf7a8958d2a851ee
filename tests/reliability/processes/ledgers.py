"""An environment whose observations say which step of which sequence of which life they are of."""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

import dm_env
import numpy as np
import numpy.typing as npt
from dm_env import specs


class Entry(NamedTuple):
    """What an observation says.

    Attributes:
      env: the number of the environment.
      life: a number of each environment that was made.
      episode: the number of the sequence in this life, from 1.
      step: the number of the step in the sequence, from 0.
      heard: the action of this step; -1 for the first.
    """

    env: int
    life: int
    episode: int
    step: int
    heard: int


def length_of(index: int, episode: int) -> int:
    """The number of the step that ends a sequence."""
    return 2 + (7 * index + 5 * episode) % 11


class Ledger(dm_env.Environment):
    """Counts; its reward is the number of the step.

    Args:
      index: is observed.
    """

    def __init__(self, index: int = 0):
        self._entry = Entry(index, secrets.randbits(62), 0, 0, -1)

    def reset(self) -> dm_env.TimeStep:
        episode = self._entry.episode + 1
        self._entry = self._entry._replace(episode=episode, step=0, heard=-1)
        return dm_env.restart(self._observation())

    def step(self, action: Any) -> dm_env.TimeStep:
        step = self._entry.step + 1
        self._entry = self._entry._replace(step=step, heard=int(action["say"]))
        is_last = step == length_of(self._entry.env, self._entry.episode)
        end = dm_env.termination if is_last else dm_env.transition
        return end(float(step), self._observation())

    def action_spec(self) -> dict[str, specs.Array]:
        return {"say": specs.Array((), np.int64, "say")}

    def observation_spec(self) -> dict[str, specs.Array]:
        return {"entry": specs.Array((5,), np.int64, "entry")}

    def _observation(self) -> dict[str, npt.NDArray[np.int64]]:
        return {"entry": np.array(self._entry, np.int64)}
