"""Agents that begin late, return, are not observed, or are all out: as in process, or an error."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client import DmEnvRpcError, connect, join_world
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.environment.worlds import reset_world
from dm_env_rpc_client.server import Race, serve
from tests.adaptors.pettingzoo.arena import arena_actions, remote
from tests.support.stopwatch import time_limit

AGENTS = ["a", "b", "c"]


class Scripted(ParallelEnv):
    """Does what a script says.

    Args:
      script: for the reset and for each step, by agent that takes part, one of "lives", "ends",
        "unseen" (it lives, and is not observed).
    """

    metadata: dict[str, Any] = {"name": "scripted_v0", "render_modes": []}  # noqa: RUF012

    def __init__(self, script: Sequence[Mapping[str, str]]):
        self.possible_agents = list(AGENTS)
        self.agents: list[str] = []
        self._script, self._step = script, 0
        self._space = spaces.Dict({"x": spaces.Box(0, 9, (2,)), "t": spaces.Text(4)})

    def observation_space(self, agent: Hashable) -> Any:
        return self._space

    def action_space(self, agent: Hashable) -> Any:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self._step = 0
        observations, *_, infos = self._returned()
        return observations, infos

    def step(self, actions: Any) -> Any:
        if not self.agents:
            return {}, {}, {}, {}, {}
        self._step += 1
        return self._returned()

    def _returned(self) -> tuple[Any, ...]:
        now = self._script[self._step]
        self.agents = [agent for agent in AGENTS if now.get(agent, "ends") != "ends"]
        value = {"x": np.full(2, self._step, np.float32), "t": "s"}
        return (
            {agent: value for agent, what in now.items() if what != "unseen"},
            {agent: self._step + AGENTS.index(agent) / 8 for agent in now},
            {agent: what == "ends" for agent, what in now.items()},
            dict.fromkeys(now, False),
            {agent: {"step": self._step} for agent in now},
        )


ALL = dict.fromkeys(AGENTS, "lives")

SCRIPTS: dict[str, Sequence[Mapping[str, str]]] = {
    "begins late": [
        {"a": "lives"}, {"a": "lives", "b": "lives"}, ALL, ALL, dict.fromkeys(AGENTS, "ends"),
    ],
    "ends one after the other": [
        ALL, {**ALL, "a": "ends"}, {"b": "lives", "c": "ends"}, {"b": "ends"},
    ],
    "is not observed": [ALL, {**ALL, "b": "unseen"}, ALL, {**ALL, "a": "unseen", "c": "unseen"}],
    "is not observed at first": [{**ALL, "b": "unseen"}, {**ALL, "b": "unseen"}, ALL],
    "begins late and is not observed": [{"a": "lives"}, {"a": "lives", "b": "unseen"}, ALL],
}  # fmt: skip


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(np.array_equal(one, other))


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_step_is_as_in_process(name: str) -> None:
    script = SCRIPTS[name]
    local = Scripted(script)
    with serve(lambda: Scripted(script)) as server, remote(server) as env, time_limit(30):
        for found, expected in zip(env.reset(seed=1), local.reset(seed=1), strict=True):
            assert same(found, expected), (found, expected)
        for _ in script[1:]:
            assert env.agents == local.agents
            actions: dict[Hashable, Any] = dict.fromkeys(local.agents, 1)
            for mine, other in zip(env.step(actions), local.step(actions), strict=True):
                assert same(mine, other), (mine, other)
        assert env.agents == local.agents


def test_a_step_of_nobody_after_the_end_is_empty() -> None:
    script = [ALL, dict.fromkeys(AGENTS, "ends")]
    with serve(lambda: Scripted(script)) as server, remote(server) as env:
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step({})
        env.reset()
        env.step(arena_actions(env))
        for _ in range(2):
            assert env.step({}) == ({}, {}, {}, {}, {})
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(dict.fromkeys(AGENTS, 1))
        assert set(env.reset()[0]) == set(AGENTS)
        assert set(env.step(arena_actions(env))[1]) == set(AGENTS)


def test_an_agent_that_returns_is_an_error_that_names_it() -> None:
    script = [ALL, {**ALL, "b": "ends"}, {"a": "lives", "c": "lives"}, ALL, ALL]
    with serve(lambda: Scripted(script)) as server, remote(server) as env, time_limit(20):
        env.reset()
        env.step(arena_actions(env))
        env.step(arena_actions(env))
        with pytest.raises(DmEnvRpcError, match="agent 'b' of Scripted reappeared"):
            env.step(arena_actions(env))
        assert set(env.reset()[0]) == set(AGENTS)
        env.step(arena_actions(env))


def test_a_lost_step_of_an_agent_that_was_never_observed() -> None:
    script = [{**ALL, "b": "unseen"}] * 5
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(lambda: Scripted(script)))
        env = RemoteParallelEnv(server.address, restart=True)
        stack.callback(env.close)
        env.reset()
        server.stop(grace=0)
        observations, rewards, *_, infos = env.step(dict.fromkeys(AGENTS, 1))
        assert set(observations) == {"a", "c"}
        assert set(rewards) == set(AGENTS)
        assert infos["b"] == {"restarted": True}


# Whom the server waits for.


@contextlib.contextmanager
def playing(game: Race, **options: Any) -> Iterator[list[Any]]:
    """Two players of a game, who have taken the first step."""
    with serve(game, **options) as server, contextlib.ExitStack() as stack:
        players = []
        for _ in range(2):
            connection = stack.enter_context(connect(server.address, request_timeout=20.0))
            players.append(stack.enter_context(join_world(connection, "")))
        for step in [player.step_async({}) for player in players]:
            step.result(20)
        yield players


def test_a_reset_of_the_world_names_whom_it_waits_for() -> None:
    with playing(Race(), step_timeout=0.5) as (first, _):
        with pytest.raises(DmEnvRpcError, match=r"player 1 took no step within 0.5 s") as caught:
            reset_world(first.connection, "", {})
        assert caught.value.code_name == "DEADLINE_EXCEEDED"


class Leaving(Race):
    """Its first player is out after one step; each steps alone."""

    is_lock_step = False

    def timestep(self, player: Hashable) -> Any:
        found = super().timestep(player)
        if found is not None and player == 0 and not found.first():
            return dm_env.truncation(0.0, found.observation)
        return found


def test_a_step_that_waits_for_the_end_of_a_sequence_names_who_goes_on() -> None:
    with playing(Leaving(length=9), step_timeout=0.5) as (first, _):
        assert first.step({"move": 1}).last()
        with pytest.raises(DmEnvRpcError, match="player 1 continues the sequence"):
            first.step({"move": 1})
