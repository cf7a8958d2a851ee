"""A game whose values fail where they are told to; see `failing_values`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pettingzoo import ParallelEnv

from tests.reliability.processes.failing_values import ROWS, Told


class ToldGame(ParallelEnv):
    """An environment for each agent, of which a step calls all."""

    metadata: dict[str, Any] = {"name": "told_v0"}  # noqa: RUF012  # as in PettingZoo
    render_mode = None

    def __init__(self) -> None:
        self._each = {str(row): Told(row) for row in range(ROWS)}
        self.possible_agents = list(self._each)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return Told.observation_space

    def action_space(self, agent: str) -> Any:
        return Told.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        said = {agent: env.reset() for agent, env in self._each.items()}
        return tuple({agent: own[part] for agent, own in said.items()} for part in range(2))

    def step(self, actions: Mapping[str, Any]) -> Any:
        said = {agent: self._each[agent].step(action) for agent, action in actions.items()}
        return tuple({agent: own[part] for agent, own in said.items()} for part in range(5))
