"""Environments whose specs and values have a structure of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env

from tests.travelling.environments.of_dm_env import array, filled

__all__ = ["Structured", "array"]


class Structured(dm_env.Environment):
    """Observes what it is told to, and keeps its actions.

    Args:
      observation_spec: the spec.
      action_spec: the spec.
      reward_spec: the spec; dm_env's default if it is None.
      discount_spec: the same.
      observe: makes the observation from the number of the step; `filled` if it is None.
      steps: the steps of a sequence, FIRST ones alone.
    """

    def __init__(
        self,
        observation_spec: Any,
        action_spec: Any = None,
        *,
        reward_spec: Any = None,
        discount_spec: Any = None,
        reward: Any = 0.5,
        first: Callable[[Any], dm_env.TimeStep] = dm_env.restart,
        observe: Callable[[int], Any] | None = None,
        steps: int = 100,
    ):
        self._specs = observation_spec, action_spec, reward_spec
        if discount_spec is not None:
            self.discount_spec = lambda: discount_spec
        self._observe = observe or (lambda step: filled(observation_spec, 100 * step))
        self._reward, self._first = reward, first
        self._step, self._steps = 0, steps
        self.actions: list[Any] = []

    def observation_spec(self) -> Any:
        return self._specs[0]

    def action_spec(self) -> Any:
        return self._specs[1]

    def reward_spec(self) -> Any:
        return super().reward_spec() if self._specs[2] is None else self._specs[2]

    def reset(self) -> dm_env.TimeStep:
        self._step = 0
        return self._first(self._observe(0))

    def step(self, action: Any) -> dm_env.TimeStep:
        self.actions.append(action)
        self._step += 1
        observation = self._observe(self._step)
        if self._step == self._steps:
            return dm_env.termination(self._reward, observation)
        return dm_env.transition(self._reward, observation)
