"""Environments that servers of both versions serve, the one-file server among them."""

from __future__ import annotations

from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

LENGTH = 4


class Counter(dm_env.Environment):
    """Counts its steps; observes arrays of several dtypes, a text, and levels of names."""

    def __init__(self, start: int = 0, fails_at: int = -1):
        self._start, self._fails_at = int(start), int(fails_at)
        self._count = 0

    def reset(self) -> dm_env.TimeStep:
        self._count = 0
        return dm_env.restart(self._observation(0))

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._count == LENGTH:
            return self.reset()
        self._count += 1
        if self._count == self._fails_at:
            raise RuntimeError("the physics exploded")
        observation = self._observation(int(action["add"]))
        if self._count == LENGTH:
            return dm_env.termination(0.5, observation)
        return dm_env.transition(self._count / 4, observation, 0.75)

    def _observation(self, added: int) -> dict[str, Any]:
        count = self._start + self._count
        return {
            "zone": {"count": np.int32(count), "added": np.int64(added)},
            "angle": np.full((2, 2), count / 2, np.float32),
            "pixels": np.arange(count, count + 6, dtype=np.uint8).reshape(2, 3),
            "door": np.array(count % 2 == 1),
        }

    def action_spec(self) -> dict[str, specs.Array]:
        return {
            "add": specs.BoundedArray((), np.int64, -9, 9),
            "wish": specs.Array((2,), np.float32),
        }

    def observation_spec(self) -> dict[str, Any]:
        return {
            "zone": {
                "count": specs.Array((), np.int32, "count"),
                "added": specs.Array((), np.int64, "added"),
            },
            "angle": specs.Array((2, 2), np.float32, "angle"),
            "pixels": specs.BoundedArray((2, 3), np.uint8, 0, 255, "pixels"),
            "door": specs.Array((), bool, "door"),
        }

    def discount_spec(self) -> specs.Array:
        return specs.Array((), float, "discount")


class Informed(gymnasium.Env[Any, Any]):
    """Has spaces of several kinds, and infos of several kinds, of which some come and go."""

    def __init__(self, first: int = 0):
        self.observation_space = spaces.Dict(
            {
                "box": spaces.Box(-1, 1, (2,), np.float32),
                "which": spaces.Discrete(5, start=-1),
                "flags": spaces.MultiBinary(3),
            }
        )
        self.action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(-2, 2, (1,), np.float64)))
        self._first = int(first)
        self._count = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._count = 0
        return self._observation(), {"first": self._first, "options": options or {}}

    def step(self, action: Any) -> Any:
        self._count += 1
        which, (push,) = action
        info = {
            "number": int(which),
            "real": float(push) + 0.5,
            "text": f"step {self._count}",
            "nested": {"yes": True, "deep": {"count": self._count}},
            "array": np.arange(3, dtype=np.float32) * self._count,
        }
        if self._count == 2:
            info["sometimes"] = self._first
        return self._observation(), self._count / 2, self._count == 3, False, info

    def _observation(self) -> dict[str, Any]:
        return {
            "box": np.array([self._count / 4, -self._first / 8], np.float32),
            "which": np.int64(self._count - 1),
            "flags": np.array([self._count & 1, self._count >> 1 & 1, 1], np.int8),
        }


def _players() -> Any:
    from pettingzoo import ParallelEnv  # Imported where it is installed: not with the one file.

    class Players(ParallelEnv):
        """One agent begins late, and one ends early."""

        metadata: dict[str, Any] = {"name": "players_v0"}  # noqa: RUF012  # as in PettingZoo

        def __init__(self) -> None:
            self.possible_agents = ["early", "late", "whole"]
            self.agents: list[str] = []
            self._count = 0

        def observation_space(self, agent: str) -> Any:
            return spaces.Box(0, 9, (2,), np.float32)

        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(4)

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            self._count, self.agents = 0, ["early", "whole"]
            infos = {agent: {"seed": seed} for agent in self.agents}
            return {agent: self._observation() for agent in self.agents}, infos

        def step(self, actions: dict[str, int]) -> Any:
            self._count += 1
            taking_part = list(self.agents)
            if self._count == 2:
                taking_part.append("late")
            ended = {agent: self._count == (3 if agent == "early" else 5) for agent in taking_part}
            self.agents = [agent for agent in taking_part if not ended[agent]]
            return (
                {agent: self._observation() for agent in taking_part},
                {agent: float(actions.get(agent, -1)) for agent in taking_part},
                ended,
                dict.fromkeys(taking_part, False),
                {agent: {"count": self._count} for agent in taking_part},
            )

        def _observation(self) -> Any:
            return np.array([self._count, 1], np.float32)

    return Players()


def make_environment(kind: str = "counter", **settings: Any) -> Any:
    """Makes an environment by the name of its kind."""
    if kind == "players":
        return _players()
    return {"counter": Counter, "informed": Informed}[kind](**settings)
