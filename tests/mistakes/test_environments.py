"""What methods of environments return by mistake: what clients get, the server keeps and logs.

Each of it in a single environment and in the rows of a batch. More values, by every way of
travelling, are in the table of `tests/travelling`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    EnvironmentsFailedError,
)
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.server import Race
from tests.mistakes.doors import Mistake
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
from tests.server.structures.hosted import Structured, array
from tests.support.scripted import settles
from tests.travelling.environments.of_agents import Agents


class Rows(gymnasium.vector.SyncVectorEnv):
    """Two rows, for Gymnasium."""

    def __init__(self) -> None:
        mode = gymnasium.vector.AutoresetMode.DISABLED
        super().__init__([CountdownEnv] * 2, autoreset_mode=mode)


def play_agents(address: str) -> None:
    with contextlib.closing(RemoteParallelEnv(address)) as env:
        env.reset()
        env.step({"a": 0, "b": 0})


NOTHING: Any = np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}
"""The rewards, flags and infos of two rows."""


DICT = {"a": 0, "b": 0}
LONG = specs.Array((2,), np.longdouble)


ALONE_AND_IN_ROWS = ((play, DmEnvRpcError), (play_rows, EnvironmentsFailedError))
ALONE, IN_ROWS = ALONE_AND_IN_ROWS[:1], ALONE_AND_IN_ROWS[1:]
AGENTS = ((play_agents, DmEnvRpcError),)


class Wrong(NamedTuple):
    """An environment with a mistake, and what is said of it: the method, the value, the advice."""

    environment: Callable[..., Any]
    where: str
    given: str
    advice: str
    played: Sequence[tuple[Callable[[str], None], type[Exception]]] = ALONE_AND_IN_ROWS


def dm(method: str, value: Any, given: str, advice: str) -> Wrong:
    return Wrong(returning(Countdown, method, value), f"{method} of Countdown", given, advice)


def gym(method: str, value: Any, given: str, advice: str) -> Wrong:
    return Wrong(returning(CountdownEnv, method, value), f"{method} of CountdownEnv", given, advice)


def race(value: Any) -> type[Race]:
    """A game of one player, with a TimeStep that is none."""
    return type("Race", (Race,), {"min_players": 1, "timestep": lambda *_: value})


STEPS: dict[str, tuple[dm_env.TimeStep, str, str]] = {
    "a discount that is not sent": (
        dm_env.transition(0.0, OBSERVATION, 0.5), "discount is 0.5 in a MID step",
        "to send it, override discount_spec()",
    ),
    "no observation": (
        dm_env.transition(0.0, None), "the observation is a NoneType",
        "its spec has the keys 'counter'",
    ),
    "an observation too many": (
        dm_env.transition(0.0, {**OBSERVATION, "head": 1}),
        "has 'head', which the spec does not have", "the spec has 'counter'",
    ),
    "another observation": (
        dm_env.transition(0.0, {"heard": 1}), "lacks 'counter' and has 'heard'",
        "the spec has 'counter'",
    ),
    "a FIRST step": (
        dm_env.restart(OBSERVATION), "FIRST step in the middle", "",
    ),
    "several types": (
        dm_env.TimeStep(np.array([1, 1]), 0.0, 1.0, OBSERVATION), "the type array([1, 1])",
        "expected dm_env.StepType.FIRST",
    ),
}  # fmt: skip
"""TimeSteps in the middle of a sequence, and what is said of them."""

WRONG: dict[str, Wrong] = {
    "step: None": dm("step", None, "returned None", TRANSITION),
    "step: a dict": dm("step", OBSERVATION, "a dict with the key 'counter'", TRANSITION),
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
    "reset: a LAST TimeStep": dm(
        "reset", dm_env.termination(0.0, OBSERVATION), "a LAST TimeStep", "return dm_env.restart("
    ),
    **{
        name: Wrong(returning(Countdown, "step", step), "", given, advice)
        for name, (step, given, advice) in STEPS.items()
    },
    "a tuple of another length": Wrong(
        lambda: Structured(
            (array(), array()), {"go": array()}, observe=lambda step: (1.0, 2.0)[step:]
        ),
        "", "the observation is a tuple of 1", "its spec is a tuple of 2",
    ),
    "an array in place of a mapping": Wrong(
        lambda: Structured(
            {"arms": {"right": array(), "left": array()}}, {"go": array()},
            observe=lambda step: {"arms": np.ones(2) if step else {"right": 1.0, "left": 2.0}},
        ),
        "observation 'arms'", "is a ndarray", "its spec has the keys 'right', 'left'",
    ),
    # What is wrong when a world is created.
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
    "a dtype that cannot be sent": Wrong(
        lambda: Structured({"arm": {"time": LONG}}, {"go": array()}), "'arm.time'", str(LONG.dtype),
        "",
    ),
    "a dtype of an action": Wrong(
        lambda: Structured(array(), {"grip": (LONG,)}), "'grip.0'", str(LONG.dtype), ""
    ),
    "bytes as texts": Wrong(
        lambda: Structured({"word": specs.StringArray((), bytes)}, {"go": array()}), "'word'",
        "bytes", "text",
    ),
    "a bound that is NaN": Wrong(
        lambda: Structured({"x": specs.BoundedArray((), float, np.nan, 1.0)}, {"go": array()}),
        "'x'", "NaN", "",
    ),
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
    # Games, agents and vectors.
    "a game, five values": Wrong(
        race((OBSERVATION, 0.0, False, False, {})), "timestep of Race",
        "a tuple of 5 values", GYMNASIUM, ALONE,
    ),
    "a game, an observation": Wrong(
        race(OBSERVATION), "timestep of Race", "a dict with the key 'counter'",
        TRANSITION, ALONE,
    ),
    "a game, type 7": Wrong(
        race(dm_env.TimeStep(7, None, None, OBSERVATION)), "timestep of Race",
        "a TimeStep of the type 7", "expected dm_env.StepType.FIRST", ALONE,
    ),
    "agents, step: None": Wrong(
        returning(Agents, "step", None), "step of Agents", "NoneType",
        "did not return (observations, ", AGENTS,
    ),
    "agents, step: four values": Wrong(
        returning(Agents, "step", (DICT, {}, {}, {})), "step of Agents", "expected 5, got 4",
        "(observations, rewards, terminations, truncations, infos)", AGENTS,
    ),
    "agents, reset: observations": Wrong(
        returning(Agents, "reset", DICT), "reset of Agents", "a dict with the keys 'a', 'b'",
        "expected (observations, infos), each a dict by agent, as in PettingZoo", AGENTS,
    ),
    "a vector, step: None": Wrong(
        returning(Rows, "step", None), "step of Rows", "NoneType", FIVE, IN_ROWS
    ),
    "a vector, step: four values": Wrong(
        returning(Rows, "step", (1, 2, 3, 4)), "step of Rows", "expected 5, got 4", OLD, IN_ROWS
    ),
    "a vector, reset: a list": Wrong(
        returning(Rows, "reset", [0.0, 1.0, 2.0]), "reset of Rows", "a list",
        "expected (observation, info)", IN_ROWS,
    ),
    "a vector, texts": Wrong(
        returning(Rows, "step", (np.full((2, 2), "x"), *NOTHING)), "'observation'", "('x')",
        "expected float32, got strings", IN_ROWS,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "play", "error"), [(name, *each) for name, own in WRONG.items() for each in own.played]
)
def test_what_an_environment_does_wrong(
    name: str, play: Any, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    factory, texts = WRONG[name][0], WRONG[name][1:4]
    with serve(factory) as server:
        Mistake(play, *texts, error).check(server.address)
        kept = server.errors
        assert server.stats().errors == len(kept)
    logged = [each.exc_info[1] for each in caplog.records if each.exc_info]
    assert logged == kept != []
    assert all(text in str(each) for text in texts for each in kept)


@pytest.mark.parametrize("name", ["step: None", "reset: a dict"])
def test_a_wrong_return_of_an_instance(name: str) -> None:
    factory, texts = WRONG[name][0], WRONG[name][1:4]
    with serve(factory()) as server:
        Mistake(play, *texts, DmEnvRpcError).check(server.address)
        assert texts[1] in str(server.errors[0])


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
