"""What authors of environments do wrong, and what the one-file server says about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from dm_env_rpc_client import DmEnvRpcError, make
from tests.launch.standalone.interpreters import NEWEST, OLDEST, interpreter, served
from tests.mistakes.doors import Mistake


class Wrong(NamedTuple):
    """Settings of an environment with a mistake, and what is said of it."""

    settings: dict[str, Any]
    where: str
    given: str
    advice: str


TIME_STEP = "expected a TimeStep: TimeStep(step_type, reward, discount, observation)"
GYMNASIUM = "this looks like Gymnasium's interface: inherit from gymnasium.Env"
FIVE = "expected (observation, reward, terminated, truncated, info), as in Gymnasium"
FULL_SERVER = "install dm-env-rpc-client in the environment's Python"
MADE = "expected an environment with the methods of dm_env.Environment, or one of gym"


def of(method: str, value: str, given: str, advice: str) -> Wrong:
    settings = {"method": method, "value": value}
    return Wrong(settings, f"{method} of Countdown returned", given, advice)


MISTAKES: dict[str, Wrong] = {
    "step: None": of("step", "None", "returned None", TIME_STEP),
    "step: a dict": of("step", "dict", "a dict with the key 'counter'", TIME_STEP),
    "step: five values": of("step", "five", "a tuple of 5 values", GYMNASIUM),
    "reset: None": of("reset", "None", "returned None", TIME_STEP),
    "reset: an array": of("reset", "array", "an array float32 [2]", TIME_STEP),
    "reset: two values": of("reset", "two", "a tuple of 2 values", GYMNASIUM),
    "action_spec: a space": of("action_spec", "space", "returned the space Discrete(3)", GYMNASIUM),
    "observation_spec: a space": of(
        "observation_spec", "space", "returned the space Discrete(3)", GYMNASIUM
    ),
    "gym, step: None": Wrong(
        {"method": "step", "gym": True}, "step of CountdownEnv", "returned None", FIVE
    ),
    "gym, step: a TimeStep": Wrong(
        {"method": "step", "value": "TimeStep", "gym": True},
        "step of CountdownEnv", "returned a TimeStep", FIVE,
    ),
    "a function that returns None": Wrong(
        {"method": "factory"}, "the factory returned None", "", MADE
    ),
    "a function that returns a class": Wrong(
        {"method": "factory", "value": "class"},
        "the factory returned the class Countdown", MADE, "call it: Countdown()",
    ),
    "a function that returns a text": Wrong(
        {"method": "factory", "value": "text"}, "the factory returned a str", "", MADE
    ),
    "a function that returns a vector environment": Wrong(
        {"method": "factory", "value": "vector"},
        "the factory returned a CountdownVectorEnv", "a batch of 4 environments", FULL_SERVER,
    ),
    "a function that returns rows": Wrong(
        {"method": "factory", "value": "rows"},
        "the factory returned a CountdownRows", "a batch of 4 environments", FULL_SERVER,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=["this Python", OLDEST, NEWEST])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    version = request.param
    python = sys.executable if version == "this Python" else interpreter(version)
    with served(python, "hosted_mistakes:make") as server:
        yield server.address


def play(address: str, settings: dict[str, Any]) -> None:
    with make(address, settings) as env:
        env.reset()
        (name,) = env.action_spec()
        env.step({name: 1})


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(name: str, address: str) -> None:
    settings, texts = MISTAKES[name][0], MISTAKES[name][1:]
    Mistake(play, *texts, DmEnvRpcError).check(address, settings)


def test_an_environment_that_exists_already(capfd: pytest.CaptureFixture[str]) -> None:
    expected = pytest.raises(AssertionError, match="ended with 1")
    with expected, served(sys.executable, "hosted_mistakes:Countdown.action_spec.__name__"):
        pass
    assert (
        "expected what makes an environment, such as its class, got a str" in capfd.readouterr().err
    )
