"""Arguments of `serve`, of launches, of `listen` and of what they return."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest

import dm_env_rpc_client
from dm_env_rpc_client import SpecError, server
from dm_env_rpc_client.launch import from_docker, from_process, from_python
from dm_env_rpc_client.server import Catch
from tests.mistakes.mistake import Mistake

# Also what type checkers refuse.
rpc: Any = dm_env_rpc_client
serve: Any = server.serve
process: Any = from_process
python: Any = from_python
docker: Any = from_docker


def with_server(act: Callable[[Any], Any]) -> None:
    with serve(Catch) as running:
        act(running)


def launched(act: Callable[[Any], Any]) -> None:
    with from_python("dm_env_rpc_client.server:Catch") as launch:
        act(launch)


M = Mistake
SECONDS = "a number of seconds, or None for no limit"
NEVER = "a Restart, or True for Restart(), or None or False for never"
VALUES = "must be a mapping of names to values"
INT = "must be an integer from 1 on"
FLAG = "must be True or False"
LISTEN = "an address to listen at"
KEYS = "did you mean credentials=Tls(cert='server.crt', key='server.key')?"
FOR_ALL = "must be finite and more than 0, or None for no limit"
FROM_0 = "must be finite and at least 0"

MISTAKES: list[Mistake] = [
    # serve
    M(lambda: serve(Catch, 50051), SpecError, LISTEN, "got 50051", "'localhost:50051'?"),
    M(lambda: serve(Catch, None), SpecError, LISTEN, "got None", "looks like 'localhost:50051'"),
    M(lambda: serve(Catch, credentials="server.crt"), SpecError, "credentials",
      "got 'server.crt'", KEYS),
    M(lambda: serve(Catch, credentials=5), SpecError, "credentials", "got int", KEYS),
    M(lambda: serve(Catch, token=5), SpecError, "a token", "got int", "printable ASCII"),
    M(lambda: serve(Catch, insecure="no"), SpecError, "insecure", "got 'no'", FLAG),
    M(lambda: serve(Catch, default_actions=[1]), SpecError, "default_actions", "got [1]",
      "must be a mapping"),
    M(lambda: serve(Catch, default_actions=[]), SpecError, "default_actions", "got []",
      "must be a mapping"),
    M(lambda: serve(Catch, properties={"a": 1}), SpecError, "properties", "got {'a': 1}",
      "must be a Properties, or None"),
    M(lambda: serve(Catch, extensions=[1]), SpecError, "extensions", "got [1]",
      "must be a mapping of classes"),
    M(lambda: serve(Catch, step_timeout=-1), SpecError, "step_timeout", "got -1", FOR_ALL),
    M(lambda: serve(Catch, step_timeout=math.nan), SpecError, "step_timeout", "got nan", FOR_ALL),
    M(lambda: serve(Catch, step_timeout=0), SpecError, "step_timeout", "got 0", FOR_ALL),
    M(lambda: serve(Catch, step_timeout="5"), SpecError, "step_timeout", "got '5'", SECONDS),
    M(lambda: serve(Catch, step_timeout=math.inf), SpecError, "step_timeout", "got inf", FOR_ALL),
    M(lambda: serve(Catch, idle_world_seconds=-1), SpecError, "idle_world_seconds", "got -1",
      "must be finite and at least 0, or None to keep worlds"),
    M(lambda: serve(Catch, idle_world_seconds="60"), SpecError, "idle_world_seconds",
      "got '60'", "must be a number of seconds, or None to keep worlds"),
    M(lambda: serve(Catch, max_connections=0), SpecError, "max_connections", "got 0", INT),
    M(lambda: serve(Catch, max_connections="64"), SpecError, "max_connections", "got '64'", INT),
    M(lambda: serve(Catch, max_worlds=1.5), SpecError, "max_worlds", "got 1.5", INT),
    M(lambda: serve(Catch, max_worlds=None), SpecError, "max_worlds", "got None", INT),
    M(lambda: serve(Catch, send_tracebacks="no"), SpecError, "send_tracebacks", "got 'no'",
      "must be True or False, or None for clients on this machine"),
    M(lambda: serve(Catch, limits=5), SpecError, "limits", "got 5", "must be a Limits"),
    M(lambda: serve(Catch, transport="quic"), SpecError, "transport", "'quic'", "choose one of"),
    M(lambda: serve(Catch, processes="2"), SpecError, "processes", "got '2'", INT),
    M(lambda: serve(Catch, processes=True), SpecError, "processes", "got True", INT),
    M(lambda: serve(Catch, callable_names="reset"), SpecError, "callable_names", "got 'reset'",
      "must be a sequence of names"),
    M(lambda: serve(Catch, callable_names=5), SpecError, "callable_names", "got 5",
      "must be a sequence of names"),
    M(lambda: serve(Catch, autoreset_mode="same"), SpecError, "autoreset_mode", "got 'same'",
      "one of 'NEXT_STEP', 'SAME_STEP', 'DISABLED'"),
    M(lambda: serve(Catch, autoreset_mode=True), SpecError, "autoreset_mode", "got True",
      "None for the mode that the environment declares"),
    M(lambda: serve(Catch, settable_names=["a b"]), SpecError, "settable_names", "got ['a b']",
      "must be a sequence of names"),
    M(lambda: serve(Catch, threads="row"), SpecError, "threads", "'row'", "choose one of 'world'"),
    M(lambda: serve(Catch, threads=4), SpecError, "threads", "4", "choose one of 'world'"),
    M(lambda: serve(Catch, thread="other"), SpecError, "thread", "'other'", "choose one of 'main'"),
    M(lambda: serve(Catch, thread="main", threads="world"), SpecError, "threads", "'world'",
      "pass one of them"),
    M(lambda: with_server(lambda own: own.wait(-1)), SpecError, "timeout", "got -1", FROM_0),
    M(lambda: with_server(lambda own: own.wait("1")), SpecError, "timeout", "got '1'", SECONDS),
    M(lambda: with_server(lambda own: own.stop(None)), SpecError, "grace", "got None",
      "must be a number of seconds"),
    M(lambda: with_server(lambda own: own.stop(math.inf)), SpecError, "grace", "got inf", FROM_0),
    # launch
    M(lambda: process("./engine --port={port}"), SpecError, "argv",
      "got the text './engine --port={port}'", "shlex.split"),
    M(lambda: process([]), SpecError, "argv", "got []", "a list of the program and its arg"),
    M(lambda: process(["engine", 50051]), SpecError, "argv", "got ['engine', 50051]",
      "a list of the program and its arguments"),
    M(lambda: process(["/no", "{port}"], env="A=1"), SpecError, "env", "got 'A=1'",
      "must be a mapping of names to texts, or None"),
    M(lambda: process(["/no", "{port}"], cwd=5), SpecError, "cwd", "got 5", "must be a path"),
    M(lambda: process(["/no"], address=50051), SpecError, "address", "got 50051",
      "must be text, or None"),
    M(lambda: python(Catch), SpecError, "reference", "got the class Catch", "'my_envs:Walker'"),
    M(lambda: python("a:B", python=3.8), SpecError, "python", "got 3.8", "must be a path"),
    M(lambda: python("a:B", timeout="5"), SpecError, "timeout", "got '5'", SECONDS),
    M(lambda: python("a:B", env=[]), SpecError, "env", "got []", "must be a mapping of names"),
    M(lambda: python("a:B", thread="other"), SpecError, "thread", "'other'",
      "choose one of 'main'"),
    M(lambda: docker(5), SpecError, "image", "got 5", "the name of an image"),
    M(lambda: docker("image", "--port=5"), SpecError, "command", "got '--port=5'",
      "must be a list of arguments"),
    M(lambda: docker("image", target=Catch), SpecError, "target", "got the class Catch",
      "a text MODULE:NAME"),
    M(lambda: docker("image", port="50051"), SpecError, "port", "got '50051'",
      "must be an integer from 1 to 65535"),
    M(lambda: docker("image", port=70000), SpecError, "port", "got 70000",
      "must be an integer from 1 to 65535"),
    M(lambda: docker("image", timeout=0), SpecError, "timeout", "got 0", FOR_ALL),
    M(lambda: docker("image", progress=True), SpecError, "progress", "got True",
      "must be a function, or None"),
    M(lambda: docker("image", options={"mem_limit": "1g"}), SpecError, "options",
      "got {'mem_limit': '1g'}", "a list of options of `docker create`"),
    M(lambda: launched(lambda own: own.wait_until_ready(-1)), SpecError, "timeout", "got -1",
      FROM_0),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: f"{each.where}: {each.given}")
def test_a_mistake(mistake: Mistake) -> None:
    mistake.check()


def test_each_argument_has_a_row() -> None:
    rows = {each.where.removeprefix("a ") for each in MISTAKES}
    others = {"environment", "connecting"}  # The first is in `test_calls.py`.
    for function in (server.serve, from_process, from_python, from_docker):
        names = inspect.signature(function).parameters.keys() - others
        names -= {"address"} if LISTEN in rows else set()
        assert names <= rows, function
