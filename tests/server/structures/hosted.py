"""Environments whose specs and values have a structure of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dm_env

from tests.travelling.environments.of_dm_env import FIRST, MID, Timed, array, filled

__all__ = ["Structured", "array"]


class Structured(Timed):
    """Observes what it is told to, and keeps its actions; its sequences have no end.

    Args:
      observation_spec: the spec.
      action_spec: the spec.
      reward_spec: the spec; dm_env's default if it is None.
      discount_spec: the same.
      reward: of each step.
      observe: makes the observation from the number of the step; `filled` if it is None.
    """

    def __init__(
        self,
        observation_spec: Any,
        action_spec: Any = None,
        *,
        reward_spec: Any = None,
        discount_spec: Any = None,
        reward: Any = 0.5,
        observe: Callable[[int], Any] | None = None,
    ):
        def observed(env: Timed) -> Any:
            if observe is None:
                return filled(observation_spec, 100 * env.steps)
            return observe(env.steps)

        script = [(FIRST, None, None), (MID, reward, 1.0)]
        super().__init__(
            0, script, observation_spec, observed, action_spec, reward_spec, discount_spec
        )
        self.actions: list[Any] = []

    def step(self, action: Any) -> dm_env.TimeStep:
        self.actions.append(action)
        return super().step(action)
