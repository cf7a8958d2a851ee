"""How many functions of this package one step calls: `python -m tests.benchmarks.step_calls`.

The processor's time of a cheap step is the calls of Python in it, at each end. Counted are calls
of functions in files of this package, in the thread that steps and in those of a server in another
process, as the mean of many steps after some that warm up. A step of 16 rows is one step. `--list`
names the functions, and `--only` takes the first letters of ways. `--bytecodes` counts bytecodes
instead, those of every Python function; each version of Python has its own.

Everything runs on one processor, where nothing looks before it sleeps: how often it looks is a
matter of chance. So the counts do not depend on the load of a machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import gymnasium
import numpy as np

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.http2.server import answering
from tests.benchmarks.processes import one_processor, process

_OWN = str(Path(dm_env_rpc_client.__file__).parent)
_WARM_UP = 200
_STEPS = 2_000
_ROWS = 16

_BY_THE_CLOCK = ("_watch",)
"""Functions that are called by the clock, and not by steps."""

Counts = collections.Counter[str]
Step: TypeAlias = Callable[[], Any]


class _Calls:
    """Counts the calls of own functions in the threads in which it is the profile function."""

    def __init__(self) -> None:
        self.counts: Counts = collections.Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(_OWN):
            where = frame.f_code.co_filename.removeprefix(_OWN + "/")
            self.counts[f"{where}:{frame.f_code.co_name}"] += 1


class _Bytecodes:
    """Counts the bytecodes of all functions in the threads in which it is the trace function."""

    def __init__(self) -> None:
        self.counts: Counts = collections.Counter()

    def __call__(self, frame: FrameType, event: str, _: Any) -> _Bytecodes:
        if event == "call":
            frame.f_trace_opcodes = True
        elif event == "opcode":
            where = frame.f_code.co_filename.removeprefix(_OWN + "/")
            if frame.f_code.co_name not in _BY_THE_CLOCK:
                self.counts[f"{where}:{frame.f_code.co_name}"] += 1
        return self


def _cart_pole() -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", disable_env_checker=True)


def _serve(told: Pipe, factory: Callable[..., Any], bytecodes: bool) -> None:
    """Serves; answers each question with the counts so far."""
    # Counting makes answers slow, which would then be those of another thread.
    answering._SLOW_SECONDS = math.inf
    counter = _Bytecodes() if bytecodes else _Calls()
    (threading.settrace if bytecodes else threading.setprofile)(counter)
    with serve(factory) as server:
        told.send(server.address)
        while told.recv() is not None:
            told.send(counter.counts)


@contextlib.contextmanager
def _dm_env(address: str) -> Iterator[Step]:
    with dm_env_rpc_client.make(address) as env:
        env.reset()
        yield lambda: env.step({"paddle": 1})


@contextlib.contextmanager
def _proxy(address: str) -> Iterator[Step]:
    name = "dm_env_rpc_client.gymnasium:Remote-v0"
    env = gymnasium.make(name, address=address, disable_env_checker=True).unwrapped
    with contextlib.closing(env):
        env.reset(seed=1)

        def step() -> None:
            _, _, terminated, truncated, _ = env.step(1)
            if terminated or truncated:
                env.reset()

        yield step


@contextlib.contextmanager
def _batched(address: str, num_batches: int) -> Iterator[Step]:
    with BatchedEnvironment(address, _ROWS, num_batches=num_batches) as envs:
        envs.reset()
        actions = {"paddle": np.ones(_ROWS, np.int64)}
        yield lambda: envs.step(actions)


@contextlib.contextmanager
def _vector(address: str, num_batches: int) -> Iterator[Step]:
    with RemoteVectorEnv(address, _ROWS, num_batches=num_batches) as envs:
        envs.reset(seed=1)
        actions = np.ones(_ROWS, np.int64)
        yield lambda: envs.step(actions)


_STREAMS, _BATCH = 0, 1

WAYS: dict[str, tuple[Callable[..., Any], Callable[[str], AbstractContextManager[Step]]]] = {
    "dm_env": (Catch, _dm_env),
    "Gymnasium": (_cart_pole, _proxy),
    "streams of dm_env": (Catch, functools.partial(_batched, num_batches=_STREAMS)),
    "batch of dm_env": (Catch, functools.partial(_batched, num_batches=_BATCH)),
    "streams of dm_env for Gymnasium": (Catch, functools.partial(_vector, num_batches=_STREAMS)),
    "batch of dm_env for Gymnasium": (Catch, functools.partial(_vector, num_batches=_BATCH)),
    "streams of Gymnasium": (_cart_pole, functools.partial(_vector, num_batches=_STREAMS)),
    "batch of Gymnasium": (_cart_pole, functools.partial(_vector, num_batches=_BATCH)),
}
"""What is served, and what steps it."""


def counted(
    way: str, steps: int = _STEPS, *, bytecodes: bool = False
) -> tuple[Counts, Counts, int]:
    """Returns the calls of all steps, at the client and at the server, and how many steps."""
    factory, stepper = WAYS[way]
    counter = _Bytecodes() if bytecodes else _Calls()
    count = sys.settrace if bytecodes else sys.setprofile
    with (
        one_processor(),
        process(_serve, factory, bytecodes) as server,
        stepper(server.recv()) as step,
    ):

        def server_counts() -> Counts:
            server.send("counts")
            found: Counts = server.recv()
            return found

        for _ in range(_WARM_UP):
            step()
        before = server_counts()
        count(counter)
        for _ in range(steps):
            step()
        count(None)
        after = server_counts()
    return counter.counts, after - before, steps


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.step_calls")
    parser.add_argument("--list", action="store_true", help="name the functions")
    parser.add_argument("--only", default="", help="the first letters of ways")
    parser.add_argument("--bytecodes", action="store_true", help="count bytecodes")
    options = parser.parse_args()
    unit = "bytecodes" if options.bytecodes else "calls"
    for way in WAYS:
        if not way.startswith(options.only):
            continue
        client, server, steps = counted(way, bytecodes=options.bytecodes)
        print(way)
        for end, counts in (("client", client), ("server", server)):
            files = {name.split(":")[0] for name in counts}
            print(f"  {end}: {counts.total() / steps:.1f} {unit} a step, in {len(files)} files")
            if options.list:
                for name, count in counts.most_common():
                    if count * 20 >= steps:
                        print(f"    {count / steps:6.2f}  {name}")


if __name__ == "__main__":
    main()
