"""The progress of a manually stepped environment: statistics about its episodes so far."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import dm_env
import numpy as np

from dm_env_rpc_client.tensors.displays.plots import number

MAX_REMEMBERED = 200
"""The maximum number of rewards kept for plots; the same limit applies to returns."""


def _remembered() -> Any:
    return collections.deque(maxlen=MAX_REMEMBERED)


@dataclasses.dataclass
class Progress:
    """Counters of the steps and episodes of one environment.

    Attributes:
      timestep: the last TimeStep, or None before the first TimeStep.
      action: the action of the last step; None after a reset.
      episode: the number of the episode, from 1.
      steps: the number of steps in the episode.
      episode_return: the sum of the episode's rewards. A reward that is an array counts as its
        sum.
      total_steps: the number of steps in all episodes.
      finished: the number of finished episodes.
      rewards: the last rewards, across all episodes.
      begins: for each element of `rewards`, whether it is the first reward of an episode.
      returns: the returns of the last finished episodes.
      is_running: whether a run is in progress.
      error: the text of the last error; "" if the last call succeeded.
    """

    timestep: dm_env.TimeStep | None = None
    action: Any = None
    episode: int = 0
    steps: int = 0
    episode_return: float = 0.0
    total_steps: int = 0
    finished: int = 0
    rewards: collections.deque[float] = dataclasses.field(default_factory=_remembered)
    begins: collections.deque[bool] = dataclasses.field(default_factory=_remembered)
    returns: collections.deque[float] = dataclasses.field(default_factory=_remembered)
    is_running: bool = False
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether no episode is running, because none has begun or the last one has ended."""
        return self.timestep is None or bool(
            np.all(np.asarray(self.timestep.step_type) == dm_env.StepType.LAST)
        )

    def copy(self) -> Progress:
        """Return a copy that later steps do not change."""
        kept = {name: getattr(self, name).copy() for name in ("rewards", "begins", "returns")}
        return dataclasses.replace(self, **kept)

    def facts(self) -> dict[str, str]:
        """Return the numbers to display, as strings keyed by name."""
        reward = {"reward": number(self.rewards[-1])} if self.steps else {}
        counts = {"episode": str(self.episode), "step": str(self.steps)}
        return {**counts, **reward, "return": number(self.episode_return)}

    def begin(self, timestep: dm_env.TimeStep) -> None:
        """Record a reset."""
        self.timestep, self.action = timestep, None
        self.episode += 1
        self.steps, self.episode_return = 0, 0.0

    def advance(self, action: Any, timestep: dm_env.TimeStep) -> None:
        """Record a step."""
        self.timestep, self.action = timestep, action
        self.begins.append(self.steps == 0)
        self.rewards.append(0.0 if timestep.reward is None else float(np.sum(timestep.reward)))
        self.steps += 1
        self.total_steps += 1
        self.episode_return += self.rewards[-1]
        if self.is_over:
            self.finished += 1
            self.returns.append(self.episode_return)
