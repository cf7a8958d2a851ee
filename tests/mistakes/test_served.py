"""What is given to `serve` by mistake, and what is an environment after all."""

from __future__ import annotations

import logging
import multiprocessing
import threading
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from dm_env_rpc_client.server import Race
from tests.mistakes.doors import Mistake
from tests.mistakes.wrong_environments import (
    INHERIT,
    Countdown,
    CountdownEnv,
    play,
    returning,
    serve,
)


class Thing:
    """No environment."""


class Stepping:
    """Half of one."""

    def step(self, action: Any) -> None:
        """Does nothing."""


class Half(Stepping):
    """As much as can be seen of a class, and no more."""

    def reset(self) -> None:
        """Does nothing."""


SERVED = (
    "a dm_env.Environment, a gymnasium.Env or gymnasium.vector.VectorEnv, a PettingZoo "
    "environment, a Game or a World"
)
AT_SERVE: dict[str, Mistake] = {
    "a class": Mistake(lambda: serve(Thing), "the environment", "the class Thing", SERVED),
    "a class without reset": Mistake(
        lambda: serve(Stepping), "the environment", "it has no reset;", SERVED,
    ),
    "a class of Python": Mistake(lambda: serve(dict), "the environment", "the class dict", SERVED),
    "a class in a dict": Mistake(
        lambda: serve({"x": Thing}), "environment 'x'", "the class Thing", SERVED,
    ),
    "a number": Mistake(lambda: serve(3.5), "the environment", "got float", SERVED),
    "a module": Mistake(lambda: serve(logging), "the environment", "got module", SERVED),
    "a list": Mistake(lambda: serve([Countdown]), "the environment", "got list", SERVED),
    "an instance that is half of one": Mistake(
        lambda: serve(Half()), "the environment is an instance of Half",
        "which has no action_spec, observation_spec, reward_spec, discount_spec", SERVED, TypeError,
    ),
    "an instance with a space that has no spec": Mistake(
        lambda: serve(strange()), "action_space", "Strange", "",
    ),
    "an instance whose spec is a space": Mistake(
        lambda: serve(returning(Countdown, "action_spec", spaces.Discrete(3))()),
        "action_spec of Countdown", "returned Discrete(3)", INHERIT, TypeError,
    ),
    "an instance without spaces": Mistake(
        lambda: serve(type("Spaceless", (gymnasium.Env,), {})()), "Spaceless has no action_space",
        "", "set self.action_space", TypeError,
    ),
    "an instance with several processes": Mistake(
        lambda: serve(CountdownEnv(), processes=2), "processes=2", "an instance of CountdownEnv",
        "pass a factory",
    ),
    "a function that cannot be sent": Mistake(
        lambda: serve(lambda: play, processes=2), "environment", "cannot be sent to worker",
        "of a module",
    ),
    "such a function in a dict": Mistake(
        lambda: serve({"a": lambda: play}, processes=2), "environment 'a'",
        "cannot be sent", "of a module",
    ),
    "a default action that cannot be sent": Mistake(
        lambda: serve(Countdown, processes=2, default_actions={"subtract": threading.Lock()}),
        "default_actions", "cannot be sent", "",
    ),
    "a game in a dict": Mistake(
        lambda: serve({"x": Race()}), "environment 'x'", "an existing Race",
        "pass it alone, or pass a factory, such as Race",
    ),
    "a default action": Mistake(
        lambda: serve(Countdown(), default_actions={"substract": 1}), "default action",
        "'substract'", "is not an action of the environment",
    ),
}  # fmt: skip


def strange() -> Any:
    class Strange(spaces.Space[Any]):
        """A space that nobody knows."""

    env: Any = CountdownEnv()
    env.action_space = Strange()
    return env


@pytest.mark.parametrize("name", AT_SERVE)
def test_what_serve_refuses_at_once(name: str) -> None:
    before = set(multiprocessing.active_children())
    AT_SERVE[name].check()
    assert set(multiprocessing.active_children()) <= before


class Delegating:
    """Has its methods from elsewhere."""

    def __init__(self) -> None:
        self._environment = Countdown()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)


class Renamed:
    """Makes something else."""

    def __new__(cls) -> Any:
        return Countdown()


@pytest.mark.parametrize("served", [Delegating, Renamed, Delegating()])
def test_classes_that_may_be_environments_after_all_are_served(served: Any) -> None:
    with serve(served) as server:
        play(server.address)
        assert server.errors == []
