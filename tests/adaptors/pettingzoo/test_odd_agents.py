"""Agents that return, have never been observed or are all out, and whom a server waits for."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

import dm_env
import gymnasium
import pytest

from dm_env_rpc_client import DmEnvRpcError, connect, join_world
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.environment.worlds import reset_world
from dm_env_rpc_client.server import Race, serve
from tests.adaptors.pettingzoo.arena import arena_actions, remote
from tests.support.stopwatch import time_limit
from tests.travelling.environments.of_agents import ALL, Scripted


def test_a_step_of_nobody_after_the_end_is_empty() -> None:
    script = [ALL, dict.fromkeys(ALL, "ends")]
    with serve(lambda: Scripted(script)) as server, remote(server) as env:
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step({})
        env.reset()
        env.step(arena_actions(env))
        for _ in range(2):
            assert env.step({}) == ({}, {}, {}, {}, {})
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(dict.fromkeys(ALL, 1))
        assert set(env.reset()[0]) == set(ALL)
        assert set(env.step(arena_actions(env))[1]) == set(ALL)


def test_an_agent_that_returns_is_an_error_that_names_it() -> None:
    script = [ALL, {**ALL, "b": "ends"}, {"a": "lives", "c": "lives"}, ALL, ALL]
    with serve(lambda: Scripted(script)) as server, remote(server) as env, time_limit(20):
        env.reset()
        env.step(arena_actions(env))
        env.step(arena_actions(env))
        with pytest.raises(DmEnvRpcError, match="agent 'b' of Scripted reappeared"):
            env.step(arena_actions(env))
        assert set(env.reset()[0]) == set(ALL)
        env.step(arena_actions(env))


def test_a_lost_step_of_an_agent_that_was_never_observed() -> None:
    script = [{**ALL, "b": "unseen"}] * 5
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve(lambda: Scripted(script)))
        env = RemoteParallelEnv(server.address, restart=True)
        stack.callback(env.close)
        env.reset()
        server.stop(grace=0)
        observations, rewards, *_, infos = env.step(dict.fromkeys(ALL, 1))
        assert set(observations) == {"a", "c"}
        assert set(rewards) == set(ALL)
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
