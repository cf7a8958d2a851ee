"""Ways into another process: each answers, says how it ended, and ends with what has started it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import shlex
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from dm_env_rpc_client import DmEnvRpcClientError, make
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.launch.standalone import FILE
from dm_env_rpc_client.server import serve
from tests.bridges.env_c_api.compiling import compile_library
from tests.bridges.gym_socket.hosted import Counter
from tests.launch.processes import (
    ECHO,
    ROOT,
    children_of,
    command_of,
    is_alive,
)
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.programs import run_python
from tests.support.scripted import settles

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


TOLD = {
    "gym-socket": "ended the connection",  # The protocol has no words for more.
    "EnvCApi": "it exited with code 3",
    "worker process": "the process hosting this stream's world has ended",
}
"""What the client is told of the end of the process, where it is not its exit code."""

each_way = pytest.mark.parametrize("way", WAYS)


@each_way
def test_it_answers_and_ends_with_its_environment(way: str) -> None:
    before = descendants()
    with contextlib.ExitStack() as stack:
        env, action = WAYS[way](stack, False)
        assert env.reset().first()
        assert env.step(action).mid()
        assert descendants() > before
    assert settles(lambda: descendants() <= before, 20)


@each_way
def test_the_end_of_the_process_is_told(way: str) -> None:
    before = descendants()
    with contextlib.ExitStack() as stack:
        env, action = WAYS[way](stack, True)
        env.reset()
        with pytest.raises(DmEnvRpcClientError, match=TOLD.get(way, "exit code 3")):
            env.step(action)
    assert settles(lambda: descendants() <= before, 20)


@each_way
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_what_is_forgotten_ends(way: str) -> None:
    before = descendants()
    stack = contextlib.ExitStack()
    env, _ = WAYS[way](stack, False)
    env.reset()
    assert descendants() > before
    stack.pop_all()
    del env, stack
    gc.collect()
    assert settles(lambda: descendants() <= before, 20)


PROGRAM = """
import contextlib, os, sys
from tests.launch.test_ways import WAYS, descendants
if __name__ == "__main__":
    stack = contextlib.ExitStack()
    env, _ = WAYS[sys.argv[1]](stack, False)
    env.reset()
    print(*descendants(), flush=True)
    exec(sys.argv[2])
"""
ENDS = {"": 0, "os.kill(os.getpid(), 9)": -9}
MORE_ENDS = {"os._exit(0)": 0, "os.kill(os.getpid(), 15)": -15, "1 / 0": 1}


@pytest.mark.parametrize(
    ("way", "end", "code"),
    [
        *((way, *end) for way in WAYS for end in ENDS.items()),
        *(("python:", *end) for end in MORE_ENDS.items()),
    ],
)
def test_nothing_outlives_the_program_that_started_it(way: str, end: str, code: int) -> None:
    finished = run_python("-c", PROGRAM, way, end, code=code)
    assert ("ZeroDivisionError" in finished.stderr) if "/" in end else finished.stderr == ""
    pids = [*map(int, finished.stdout.split())]
    assert pids
    assert settles(lambda: not any(map(is_alive, pids)), 20)


CLIENT = f"""
from dm_env_rpc_client import make
env = make({ECHO!r})
timestep = env.reset()
step = 0
while True:
    step += 1
    assert env.step({{"value": step}}).observation["value"] == step
    if step == 1:
        print("stepped", flush=True)
"""


@counts(3, 50)
def test_clients_that_are_killed(count: int, tmp_path: Path, seen: Seen) -> None:
    chance = random.Random(count)
    served = 0
    for number in range(count):
        mark = uuid.uuid4().hex
        with subprocess.Popen(
            [sys.executable, "-c", CLIENT],
            cwd=ROOT,
            env={**os.environ, "MARK": mark, "TMPDIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            # Every other one is served, whatever the machine does besides.
            if number % 2:
                time.sleep(chance.uniform(0.0, 3.0))  # At any moment.
            else:
                assert client.stdout is not None
                assert client.stdout.readline() == "stepped\n"
            assert client.poll() is None
            served += len(list(marked(mark))) > 1
            client.kill()
        assert settles(lambda mark=mark: not list(marked(mark)), 20)  # type: ignore[misc]
    assert served >= count / 2
    # What was killed before there was a supervisor may leave an empty folder behind.
    assert [path for path in tmp_path.iterdir() if any(path.iterdir())] == []
    seen(clients=count, with_servers=served)


def marked(mark: str) -> Iterator[int]:
    """Yields the processes with a text in the environment that they were started with."""
    for each in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            is_running = each.isdigit() and is_alive(int(each))
            if is_running and mark.encode() in Path(f"/proc/{each}/environ").read_bytes():
                yield int(each)
