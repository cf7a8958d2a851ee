"""Environments of PettingZoo that surprise."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from tests.travelling.environments.habits import Habit, Refused

_SPACE = spaces.Dict({"z": spaces.Box(-999, 999, (2,), np.float64), "a": spaces.Discrete(9)})


class Agents(ParallelEnv):
    """Two agents in episodes of three steps; all numbers count."""

    metadata: dict[str, Any] = {"name": "agents_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, names: tuple[Hashable, ...] = ("b", "a")):
        self.possible_agents = list(names)
        self.agents: list[Hashable] = []
        self.episode, self.steps = -1, 0
        self.actions: Mapping[Hashable, Any] = {}

    def observation_space(self, agent: Hashable) -> Any:
        return _SPACE

    def action_space(self, agent: Hashable) -> Any:
        return spaces.Discrete(5, start=-1)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.episode += 1
        self.steps = 0
        self.agents = list(self.possible_agents)
        self.actions = {"given": (seed, options)}
        return self.each(self.observe), self.each(self.inform)

    def step(self, actions: Any) -> Any:
        self.steps += 1
        self.actions = actions
        told = (
            self.each(self.observe), self.each(self.reward),
            self.each(lambda agent: self.is_over(agent) and agent != "a"),
            self.each(lambda agent: self.is_over(agent) and agent == "a"), self.each(self.inform),
        )  # fmt: skip
        self.agents = [agent for agent in self.agents if not self.is_over(agent)]
        return told

    def each(self, told: Callable[[Hashable], Any]) -> dict[Hashable, Any]:
        return {agent: told(agent) for agent in self.agents}

    def count(self, agent: Hashable) -> int:
        return 100 * self.episode + 10 * self.possible_agents.index(agent) + self.steps

    def observe(self, agent: Hashable) -> Any:
        number = self.count(agent)
        return {"z": np.array([number, -number], np.float64), "a": self.steps}

    def reward(self, agent: Hashable) -> Any:
        return self.count(agent) / 8

    def inform(self, agent: Hashable) -> Any:
        return {"count": self.count(agent), "action": repr(self.actions)}

    def is_over(self, agent: Hashable) -> bool:
        return self.steps == 3


class DyingEarly(Agents):
    """The first agent is out after one step."""

    def is_over(self, agent: Hashable) -> bool:
        return self.steps == (1 if agent == self.possible_agents[0] else 3)


class Unseen(Agents):
    """Observes only one agent in the second step."""

    def step(self, actions: Any) -> Any:
        observations, *others = super().step(actions)
        if self.steps == 2:
            observations.pop("a")
        return (observations, *others)


class Reusing(Agents):
    """Keeps one array, and one info for all agents."""

    def __init__(self) -> None:
        super().__init__()
        self._array, self._info = np.zeros(2), {"list": [0]}

    def observe(self, agent: Hashable) -> Any:
        self._array[:] = self.steps
        return {"z": self._array, "a": self.steps}

    def inform(self, agent: Hashable) -> Any:
        self._info["list"][0] = self.steps
        return self._info


class Rewarding(Agents):
    """Its rewards are a value."""

    def __init__(self, value: Any):
        super().__init__()
        self._value = value

    def reward(self, agent: Hashable) -> Any:
        return self._value


class Unfit(Agents):
    """Observes what is not in its space, in the first step of the first episode."""

    def observe(self, agent: Hashable) -> Any:
        is_odd = (self.episode, self.steps, agent) == (0, 1, "a")
        return {"z": np.zeros(3), "a": 1} if is_odd else super().observe(agent)


class Raising(Agents):
    """Raises an error in the second step of its first episode."""

    def step(self, actions: Any) -> Any:
        told = super().step(actions)
        if (self.episode, self.steps) == (0, 2):
            raise OSError("no device")
        return told


class RaisingInReset(Agents):
    """Raises an error in its first reset."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        told = super().reset(seed, options)
        if self.episode == 0:
            raise OSError("no device")
        return told


class Disordered(Agents):
    """Tells of its agents, and of their parts, in another order."""

    def each(self, told: Callable[[Hashable], Any]) -> dict[Hashable, Any]:
        return dict(reversed(super().each(told).items()))

    def observe(self, agent: Hashable) -> Any:
        return dict(reversed(super().observe(agent).items()))


class Scripted(Agents):
    """Does what a script says.

    Args:
      script: for the reset and for each step, by agent that takes part, one of "lives", "ends",
        "unseen" (it lives, and is not observed).
    """

    def __init__(self, script: Sequence[Mapping[str, str]]):
        super().__init__(tuple(ALL))
        self._script = script

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        super().reset(seed, options)
        observations, *_, infos = self._returned()
        return observations, infos

    def step(self, actions: Any) -> Any:
        if not self.agents:
            return {}, {}, {}, {}, {}
        self.steps += 1
        return self._returned()

    def _returned(self) -> tuple[Any, ...]:
        now = self._script[self.steps]
        self.agents = [agent for agent in ALL if now.get(agent, "ends") != "ends"]
        return (
            {agent: self.observe(agent) for agent, what in now.items() if what != "unseen"},
            {agent: self.reward(agent) for agent in now},
            {agent: what == "ends" for agent, what in now.items()},
            dict.fromkeys(now, False),
            {agent: {"step": self.steps} for agent in now},
        )


ALL = dict.fromkeys(("a", "b", "c"), "lives")
"""Of a script: every agent takes part."""


def _scripted(*script: Mapping[str, str]) -> Habit:
    calls = "R" + "s" * (len(script) - 1)
    return Habit(lambda row: Scripted(script), calls=2 * calls)


HABITS: dict[str, Habit] = {
    "no habit": Habit(lambda row: Agents()),
    "agents that are no texts": Habit(lambda row: Agents((("x", 1), 2))),
    "an agent is out early": Habit(lambda row: DyingEarly()),
    "an agent is not observed": Habit(lambda row: Unseen()),
    "one array and one info": Habit(lambda row: Reusing()),
    "float32": Habit(lambda row: Rewarding(np.float32(0.1))),
    "another order": Habit(lambda row: Disordered()),
    "no reward": Habit(
        functools.partial(lambda row: Rewarding(None)),
        {1: Refused(("returned a reward that is not a number",))}, "Rs",
    ),
    "a value that does not fit": Habit(
        lambda row: Unfit(), {1: Refused(("violates its own", "'observation.z'"))}, "RsRs"
    ),
    "raises in a step": Habit(
        lambda row: Raising(), {2: Refused(("OSError: no device",))}, "RssRs"
    ),
    "raises in reset": Habit(
        lambda row: RaisingInReset(), {0: Refused(("OSError: no device",))}, "RRs"
    ),
    "begins late": _scripted(
        {"a": "lives"}, {"a": "lives", "b": "lives"}, ALL, ALL, dict.fromkeys(ALL, "ends"),
    ),
    "ends one after the other": _scripted(
        ALL, {**ALL, "a": "ends"}, {"b": "lives", "c": "ends"}, {"b": "ends"},
    ),
    "is not observed": _scripted(
        ALL, {**ALL, "b": "unseen"}, ALL, {**ALL, "a": "unseen", "c": "unseen"}
    ),
    "is not observed at first": _scripted({**ALL, "b": "unseen"}, {**ALL, "b": "unseen"}, ALL),
    "begins late and is not observed": _scripted(
        {"a": "lives"}, {"a": "lives", "b": "unseen"}, ALL
    ),
}  # fmt: skip
"""By name."""
