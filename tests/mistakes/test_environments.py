"""What methods of environments return by mistake: what clients get, the server keeps and logs."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    EnvironmentsFailedError,
    connect,
    create_world,
    join_world,
)
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.server import Race
from tests.mistakes.mistake import Mistake
from tests.mistakes.wrong_environments import (
    ARRAY,
    FIVE,
    GYMNASIUM,
    INHERIT,
    OBSERVATION,
    OLD,
    RESTART,
    TRANSITION,
    Countdown,
    CountdownEnv,
    play,
    play_rows,
    returning,
    serve,
)
from tests.support.scripted import settles


class Wrong(NamedTuple):
    """An environment with a mistake, and what is said of it: the method, the value, the advice."""

    environment: Callable[..., Any]
    where: str
    given: str
    advice: str


def dm(method: str, value: Any, given: str, advice: str) -> Wrong:
    return Wrong(returning(Countdown, method, value), f"{method} of Countdown", given, advice)


def gym(method: str, value: Any, given: str, advice: str) -> Wrong:
    return Wrong(returning(CountdownEnv, method, value), f"{method} of CountdownEnv", given, advice)


RETURNS: dict[str, Wrong] = {
    "step: None": dm("step", None, "returned None", TRANSITION),
    "step: a dict": dm("step", OBSERVATION, "a dict with the key 'counter'", TRANSITION),
    "step: an array": dm("step", ARRAY, "an array float32 [2]", TRANSITION),
    "step: a number": dm("step", 1.5, "returned a float", TRANSITION),
    "step: two values": dm("step", (1.0, OBSERVATION), "a tuple of 2 values", TRANSITION),
    "step: five values": dm(
        "step", (OBSERVATION, 0.0, False, False, {}), "a tuple of 5 values", GYMNASIUM
    ),
    "step: four values": dm("step", (OBSERVATION, 0.0, False, {}), "a tuple of 4", GYMNASIUM),
    "reset: None": dm("reset", None, "returned None", RESTART),
    "reset: a dict": dm("reset", OBSERVATION, "a dict with the key 'counter'", RESTART),
    "reset: an observation": dm("reset", ARRAY, "an array float32 [2]", RESTART),
    "reset: two values": dm("reset", (OBSERVATION, {}), "a tuple of 2 values", GYMNASIUM),
    "observation_spec: None": Wrong(
        returning(Countdown, "observation_spec", None), "observation_spec", "returned None",
        "a TimeStep has the observation a dict with the key 'counter'; return a spec for this",
    ),
    "Gymnasium, step: None": gym("step", None, "cannot unpack non-iterable NoneType", FIVE),
    "Gymnasium, step: four values": gym(
        "step", (ARRAY, 0.0, False, {}), "expected 5, got 4", OLD
    ),
    "Gymnasium, step: a TimeStep": gym(
        "step", dm_env.transition(0.0, ARRAY), "expected 5, got 4", "inherit from dm_env.Env"
    ),
    "Gymnasium, reset: None": gym("reset", None, "returned None", "(observation, info)"),
    # An array of two numbers could be taken apart.
    "Gymnasium, reset: an observation": gym("reset", ARRAY, "an array float32 [2]", OLD),
    "Gymnasium, reset: a dict": gym("reset", {"a": 1, "b": 2}, "the keys 'a', 'b'", OLD),
    "Gymnasium, reset: a TimeStep": gym(
        "reset", dm_env.restart(ARRAY), "returned a TimeStep", "inherit from dm_env.Env"
    ),
    "Gymnasium, step: four values, in a wrapper": Wrong(
        lambda: gymnasium.wrappers.TimeLimit(
            returning(CountdownEnv, "step", (ARRAY, 0.0, False, {}))(), 10
        ),
        "step of CountdownEnv", "expected 5, got 4", FIVE,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RETURNS)
def test_what_a_method_returns(name: str, caplog: pytest.LogCaptureFixture) -> None:
    factory, texts = RETURNS[name][0], RETURNS[name][1:]
    with serve(factory) as server:
        Mistake(play, *texts, DmEnvRpcError).check(server.address)
        (kept,) = server.errors
    assert all(text in str(kept) for text in texts), kept
    (logged,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert logged.exc_info is not None
    assert logged.exc_info[1] is kept


@pytest.mark.parametrize("name", RETURNS)
def test_what_a_method_returns_in_rows(name: str, caplog: pytest.LogCaptureFixture) -> None:
    factory, texts = RETURNS[name][0], RETURNS[name][1:]
    with serve(factory) as server:
        Mistake(play_rows, *texts, EnvironmentsFailedError).check(server.address)
        assert server.stats().requests["create_world"] == 1  # It was a batch.
    failures = [str(each.exc_info[1]) for each in caplog.records if each.exc_info]
    assert len(failures) == 2
    assert all(text in failure for failure in failures for text in texts)


# What is wrong when a world is created; or earlier, see below.
CREATIONS: dict[str, Wrong] = {
    "action_spec: a space": dm("action_spec", spaces.Discrete(3), "returned Discrete(3)", INHERIT),
    "action_spec: a Dict": dm(
        "action_spec", spaces.Dict(a=spaces.Discrete(3)), "Dict('a': Discrete(3))", INHERIT
    ),
    "action_spec: a dict of spaces": dm(
        "action_spec", {"a": spaces.Discrete(3)}, "'a' is Discrete(3)", INHERIT
    ),
    "action_spec: a number": dm("action_spec", 3, "returned an int", "expected dm_env specs"),
    "observation_spec: a space": dm(
        "observation_spec", spaces.Box(0, 1, (2,)), "returned Box(0.0, 1.0, (2,), float32)", INHERIT
    ),
    "observation_spec: a dict with None": dm(
        "observation_spec", {"a": {"b": None}}, "'a.b' is None", "expected dm_env specs"
    ),
    "reward_spec: a number": dm("reward_spec", 0.0, "returned a float", "expected dm_env specs"),
    "Gymnasium without spaces": Wrong(
        type("Spaceless", (gymnasium.Env,), {}), "Spaceless has no action_space", "",
        "set self.action_space and self.observation_space in its __init__",
    ),
    "a function that returns None": Wrong(
        lambda: None, "the factory returned None", "", "expected a dm_env.Environment, a gymnasium."
    ),
    "a function that returns a text": Wrong(
        lambda: "CartPole-v1", "the factory returned a str", "", "a PettingZoo environment"
    ),
    "a function that returns a tuple": Wrong(
        lambda: (Countdown(), {}), "the factory returned a tuple of 2 values", "", "PettingZoo"
    ),
    "a function that returns a class": Wrong(
        lambda: Countdown, "the factory returned the class Countdown", "", "call it: Countdown()"
    ),
    "a class that is half of one": Wrong(
        type("Half", (), {"reset": print, "step": print}),
        "the factory returned a Half, which has no action_spec, observation_spec", "",
        "expected a dm_env.Environment",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("play", "error"), [(play, DmEnvRpcError), (play_rows, EnvironmentsFailedError)]
)
@pytest.mark.parametrize("name", CREATIONS)
def test_what_is_created(
    name: str, play: Any, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    factory, texts = CREATIONS[name][0], CREATIONS[name][1:]
    with serve(factory) as server:
        Mistake(play, *texts, error).check(server.address)
        assert all(text in str(server.errors[0]) for text in texts)


def test_what_a_game_returns(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    for value, given, advice in (
        ((OBSERVATION, 0.0, False, False, {}), "a tuple of 5 values", GYMNASIUM),
        (OBSERVATION, "a dict with the key 'counter'", TRANSITION),
    ):
        game = type("Race", (Race,), {"min_players": 1, "timestep": lambda *_, v=value: v})
        mistake = Mistake(play, "timestep of Race", given, advice, DmEnvRpcError)
        with serve(game) as server:
            mistake.check(server.address)
            assert given in str(server.errors[0])


class LameRace(Race):
    """Has a TimeStep for its first player alone."""

    def timestep(self, player: Any) -> Any:
        return super().timestep(player) if player == 0 else OBSERVATION


def test_what_a_game_returns_for_one_player_fails_for_all_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    with (
        serve(LameRace, step_timeout=None) as server,
        connect(server.address) as one,
        connect(server.address) as other,
    ):
        world = create_world(one)
        envs = [join_world(connection, world) for connection in (one, other)]
        with concurrent.futures.ThreadPoolExecutor() as executor:
            steps = [executor.submit(env.reset) for env in envs]
            for step in steps:
                with pytest.raises(DmEnvRpcError, match="timestep of LameRace returned a dict"):
                    step.result()


class Pair(ParallelEnv):
    """Two agents, for PettingZoo."""

    metadata: ClassVar[dict[str, Any]] = {"name": "pair_v0"}
    render_mode = None
    possible_agents: ClassVar[list[str]] = ["a", "b"]
    agents: ClassVar[list[str]] = ["a", "b"]
    observation_spaces: ClassVar[dict[str, Any]] = {
        "a": spaces.Discrete(2),
        "b": spaces.Discrete(2),
    }
    action_spaces = observation_spaces

    def observation_space(self, agent: str) -> Any:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Any:
        return self.action_spaces[agent]

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        return {"a": 0, "b": 0}, {}

    def step(self, actions: Any) -> Any:
        return {"a": 0, "b": 0}, {}, {}, {}, {}


def play_pair(address: str) -> None:
    with contextlib.closing(RemoteParallelEnv(address)) as env:
        env.reset()
        env.step({"a": 0, "b": 0})


DICT = {"a": 0, "b": 0}
PAIRS: dict[str, Wrong] = {
    "step: None": Wrong(
        returning(Pair, "step", None), "step of Pair", "NoneType", "did not return (observations, "
    ),
    "step: four values": Wrong(
        returning(Pair, "step", (DICT, {}, {}, {})), "step of Pair", "expected 5, got 4",
        "(observations, rewards, terminations, truncations, infos)",
    ),
    "reset: observations": Wrong(
        returning(Pair, "reset", DICT), "reset of Pair", "a dict with the keys 'a', 'b'",
        "expected (observations, infos), each a dict by agent, as in PettingZoo",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_returned_for_all_agents(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    factory, texts = PAIRS[name][0], PAIRS[name][1:]
    with serve(factory) as server:
        Mistake(play_pair, *texts, DmEnvRpcError).check(server.address)
        assert all(text in str(server.errors[0]) for text in texts)


class Rows(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Two rows, for Gymnasium."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.DISABLED}  # noqa: RUF012
    num_envs = 2
    single_action_space = spaces.Discrete(3)
    single_observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return np.zeros((2, 2), np.float32), {}

    def step(self, actions: Any) -> Any:
        return np.zeros((2, 2), np.float32), np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}


@pytest.mark.parametrize(
    ("method", "value", "given", "advice"),
    [
        ("step", None, "NoneType", FIVE),
        ("step", (1, 2, 3, 4), "expected 5, got 4", OLD),
        ("reset", [0.0, 1.0, 2.0], "a list", "expected (observation, info)"),
    ],
)
def test_what_a_vector_environment_returns(
    method: str, value: Any, given: str, advice: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    mistake = Mistake(play_rows, f"{method} of Rows", given, advice, EnvironmentsFailedError)
    with serve(returning(Rows, method, value)) as server:
        mistake.check(server.address)
        assert given in str(server.errors[0])


def episode(env: dm_env.Environment) -> None:
    env.reset()
    env.step(1)


@pytest.mark.parametrize(("method", "advice"), [("step", TRANSITION), ("reset", RESTART)])
def test_what_a_method_returns_over_gym_socket(method: str, advice: str) -> None:
    factory = returning(Countdown, method, None)
    with (
        gym_socket.serve({"Countdown": factory}, "localhost:0") as server,
        gym_socket.GymSocketEnvironment(server.address, "Countdown") as env,
    ):
        # This protocol has no answer for errors.
        with pytest.raises(ConnectionLostError):
            episode(env)
        assert settles(lambda: len(server.errors) == 1)
        assert f"{method} of Countdown returned None; {advice}" in str(server.errors[0])
