"""A PettingZoo environment with everything that has to travel, to be served."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.server import Server
from tests.support.scripted import settles

AGENTS: list[Hashable] = ["scout", ("drone", 1), 2]

_SPACES: dict[Hashable, spaces.Space[Any]] = {
    "scout": spaces.Dict({"flags": spaces.MultiBinary(3), "a.b": spaces.Text(4)}),
    ("drone", 1): spaces.Tuple((spaces.MultiDiscrete([3, 2]), spaces.Box(-1, 1, (2,), np.float32))),
    2: spaces.Box(0, 255, (2, 3), np.uint8),
}


class Arena(ParallelEnv):
    """Agents are out one after the other; the infos are everything that the environment was told.

    Args:
      render_mode: "rgb_array" or "ansi".
      lives: after how many steps each agent is out, by `str` of the agent. The first is terminated,
        the second truncated, the third both.

    `reset` takes the option `late`, the step with which agent 2 begins to take part.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  # as in PettingZoo
        "name": "arena_v0",
        "render_modes": ["rgb_array", "ansi", "human"],
        "size": (2, 3),
    }

    def __init__(
        self, render_mode: str | None = None, lives: Mapping[str, int] | None = None
    ) -> None:
        self.possible_agents = list(AGENTS)
        self._observation_spaces = copy.deepcopy(_SPACES)
        self._action_spaces = copy.deepcopy(_SPACES)
        self.agents: list[Hashable] = []
        self.render_mode = render_mode
        self.state_space = spaces.Box(0, 100, (2,), np.float32)
        lives = lives or {"scout": 2, "('drone', 1)": 4, "2": 6}
        self._lives = {agent: int(lives[str(agent)]) for agent in AGENTS}
        self._step = 0

    def observation_space(self, agent: Hashable) -> spaces.Space[Any]:
        return self._observation_spaces[agent]

    def action_space(self, agent: Hashable) -> spaces.Space[Any]:
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[Hashable, Any], dict[Hashable, Any]]:
        self._seed = seed
        self._late = (options or {}).get("late", 0)
        self._step = 0
        self.agents = [agent for agent in AGENTS if agent != 2 or not self._late]
        observations = self._observations(self.agents)
        return observations, {agent: {"seed": seed, "options": options} for agent in self.agents}

    def step(self, actions: Mapping[Hashable, Any]) -> tuple[dict[Hashable, Any], ...]:
        self._step += 1
        acting = list(self.agents)
        assert set(acting) <= set(actions), f"{acting} act, not {list(actions)}"
        if self._late and self._step == self._late:
            self.agents = acting = [*acting, 2]
        is_out = {agent: self._step >= self._lives[agent] for agent in acting}
        self.agents = [agent for agent in acting if not is_out[agent]]
        infos: dict[Hashable, Any] = {
            agent: {
                "action": repr(actions[agent]) if agent in actions else None,
                "mask": np.array([self._step, 1], np.int8),
            }
            for agent in acting
        }
        infos["common"] = {"turn": self._step}
        rewards = {agent: self._step + len(str(agent)) / 8 for agent in acting}
        return (
            self._observations(acting),
            {agent: reward if agent in actions else 0.0 for agent, reward in rewards.items()},
            {agent: is_out[agent] and agent in ("scout", 2) for agent in acting},
            {agent: is_out[agent] and agent != "scout" for agent in acting},
            {key: info for key, info in infos.items() if key in actions or key == "common"}
            | {agent: {} for agent in acting if agent not in actions},
        )

    def state(self) -> np.ndarray[Any, Any]:
        return np.array([self._step, len(self.agents)], np.float32)

    def render(self) -> Any:
        if self.render_mode == "ansi":
            return f"step {self._step}"
        return np.full((2, 3, 3), self._step, np.uint8)

    def _observations(self, agents: list[Hashable]) -> dict[Hashable, Any]:
        observations = {}
        for agent in agents:
            space = self.observation_space(agent)
            space.seed((self._seed or 0) * 100 + self._step)
            observations[agent] = space.sample()
        return observations


def arena_actions(env: Any) -> dict[Any, Any]:
    """A random action of each agent that takes part."""
    return {agent: env.action_space(agent).sample() for agent in env.agents}


@contextlib.contextmanager
def remote(server: Server, *args: Any, **kwargs: Any) -> Iterator[RemoteParallelEnv]:
    """A remote environment; afterwards nothing of it is left on the server."""
    worlds = server.world_count
    env = RemoteParallelEnv(server.address, *args, request_timeout=30.0, **kwargs)
    try:
        yield env
    finally:
        env.close()
    assert settles(lambda: (server.agent_count, server.world_count) == (0, worlds))
