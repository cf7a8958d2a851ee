"""Agents of one world that fail, vanish, or are played by other clients; worlds of other kinds."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
from gymnasium import spaces

from dm_env_rpc_client import (
    AgentsFailedError,
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvAdaptor,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    connect,
    create_world,
    destroy_world,
    join_world,
    reset_world,
)
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.pettingzoo.description import Description
from dm_env_rpc_client.server import Catch, Race, Server, serve
from tests.adaptors.pettingzoo.arena import AGENTS, Arena, arena_actions, remote
from tests.support.scripted import ServerProcess, settles
from tests.support.serving import serving
from tests.support.stopwatch import time_limit

arena_server = serving(Arena)


def test_if_one_agent_fails_all_are_ended(arena_server: Server) -> None:
    env = RemoteParallelEnv(arena_server.address)
    env.reset()
    drone = env._players.environments["drone", 1].connection
    drone._poison(ConnectionLostError("cable cut"))
    with (
        time_limit(5),
        pytest.raises(AgentsFailedError, match=r"agent \('drone', 1\) at .* cable cut") as caught,
    ):
        env.step(arena_actions(env))
    assert list(caught.value.failures) == [("drone", 1)]
    assert isinstance(caught.value.__cause__, ConnectionLostError)
    assert settles(lambda: (arena_server.agent_count, arena_server.world_count) == (0, 0))
    for again in (env.reset, lambda: env.step({}), env.state):
        with pytest.raises(ConnectionClosedError, match="have left the world"):
            again()
    env.close()


PLAYER = """
import sys
from dm_env_rpc_client import connect, join_world
with connect(sys.argv[1]) as connection, join_world(connection, sys.argv[2]) as env:
    print(connection.address, flush=True)
    while True:
        env.step({})
        while True:
            env.step(dict.fromkeys(env.action_spec(), 1))
            print("stepped", flush=True)
"""


def rps(**settings: Any) -> Any:
    import pettingzoo

    return pettingzoo.make("parallel", "classic/rps_v2", **{"max_cycles": 1000, **settings})


def test_a_player_that_is_killed_in_the_middle_of_a_game() -> None:
    with serve(rps) as server, connect(server.address, request_timeout=30) as owner:
        world = create_world(owner)
        with remote(server, ["player_1"], world_name=world) as env:
            assert env.possible_agents == ["player_1"]
            with ServerProcess(PLAYER, server.address, world) as player:
                assert env.reset()[0] == {"player_1": 3}
                assert env.step({"player_1": 2})[1] == {"player_1": 1.0}
                player.kill()
                for _ in range(3):  # Steps that it had sent before are still taken.
                    *_, truncations, _ = env.step({"player_1": 2})
                    if truncations["player_1"]:
                        break
            assert truncations == {"player_1": True}
            assert env.agents == []
            assert settles(lambda: server.agent_count == 1)
            # Another one takes its place.
            with owner.reopen() as connection, join_world(connection, world) as other:
                waiting = other.step_async({})
                assert env.reset()[0] == {"player_1": 3}
                assert waiting.result(30).first()
        # It did not create the world.
        destroy_world(owner, world)


@contextlib.contextmanager
def players(server: Server, *settings: Any) -> Iterator[tuple[Any, list[DmEnvAdaptor]]]:
    """A client of dm_env for each of some join settings."""
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(connect(server.address, request_timeout=30))
        world = create_world(owner)
        connections = [stack.enter_context(owner.reopen()) for _ in settings]
        yield (
            (owner, world),
            [
                stack.enter_context(join_world(connection, world, own, unwrap_single=True))
                for connection, own in zip(connections, settings, strict=True)
            ],
        )


def step_all(envs: list[DmEnvAdaptor], *actions: Any) -> list[dm_env.TimeStep]:
    futures = [env.step_async(action) for env, action in zip(envs, actions, strict=True)]
    return [future.result(30) for future in futures]


def test_dm_env_clients_as_players() -> None:
    first, _, last = dm_env.StepType
    with (
        serve(functools.partial(rps, max_cycles=2)) as server,
        players(server, {}, {"agent": "player_1"}) as (_, envs),
    ):
        for env in envs:
            assert env.action_spec() == dm_env.specs.DiscreteArray(3, np.int64)
            assert env.observation_spec() == dm_env.specs.DiscreteArray(4, np.int64)
        for _ in range(2):
            steps = step_all(envs, {}, {})
            assert [(step.step_type, step.observation) for step in steps] == [(first, 3)] * 2
            assert [step.reward for step in step_all(envs, 0, 1)] == [-1.0, 1.0]
            steps = step_all(envs, 2, 2)
            # At the time limit: not terminated.
            assert [(step.step_type, step.discount) for step in steps] == [(last, 1.0)] * 2
        step_all(envs, {}, {})
        # A reset of one of them ends the episode for the other, since it cannot go on alone.
        reset = envs[0].step_async
        envs[0]._finish_reset(envs[0]._start_reset())
        waiting = reset({})
        interrupted = step_all(envs[1:], 1)[0]
        assert (interrupted.step_type, interrupted.discount) == (last, 1.0)
        assert not waiting.done()
        assert step_all(envs[1:], {})[0].first()
        assert waiting.result(30).first()


def test_a_dm_env_client_may_set_the_seed_and_ask_for_infos() -> None:
    settings = [{"agent": str(agent), "infos": agent == 2} for agent in AGENTS]
    with serve(Arena) as server, players(server, *settings) as ((owner, world), envs):
        reset_world(owner, world, {"seed": 3, "options": {"late": 0}})
        local = Arena().reset(seed=3)[0]
        steps = step_all(envs, {}, {}, {})
        np.testing.assert_array_equal(steps[0].observation["flags"], local["scout"]["flags"])
        assert steps[0].observation["a%2Eb"] == local["scout"]["a.b"]
        assert envs[1].observation_spec()["0"].shape == (2,)
        extras = json.loads(str(steps[2].observation["pettingzoo"]))
        assert extras == {"info": {"seed": 3, "options": {"late": 0}}}


def test_what_may_join() -> None:
    with serve(rps) as server, connect(server.address) as owner, connect(server.address) as other:
        world = create_world(owner)
        with join_world(owner, world, {"agent": "player_1"}):
            for settings, text in (
                ({"agent": "player_1"}, "agent 'player_1' is taken; free agents: player_0"),
                ({"agent": "nobody"}, "agent 'nobody' is unknown; free agents: player_0"),
                ({"lane": 1}, "unknown join setting 'lane'; valid settings: agent, infos"),
            ):
                with pytest.raises(DmEnvRpcError, match=text):
                    join_world(other, world, settings)
        with pytest.raises(
            SpecError, match=r"unknown agents \['nobody'\]; existing agents: player_0, player_1"
        ):
            RemoteParallelEnv(server.address, ["nobody"])
        assert settles(lambda: (server.agent_count, server.world_count) == (0, 1))


def test_environments_that_cannot_be_served(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")

    class Secret(Arena):
        def __init__(self) -> None:
            super().__init__()
            del self.possible_agents

    class Crowded(Arena):
        def __init__(self) -> None:
            super().__init__()
            self.possible_agents = [2, "2"]

        def observation_space(self, agent: Any) -> spaces.Space[Any]:
            return super().observation_space(2)

        def action_space(self, agent: Any) -> spaces.Space[Any]:
            return super().action_space(2)

    for factory, text in (
        (Secret, "Secret has no possible_agents"),
        (Crowded, "two agents have the same name"),
    ):
        with serve(factory) as server, pytest.raises(DmEnvRpcError, match=text):
            RemoteParallelEnv(server.address)


# Worlds that are not of PettingZoo.


def test_any_other_world() -> None:
    with serve(functools.partial(Race, length=2)) as server:
        with remote(server, {"left": {"lane": 1}, "right": {"lane": 0}}) as env:
            assert env.possible_agents == ["left", "right"]
            assert env.metadata == {"render_modes": []}
            assert env.action_space("left") == spaces.Discrete(2)
            left = env.observation_space("left")
            assert isinstance(left, spaces.Dict)
            assert left["lane"] == spaces.Discrete(2)
            for _ in range(2):
                observations, infos = env.reset()
                assert [observations[agent]["lane"] for agent in env.agents] == [1, 0]
                assert infos == {"left": {}, "right": {}}
                env.step({"left": 1, "right": 0})
            env.reset()  # In the middle.
            env.step({"left": 1, "right": 0})
            _, rewards, terminations, truncations, infos = env.step({"left": 1, "right": 0})
            assert rewards == {"left": 1.0, "right": -1.0}
            assert terminations == {"left": True, "right": True}
            assert truncations == {"left": False, "right": False}
            assert infos["left"] == {"discount": 0.0}
            assert env.agents == []
            assert env.step({}) == ({}, {}, {}, {}, {})
            env.reset(options={"length": 1})
            assert env.step({"left": 1, "right": 1})[1] == {"left": 0.5, "right": 0.5}
            with pytest.raises(DmEnvRpcError, match="length, from 1 to 2"):
                env.reset(seed=1)
        with remote(server, ["one", "two"]) as env:
            assert [seat["lane"] for seat in env.reset()[0].values()] == [0, 1]
        with pytest.raises(SpecError, match="does not list its agents"):
            RemoteParallelEnv(server.address)
        with pytest.raises(SpecError, match="at least one agent"):
            RemoteParallelEnv(server.address, [])
        with pytest.raises(DmEnvRpcError, match="free lanes: none"):
            RemoteParallelEnv(server.address, ["one", "two", "three"])
        assert settles(lambda: (server.agent_count, server.world_count) == (0, 0))
    with serve(Catch) as server, remote(server, ["player"]) as env:
        observations, _ = env.reset()
        assert observations["player"] in env.observation_space("player")
        while env.agents:
            env.step({"player": 1})


def test_selected_observations_are_those_of_the_specs(arena_server: Server) -> None:
    with connect(arena_server.address) as owner:
        world = create_world(owner)
        agents = {"the third": {"agent": "2"}}
        with remote(
            arena_server, agents, world_name=world, requested_observations=["observation"]
        ) as env:
            assert env.possible_agents == ["the third"]
            assert env.observation_space("the third") == Arena().observation_space(2)
        destroy_world(owner, world)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"version": 9}',
        '{"version": 1}',
        '{"version": 1, "agents": [{"agent": []}]}',
        '{"version": 1, "agents": 3}',
    ],
)
def test_descriptions_that_are_none_are_errors(text: str) -> None:
    with pytest.raises(ProtocolError, match="property 'pettingzoo'"):
        Description.read(text)
