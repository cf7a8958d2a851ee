"""PettingZoo over the wire: a program sees no difference to the environment itself."""

from __future__ import annotations

import contextlib
import functools
import importlib
import warnings
from collections.abc import Hashable, Iterator
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest

from dm_env_rpc_client import (
    DmEnvRpcError,
    SpecError,
    connect,
    join_world,
)
from dm_env_rpc_client.environment.worlds import reset_world
from dm_env_rpc_client.server import Race, Server, serve
from tests.adaptors.sameness import same
from tests.support.scripted import settles
from tests.support.serving import serving
from tests.support.stopwatch import time_limit
from tests.travelling.environments.of_agents import ALL, Scripted

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pettingzoo
    from pettingzoo.test import parallel_api_test, parallel_seed_test

    from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
    from tests.adaptors.pettingzoo.arena import AGENTS, Arena, arena_actions, remote

# Create settings with which PettingZoo's own tests take a moment, and in which all agents stay.
SHORT: dict[str, Any] = {
    "arena": {"lives": {"scout": 500, "('drone', 1)": 500, "2": 500}},
    "pistons": {"max_cycles": 5},
}


def make(kind: str, name: str, **settings: Any) -> Any:
    return pettingzoo.make(kind, name, **settings)


def mpe(name: str, **settings: Any) -> Any:
    return importlib.import_module(f"mpe2.{name}").parallel_env(**settings)


def turn_based(**settings: Any) -> Any:
    """What PettingZoo's own conversion makes of a game in which agents take turns."""
    from pettingzoo.utils import turn_based_aec_to_parallel

    return turn_based_aec_to_parallel(make("aec", "classic/tictactoe_v3", **settings))


# Name -> the packages that it needs, what is served, and the local environment if it is another.
ENVIRONMENTS: dict[str, tuple[tuple[str, ...], Any, Any]] = {
    "arena": ((), Arena, None),
    "rps": ((), functools.partial(make, "parallel", "classic/rps_v2"), None),
    "rps, agent by agent": (
        (),
        functools.partial(make, "aec", "classic/rps_v2"),
        functools.partial(make, "parallel", "classic/rps_v2"),
    ),
    "tictactoe": (
        (),
        functools.partial(make, "aec", "classic/tictactoe_v3"),
        turn_based,
    ),
    "spread": (("mpe2",), functools.partial(mpe, "simple_spread_v3"), None),
    "speaker": (("mpe2",), functools.partial(mpe, "simple_speaker_listener_v4"), None),
    "knights": (
        (),
        functools.partial(
            make,
            "parallel",
            "butterfly/knights_archers_zombies_v11",
            spawn_delay=1,
            max_zombies=40,
            num_archers=1,
            num_knights=1,
        ),
        None,
    ),
    "pistons": (
        ("pymunk",),
        functools.partial(make, "parallel", "butterfly/pistonball_v6", n_pistons=2, max_cycles=15),
        None,
    ),
}


def factories(name: str) -> tuple[Any, Any]:
    """What is served and what is local; skips the test if a package is missing."""
    packages, served, local = ENVIRONMENTS[name]
    for package in packages:
        pytest.importorskip(package)
    return served, local or served


@pytest.fixture(autouse=True)
def without_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")


arena_server = serving(Arena)


def legal_actions(env: Any, observations: Any) -> dict[Any, Any]:
    """An action of each agent, within its mask if the environment has one."""
    actions = {}
    for agent in env.agents:
        observation = observations[agent]
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        is_stuck = mask is not None and not mask.any()
        actions[agent] = env.action_space(agent).sample(None if is_stuck else mask)
    return actions


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_steps_are_those_of_the_local_environment(name: str) -> None:
    served, make_local = factories(name)
    local = make_local()
    with serve(served) as server, remote(server) as env:
        assert env.possible_agents == local.possible_agents
        assert env.metadata == local.metadata
        assert str(env) == str(local)
        for agent in local.possible_agents:
            assert env.observation_space(agent) == local.observation_space(agent)
            assert env.action_space(agent) == local.action_space(agent)
            assert env.action_space(agent) is env.action_space(agent)
            local.action_space(agent).seed(3)
        found: Any = env.reset(seed=5)
        expected: Any = local.reset(seed=5)
        outs = 0
        for step in range({"pistons": 20, "knights": 160}.get(name, 100)):
            assert same(found, expected), f"step {step}"
            assert set(env.agents) == set(local.agents)
            if not local.agents:
                found, expected = env.reset(), local.reset()
                continue
            actions = legal_actions(local, expected[0])
            count = len(local.agents)
            expected = tuple(map(dict, local.step(actions)))
            found = env.step(actions)
            outs += bool(0 < len(local.agents) < count)
        assert server.errors == []
        # In these, agents are out before the others.
        assert (outs > 0) == (name in ("arena", "knights"))
    local.close()


@pytest.mark.filterwarnings("error")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", [name for name in ENVIRONMENTS if name != "tictactoe"])
def test_pettingzoos_own_tests(name: str) -> None:
    served, _ = factories(name)
    settings = SHORT.get(name, {})
    with serve(served) as server:
        with remote(server, create_world_settings=settings) as env, warnings.catch_warnings():
            if name == "arena":  # The common info belongs to no agent.
                warnings.filterwarnings("ignore", "Agent was given info but was dead last turn")
            parallel_api_test(env, 40)
        parallel_seed_test(
            lambda: RemoteParallelEnv(server.address, create_world_settings=settings), 30
        )
        assert settles(lambda: (server.agent_count, server.world_count) == (0, 0))


def test_agents_that_begin_late_outlive_the_timeout_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serve(Arena, step_timeout=60.0) as server, remote(server) as env:
        (entry,) = server._serving._host.worlds._entries.values()
        world: Any = entry.world

        def is_refused(times: int) -> bool:
            """Lets the time be over for the step that waits, and for no other."""

            def look() -> bool:
                with world._changed:
                    world._changed.notify_all()
                return server.stats().refusals == times

            with monkeypatch.context() as patched:
                patched.setattr(world, "_step_timeout", 0.0)
                return settles(look)

        env.reset(options={"late": 3})
        for step in (1, 2):
            assert is_refused(step)  # The step of agent 2, which is sent again with the next one.
            env.step(arena_actions(env))
        env.step(arena_actions(env))
        assert env.agents == [("drone", 1), 2]
        assert server.stats().refusals == 2


def test_frames_and_the_state(arena_server: Server) -> None:
    with remote(arena_server, render_mode="rgb_array") as env:
        env.reset()
        env.step(arena_actions(env))
        assert same(env.render(), np.full((2, 3, 3), 1, np.uint8))
        assert same(env.state(), np.array([1, 3], np.float32))
        assert env.state_space == Arena().state_space
    with remote(arena_server, create_world_settings={"render_mode": "ansi"}) as env:
        assert env.render_mode == "ansi"
        assert env.render() == "step 0"
    with remote(arena_server) as env:
        assert env.render() is None
    with (
        pytest.warns(UserWarning, match="does not render in mode 'human'"),
        remote(arena_server, render_mode="human") as env,
    ):
        assert env.render() is None
    with serve(Race) as server:
        with pytest.raises(DmEnvRpcError, match="render_mode"):
            RemoteParallelEnv(server.address, ["left", "right"], render_mode="rgb_array")
        with remote(server, ["left", "right"]) as env, pytest.raises(NotImplementedError):
            env.state()


def test_wrong_actions_are_refused_before_anything_is_sent(arena_server: Server) -> None:
    with remote(arena_server) as env:
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step({})
        env.reset()
        actions = arena_actions(env)
        with pytest.raises(SpecError, match=r"missing: \[2\], unknown: \['spy'\]"):
            env.step({"spy": 1, **{agent: actions[agent] for agent in AGENTS[:2]}})
        with pytest.raises(SpecError, match=r"agent 2: action 'action' \(uid 1\)"):
            env.step({**actions, 2: np.zeros((9, 9), np.uint8)})
        with pytest.raises(SpecError, match=r"agent \('drone', 1\): .* tuple of 2 values"):
            env.step({**actions, ("drone", 1): 4})
        observations = env.step(actions)[0]
        assert set(observations) == set(AGENTS)
        # Those that are out do not act any more, but may be named.
        env.step(actions)
        assert env.agents == AGENTS[1:]
        assert set(env.step(actions)[0]) == set(AGENTS[1:])


def test_settings_that_the_environment_does_not_have_are_refused(arena_server: Server) -> None:
    with remote(arena_server) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="setting 'seed'"):
            env._players.end_sequence({"seed": "one"})
        with pytest.raises(DmEnvRpcError, match="unknown reset setting 'sneed'"):
            env._players.end_sequence({"sneed": 1})
        env.reset(seed=1)


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
