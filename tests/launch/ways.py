"""Ways into another process, each with an environment that steps or ends its process."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dm_env_rpc_client import make
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.launch.standalone import FILE
from dm_env_rpc_client.server import serve
from tests.bridges.env_c_api.compiling import compile_library
from tests.bridges.gym_socket.hosted import Counter
from tests.launch.processes import children_of, command_of, is_alive

_COUNTER = f"{Counter.__module__}:{Counter.__name__}"
_STEPS, _EXITS = 0, 3
"""Actions of `Counter`."""

Opening: TypeAlias = Callable[[contextlib.ExitStack, bool], tuple[Any, Any]]


def _launched(address: str, stack: contextlib.ExitStack, dies: bool) -> tuple[Any, Any]:
    env = stack.enter_context(make(address, unwrap_single=True))
    return env, _EXITS if dies else _STEPS


def _process(*words: str) -> Opening:
    return functools.partial(_launched, f"process:{shlex.join([sys.executable, *words])}")


def _worker(stack: contextlib.ExitStack, dies: bool) -> tuple[Any, Any]:
    return _launched(stack.enter_context(serve(Counter, processes=1)).address, stack, dies)


def _gym_socket(stack: contextlib.ExitStack, dies: bool) -> tuple[Any, Any]:
    factories = {"Counter": Counter}
    server = stack.enter_context(gym_socket.serve(factories, "localhost:0", processes=True))
    env = stack.enter_context(gym_socket.GymSocketEnvironment(server.address, "Counter"))
    return env, _EXITS if dies else _STEPS


def _env_c_api(stack: contextlib.ExitStack, dies: bool) -> tuple[Any, Any]:
    source, connect = ("hostile", "connect_exits") if dies else ("complete", "complete_connect")
    library = compile_library(source, "1.4")
    return stack.enter_context(EnvCApiEnvironment(library, connect, isolated=True)), {}


WAYS: Mapping[str, Opening] = {
    "python:": functools.partial(_launched, f"python:{_COUNTER}"),
    "process:": _process("-m", "dm_env_rpc_client.server", _COUNTER, "localhost:{port}"),
    "one file": _process(FILE, _COUNTER, "--address", "localhost:{port}"),
    "worker process": _worker,
    "gym-socket": _gym_socket,
    "EnvCApi": _env_c_api,
}
"""Each opens an environment, which a stack closes, and returns it with an action."""


def descendants(pid: int | None = None) -> set[int]:
    """The living processes that a process, or this one, and what it has started have started."""
    found: set[int] = set()
    for child in children_of(pid or os.getpid()):
        if is_alive(child) and b"resource_tracker" not in command_of(child):
            found |= {child} | descendants(child)
    return found
