"""What is given to `serve` by mistake, and what is an environment after all."""

from __future__ import annotations

import inspect
import logging
import math
import multiprocessing
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from dm_env_rpc_client import server
from dm_env_rpc_client.launch import from_docker, from_process, from_python
from dm_env_rpc_client.server import Catch, Race
from tests.mistakes.doors import FLAG, FOR_ALL, FROM_0, INT, KEYS, LISTEN, SECONDS, M, Mistake
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


# Also what type checkers refuse.
process: Any = from_process
python: Any = from_python
docker: Any = from_docker


def with_server(act: Callable[[Any], Any]) -> None:
    with serve(Catch) as running:
        act(running)


def launched(act: Callable[[Any], Any]) -> None:
    with from_python("dm_env_rpc_client.server:Catch") as launch:
        act(launch)


MISTAKES: list[M] = [
    # serve
    M(lambda: serve(Catch, 50051), LISTEN, "got 50051", "'localhost:50051'?"),
    M(lambda: serve(Catch, None), LISTEN, "got None", "looks like 'localhost:50051'"),
    M(lambda: serve(Catch, credentials="server.crt"), "credentials", "got 'server.crt'", KEYS),
    M(lambda: serve(Catch, credentials=5), "credentials", "got int", KEYS),
    M(lambda: serve(Catch, token=5), "a token", "got int", "printable ASCII"),
    M(lambda: serve(Catch, insecure="no"), "insecure", "got 'no'", FLAG),
    M(lambda: serve(Catch, default_actions=[1]), "default_actions", "got [1]", "must be a mapping"),
    M(lambda: serve(Catch, default_actions=[]), "default_actions", "got []", "must be a mapping"),
    M(lambda: serve(Catch, properties={"a": 1}), "properties", "got {'a': 1}",
      "must be a Properties, or None"),
    M(lambda: serve(Catch, extensions=[1]), "extensions", "got [1]",
      "must be a mapping of classes"),
    M(lambda: serve(Catch, step_timeout=-1), "step_timeout", "got -1", FOR_ALL),
    M(lambda: serve(Catch, step_timeout=math.nan), "step_timeout", "got nan", FOR_ALL),
    M(lambda: serve(Catch, step_timeout=0), "step_timeout", "got 0", FOR_ALL),
    M(lambda: serve(Catch, step_timeout="5"), "step_timeout", "got '5'", SECONDS),
    M(lambda: serve(Catch, step_timeout=math.inf), "step_timeout", "got inf", FOR_ALL),
    M(lambda: serve(Catch, idle_world_seconds=-1), "idle_world_seconds", "got -1",
      "must be finite and at least 0, or None to keep worlds"),
    M(lambda: serve(Catch, idle_world_seconds="60"), "idle_world_seconds", "got '60'",
      "must be a number of seconds, or None to keep worlds"),
    M(lambda: serve(Catch, max_connections=0), "max_connections", "got 0", INT),
    M(lambda: serve(Catch, max_connections="64"), "max_connections", "got '64'", INT),
    M(lambda: serve(Catch, max_worlds=1.5), "max_worlds", "got 1.5", INT),
    M(lambda: serve(Catch, max_worlds=None), "max_worlds", "got None", INT),
    M(lambda: serve(Catch, send_tracebacks="no"), "send_tracebacks", "got 'no'",
      "must be True or False, or None for clients on this machine"),
    M(lambda: serve(Catch, limits=5), "limits", "got 5", "must be a Limits"),
    M(lambda: serve(Catch, transport="quic"), "transport", "'quic'", "choose one of"),
    M(lambda: serve(Catch, processes="2"), "processes", "got '2'", INT),
    M(lambda: serve(Catch, processes=True), "processes", "got True", INT),
    M(lambda: serve(Catch, callable_names="reset"), "callable_names", "got 'reset'",
      "must be a sequence of names"),
    M(lambda: serve(Catch, callable_names=5), "callable_names", "got 5",
      "must be a sequence of names"),
    M(lambda: serve(Catch, autoreset_mode="same"), "autoreset_mode", "got 'same'",
      "one of 'NEXT_STEP', 'SAME_STEP', 'DISABLED'"),
    M(lambda: serve(Catch, autoreset_mode=True), "autoreset_mode", "got True",
      "None for the mode that the environment declares"),
    M(lambda: serve(Catch, arrays="tensor"), "arrays", "'tensor'", "choose one of 'auto', 'numpy'"),
    M(lambda: serve(Catch, arrays=True), "arrays", "True", "choose one of 'auto', 'numpy'"),
    M(lambda: serve(Catch, settable_names=["a b"]), "settable_names", "got ['a b']",
      "must be a sequence of names"),
    M(lambda: serve(Catch, threads="row"), "threads", "'row'", "choose one of 'world'"),
    M(lambda: serve(Catch, threads=4), "threads", "4", "choose one of 'world'"),
    M(lambda: serve(Catch, singleton="yes"), "singleton", "got 'yes'", FLAG),
    M(lambda: serve(Catch, singleton=True, processes=2), "singleton", "processes=2",
      "start a server for each simulator"),
    M(lambda: serve(Catch, thread="other"), "thread", "'other'", "choose one of 'main'"),
    M(lambda: serve(Catch, thread="main", threads="world"), "threads", "'world'",
      "pass only one of these"),
    M(lambda: with_server(lambda own: own.wait(-1)), "timeout", "got -1", FROM_0),
    M(lambda: with_server(lambda own: own.wait("1")), "timeout", "got '1'", SECONDS),
    M(lambda: with_server(lambda own: own.stop(None)), "grace", "got None",
      "must be a number of seconds"),
    M(lambda: with_server(lambda own: own.stop(math.inf)), "grace", "got inf", FROM_0),
    # launch
    M(lambda: process("./engine --port={port}"), "argv", "got the string './engine --port={port}'",
      "shlex.split"),
    M(lambda: process([]), "argv", "got []", "a list of the program and its arg"),
    M(lambda: process(["engine", 50051]), "argv", "got ['engine', 50051]",
      "a list of the program and its arguments"),
    M(lambda: process(["/no", "{port}"], env="A=1"), "env", "got 'A=1'",
      "must be a mapping of names to strings, or None"),
    M(lambda: process(["/no", "{port}"], cwd=5), "cwd", "got 5", "must be a path"),
    M(lambda: process(["/no"], address=50051), "address", "got 50051", "must be text, or None"),
    M(lambda: python(Catch), "reference", "got the class Catch", "'my_envs:Walker'"),
    M(lambda: python("a:B", python=3.8), "python", "got 3.8", "must be a path"),
    M(lambda: python("a:B", timeout="5"), "timeout", "got '5'", SECONDS),
    M(lambda: python("a:B", env=[]), "env", "got []", "must be a mapping of names"),
    M(lambda: python("a:B", thread="other"), "thread", "'other'", "choose one of 'main'"),
    M(lambda: docker(5), "image", "got 5", "the name of an image"),
    M(lambda: docker("image", "--port=5"), "command", "got '--port=5'",
      "must be a list of arguments"),
    M(lambda: docker("image", target=Catch), "target", "got the class Catch",
      "a string MODULE:NAME"),
    M(lambda: docker("image", port="50051"), "port", "got '50051'",
      "must be an integer from 1 to 65535"),
    M(lambda: docker("image", port=70000), "port", "got 70000",
      "must be an integer from 1 to 65535"),
    M(lambda: docker("image", timeout=0), "timeout", "got 0", FOR_ALL),
    M(lambda: docker("image", progress=True), "progress", "got True",
      "must be a function, or None"),
    M(lambda: docker("image", options={"mem_limit": "1g"}), "options", "got {'mem_limit': '1g'}",
      "a list of options of `docker create`"),
    M(lambda: launched(lambda own: own.wait_until_ready(-1)), "timeout", "got -1", FROM_0),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.where}: {each.given}")
def test_a_mistake(mistake: M) -> None:
    mistake.check()


def test_each_argument_has_a_row() -> None:
    rows = {each.where.removeprefix("a ") for each in MISTAKES}
    others = {"environment", "connecting"}  # The first is in `test_calls.py`.
    for function in (server.serve, from_process, from_python, from_docker):
        names = inspect.signature(function).parameters.keys() - others
        names -= {"address"} if LISTEN in rows else set()
        assert names <= rows, function
