"""Steps one version of the package in bursts, as `tests.benchmarks.versions` asks it to.

It runs with the folder of that version first on PYTHONPATH, and first writes which package it has
imported. A process of its own serves the environment. It answers each line on its standard input
with the seconds of a step of a burst: those that passed, and those of processor time at both ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

import dm_env_rpc_client
from tests.benchmarks.processes import process

SCALAR: Any = np.zeros((), np.float32)
PIXELS: Any = np.zeros((84, 84, 4), np.uint8)

Burst = Callable[[int], object]
"""Takes so many steps."""


class Steps(dm_env.Environment):
    """Computes nothing; its sequences do not end."""

    def __init__(self, observation: Any):
        self._observation = observation

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._observation)

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(1.0, self._observation)

    def observation_spec(self) -> Any:
        return specs.Array(self._observation.shape, self._observation.dtype, "observation")

    def action_spec(self) -> Any:
        return specs.DiscreteArray(3, name="action")


class GymnasiumSteps(gymnasium.Env[Any, Any]):
    """`Steps` as a Gymnasium environment, whose info is the same dict in each step."""

    def __init__(self, observation: Any, info: dict[str, Any]):
        high = 255 if observation.dtype == np.uint8 else 1
        self.observation_space = gymnasium.spaces.Box(0, high, observation.shape, observation.dtype)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._observation = observation
        self._info = info

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self._observation, self._info

    def step(self, action: Any) -> Any:
        return self._observation, 1.0, False, False, self._info


def _bursts_of(step: Callable[[], object]) -> Burst:
    def burst(count: int) -> None:
        for _ in range(count):
            step()

    return burst


@contextlib.contextmanager
def _make(address: str, **options: Any) -> Iterator[Burst]:
    from dm_env_rpc_client import make

    with make(address, **options) as env:
        env.reset()
        yield _bursts_of(lambda: env.step({"action": 1}))


@contextlib.contextmanager
def _make_async(address: str) -> Iterator[Burst]:
    from dm_env_rpc_client import make_async

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        env = loop.run_until_complete(make_async(address))
        loop.run_until_complete(env.reset())

        async def burst(count: int) -> None:
            for _ in range(count):
                await env.step({"action": 1})

        yield lambda count: loop.run_until_complete(burst(count))
        loop.run_until_complete(env.close())


@contextlib.contextmanager
def _recorded(address: str) -> Iterator[Burst]:
    with (
        tempfile.TemporaryDirectory() as folder,
        _make(address, record=f"{folder}/steps.mcap") as burst,
    ):
        yield burst


@contextlib.contextmanager
def _batched(address: str, count: int, **options: Any) -> Iterator[Burst]:
    from dm_env_rpc_client.adaptors.vector import BatchedEnvironment

    with BatchedEnvironment(address, count, **options) as env:
        env.reset()
        actions = {"action": np.ones(count, np.int64)}
        yield _bursts_of(lambda: env.step(actions))


@contextlib.contextmanager
def _remote(address: str) -> Iterator[Burst]:
    name = "dm_env_rpc_client.gymnasium:Remote-v0"
    made = gymnasium.make(name, address=address, disable_env_checker=True)
    # The wrappers are Gymnasium's.
    with contextlib.closing(made.unwrapped) as env:
        env.reset(seed=0)
        yield _bursts_of(lambda: env.step(1))


@contextlib.contextmanager
def _vector(address: str, count: int, **options: Any) -> Iterator[Burst]:
    from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv

    with contextlib.closing(RemoteVectorEnv(address, count, **options)) as env:
        env.reset(seed=0)
        actions = np.ones(count, np.int64)
        yield _bursts_of(lambda: env.step(actions))


class Case(NamedTuple):
    """A way of stepping: what is served, and a context with the function that steps it."""

    environment: Callable[[], Any]
    opened: Callable[[str], AbstractContextManager[Burst]]


def _scalars() -> Steps:
    return Steps(SCALAR)


def _pixels() -> Steps:
    return Steps(PIXELS)


def _with_infos() -> GymnasiumSteps:
    return GymnasiumSteps(SCALAR, {"count": 1})


def _without_infos() -> GymnasiumSteps:
    return GymnasiumSteps(SCALAR, {})


CASES = {
    "make": Case(_scalars, _make),
    "make, pixels": Case(_pixels, _make),
    "make, grpc": Case(_scalars, lambda address: _make(address, transport="grpc")),
    "make, recorded": Case(_scalars, _recorded),
    "make_async": Case(_scalars, _make_async),
    "16 streams": Case(_scalars, lambda address: _batched(address, 16, num_batches=0)),
    "batch of 8": Case(_scalars, lambda address: _batched(address, 8)),
    "batch of 64": Case(_scalars, lambda address: _batched(address, 64)),
    "batch of 16, pixels": Case(_pixels, lambda address: _batched(address, 16)),
    "Remote-v0": Case(_with_infos, _remote),
    "Remote-v0, pixels": Case(lambda: GymnasiumSteps(PIXELS, {"count": 1}), _remote),
    "RemoteVectorEnv of 8": Case(_with_infos, lambda address: _vector(address, 8)),
    "RemoteVectorEnv of 64": Case(_with_infos, lambda address: _vector(address, 64)),
    "RemoteVectorEnv of 64, no infos": Case(_without_infos, lambda address: _vector(address, 64)),
    "RemoteVectorEnv, 16 streams": Case(
        _with_infos, lambda address: _vector(address, 16, num_batches=0)
    ),
    "RemoteVectorEnv, 16 streams, no infos": Case(
        _without_infos, lambda address: _vector(address, 16, num_batches=0)
    ),
}


def _serve(told: Pipe, name: str) -> None:
    from dm_env_rpc_client.server import serve

    with serve(CASES[name].environment) as server:
        told.send(server.address)
        while told.recv() is not None:
            told.send(time.process_time())


def _steps_in(burst: Burst, seconds: float) -> int:
    """Returns how many steps take about so long."""
    count = 200
    burst(count)  # Warms up.
    while True:
        began = time.perf_counter()
        burst(count)
        passed = time.perf_counter() - began
        if passed >= seconds / 2:
            return max(1, int(count * seconds / passed))
        count *= 2


def _answer(name: str, seconds: float) -> None:
    with process(_serve, name) as server, CASES[name].opened(server.recv()) as burst:

        def processor_time() -> float:
            server.send("how long")
            other: float = server.recv()
            return time.process_time() + other

        count = _steps_in(burst, seconds)
        print(dm_env_rpc_client.__file__, flush=True)
        for _ in sys.stdin:
            used, began = processor_time(), time.perf_counter()
            burst(count)
            passed, used = time.perf_counter() - began, processor_time() - used
            print(passed / count, used / count, flush=True)


if __name__ == "__main__":
    _answer(sys.argv[1], float(sys.argv[2]))
