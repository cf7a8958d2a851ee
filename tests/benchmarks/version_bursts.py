"""Steps of one version of the package: a program that `versions` runs once for each version.

It is started with the version first on PYTHONPATH, and imports nothing of the tests. It serves an
environment in a process of its own and steps it in bursts, one for each line on its standard input,
and answers each with the wall time and both processes' processor time, in microseconds a step.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import gymnasium
import numpy as np
from dm_env import specs

SHAPES: dict[str, tuple[tuple[int, ...], type]] = {
    "scalar": ((), np.float32),
    "pixels": ((84, 84, 4), np.uint8),
    "no infos": ((), np.float32),
}


class Steps(dm_env.Environment):
    """An environment that computes nothing, whose sequences do not end."""

    def __init__(self, kind: str = "scalar"):
        shape, dtype = SHAPES[kind]
        self._observation: Any = np.zeros(shape, dtype)

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._observation)

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(1.0, self._observation)

    def observation_spec(self) -> Any:
        return specs.Array(self._observation.shape, self._observation.dtype, "observation")

    def action_spec(self) -> Any:
        return specs.DiscreteArray(3, name="action")


class GymSteps(gymnasium.Env[Any, Any]):
    """`Steps`, as a Gymnasium environment."""

    def __init__(self, kind: str = "scalar", render_mode: str | None = None):
        shape, dtype = SHAPES[kind]
        top = 255 if dtype is np.uint8 else 1
        self.observation_space = gymnasium.spaces.Box(0, top, shape, dtype)
        self.action_space = gymnasium.spaces.Discrete(3)
        self._observation: Any = np.zeros(shape, dtype)
        self._info = {} if kind == "no infos" else {"count": 1}

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._observation, self._info

    def step(self, action: Any) -> Any:
        return self._observation, 1.0, False, False, self._info


@contextlib.contextmanager
def _dm(address: str, **options: Any) -> Iterator[Callable[[], object]]:
    from dm_env_rpc_client import make

    with make(address, **options) as env:
        env.reset()
        yield lambda: env.step({"action": 1})


@contextlib.contextmanager
def _asyncio(address: str) -> Iterator[Callable[[int], object]]:
    from dm_env_rpc_client import make_async

    loop = asyncio.new_event_loop()
    env = loop.run_until_complete(make_async(address))
    loop.run_until_complete(env.reset())

    async def many(count: int) -> None:
        for _ in range(count):
            await env.step({"action": 1})

    yield lambda count: loop.run_until_complete(many(count))
    loop.run_until_complete(env.close())
    loop.close()


@contextlib.contextmanager
def _recorded(address: str) -> Iterator[Callable[[], object]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        _dm(address, record=f"{folder}/steps.mcap") as step,
    ):
        yield step


@contextlib.contextmanager
def _rows(address: str, count: int, **options: Any) -> Iterator[Callable[[], object]]:
    from dm_env_rpc_client.adaptors.vector import BatchedEnvironment

    with BatchedEnvironment(address, count, **options) as env:
        env.reset()
        actions = {"action": np.ones(count, np.int64)}
        yield lambda: env.step(actions)


@contextlib.contextmanager
def _remote(address: str) -> Iterator[Callable[[], object]]:
    env = gymnasium.make(
        "dm_env_rpc_client.gymnasium:Remote-v0", address=address, disable_env_checker=True
    ).unwrapped
    env.reset(seed=0)
    yield lambda: env.step(1)
    env.close()


@contextlib.contextmanager
def _vector(address: str, count: int, **options: Any) -> Iterator[Callable[[], object]]:
    from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv

    env = RemoteVectorEnv(address, count, **options)
    env.reset(seed=0)
    actions = np.ones(count, np.int64)
    yield lambda: env.step(actions)
    env.close()


CASES: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "make": ("Steps", "scalar", _dm),
    "make, pixels": ("Steps", "pixels", _dm),
    "make, grpc": ("Steps", "scalar", lambda a: _dm(a, transport="grpc")),
    "make, recorded": ("Steps", "scalar", _recorded),
    "make_async": ("Steps", "scalar", _asyncio),
    "16 streams": ("Steps", "scalar", lambda a: _rows(a, 16, num_batches=0)),
    "batch of 8": ("Steps", "scalar", lambda a: _rows(a, 8)),
    "batch of 64": ("Steps", "scalar", lambda a: _rows(a, 64)),
    "batch of 16, pixels": ("Steps", "pixels", lambda a: _rows(a, 16)),
    "Remote-v0": ("GymSteps", "scalar", _remote),
    "Remote-v0, pixels": ("GymSteps", "pixels", _remote),
    "RemoteVectorEnv of 8": ("GymSteps", "scalar", lambda a: _vector(a, 8)),
    "RemoteVectorEnv of 64": ("GymSteps", "scalar", lambda a: _vector(a, 64)),
    "RemoteVectorEnv of 64, no infos": ("GymSteps", "no infos", lambda a: _vector(a, 64)),
    "RemoteVectorEnv, 16 streams, no infos": (
        "GymSteps",
        "no infos",
        lambda a: _vector(a, 16, num_batches=0),
    ),
    "RemoteVectorEnv, 16 streams": ("GymSteps", "scalar", lambda a: _vector(a, 16, num_batches=0)),
}
"""Name -> the class that is served, what it shows, and a context with a function that steps."""


def _serve(name: str) -> None:
    from dm_env_rpc_client.server import serve

    served, kind, _ = CASES[name]
    with serve(lambda: globals()[served](kind)) as server:
        print(server.address, flush=True)
        for _ in sys.stdin:
            print(time.process_time(), flush=True)


def _step(name: str, seconds: float) -> None:
    server = subprocess.Popen(
        [sys.executable, __file__, "serve", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert server.stdin is not None
    assert server.stdout is not None

    def processor_time() -> float:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write("\n")
        server.stdin.flush()
        return time.process_time() + float(server.stdout.readline())

    try:
        with CASES[name][2](server.stdout.readline().strip()) as step:
            take_many = step if name == "make_async" else None

            def burst(count: int) -> None:
                if take_many is not None:
                    take_many(count)
                else:
                    for _ in range(count):
                        step()

            burst(200)
            count = 200
            while True:
                began = time.perf_counter()
                burst(count)
                passed = time.perf_counter() - began
                if passed >= seconds / 2:
                    break
                count *= 2
            count = max(1, int(count * seconds / passed))
            print("ready", flush=True)
            for _ in sys.stdin:
                used, began = processor_time(), time.perf_counter()
                burst(count)
                wall, used = time.perf_counter() - began, processor_time() - used
                print(wall / count * 1e6, used / count * 1e6, flush=True)
    finally:
        server.stdin.close()
        server.wait(60)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _step(sys.argv[2], float(sys.argv[3]))
