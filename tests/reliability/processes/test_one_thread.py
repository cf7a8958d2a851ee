"""The threads that call an environment: one, wherever it is served and however slow it is."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    connect,
    create_world,
    destroy_world,
    join_world,
    make,
    reset_world,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server as one_file
from dm_env_rpc_client.server import serve
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.server.one_thread import Level
from tests.support.scripted import settles

pytestmark = pytest.mark.row(60)

TRANSPORTS = ["http2"]  # Of clients; those of servers have tests of their own.

SECONDS = [
    0.0, 0.002, 0.003, 0.006,
    pytest.param(2.0, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
]  # fmt: skip


class Strict(Level):
    """Refuses every other thread than the one that has made it, and counts calls of each."""

    made: list[Strict] = []  # noqa: RUF012  # for the test that has it emptied

    def __init__(self, seconds: float = 0.0, gain: int = 1) -> None:
        super().__init__()
        self.step_seconds = seconds
        self._ident = threading.get_ident()
        self.threads.note("constructor")
        self.made.append(self)

    def reset(self) -> dm_env.TimeStep:
        assert threading.get_ident() == self._ident
        return super().reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        assert threading.get_ident() == self._ident
        return super().step(action)


@pytest.fixture(autouse=True)
def made() -> Iterator[list[Strict]]:
    Strict.made.clear()
    yield Strict.made
    Strict.made.clear()


def check(made: list[Strict], seen: Seen) -> None:
    assert settles(lambda: all(level.threads.closed == 1 for level in made))
    for level in made:
        level.threads.the_one("constructor", "close")
    seen(environments=len(made), threads_of_one=1.0)


@contextlib.contextmanager
def serving(**options: Any) -> Iterator[str]:
    """A server, in whose thread something waits if environments want that."""
    with serve(Strict, idle_world_seconds=0.0, **options) as server:
        waiter = threading.Thread(target=server.wait)
        waiter.start()
        yield server.address
        server.stop()
        waiter.join()
        assert server.errors == []


def use(address: str, seconds: float, count: int) -> None:
    """Environments alone and together, and what other clients ask of them."""
    settings = {"seconds": seconds}
    with contextlib.ExitStack() as stack:
        envs = [stack.enter_context(make(address, settings)) for _ in range(3)]
        for env in envs:
            env.reset()
        for _ in range(count):
            for future in [env.submit_step({"go": 1}) for env in envs]:
                future.result()
        for env in envs:
            assert PropertiesExtension(env.connection)["steps"] >= count
            env.reset({"gain": 2})
    with connect(address) as one, connect(address) as other:
        name = create_world(one, settings)
        joined = join_world(other, name)
        joined.reset()
        with concurrent.futures.ThreadPoolExecutor() as executor:
            reset = executor.submit(reset_world, one, name, settings)
            while not joined.step({"go": 1}).last():
                pass
            reset.result()
        joined.reset()
        joined.step({"go": 1})
        joined.close()
        destroy_world(one, name)


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("served_by", ["http2", "grpc"])
@pytest.mark.parametrize("options", [{}, {"threads": "world"}, {"thread": "main"}], ids=str)
@counts(10, 100)
def test_alone_and_in_streams(
    seconds: float, served_by: Any, options: Any, count: int, made: list[Strict], seen: Seen
) -> None:
    with serving(transport=served_by, **options) as address:
        for _ in range(2):  # The second time it is known how long they take.
            use(address, seconds, count if seconds < 1 else 3)
    check(made, seen)


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("options", [{}, {"threads": "world"}, {"thread": "main"}], ids=str)
@counts(10, 100)
def test_in_a_batch(
    seconds: float, options: Any, count: int, made: list[Strict], seen: Seen
) -> None:
    settings = {"seconds": seconds}
    with serving(**options) as address:
        for _ in range(2):
            with BatchedEnvironment(address, 4, settings) as envs:
                envs.reset()
                for _ in range(count if seconds < 1 else 2):
                    envs.step({"go": np.ones(4, np.int64)})
    check(made, seen)


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("num_batches", [0, 1], ids=["streams", "batch"])
@counts(10, 100)
def test_in_worker_processes(seconds: float, num_batches: int, count: int, seen: Seen) -> None:
    """What they observe cannot be seen from here: they refuse other threads themselves."""
    settings = {"seconds": seconds}
    with serve(Strict, processes=2) as server:
        for _ in range(2):
            with BatchedEnvironment(server.address, 4, settings, num_batches=num_batches) as envs:
                envs.reset()
                for _ in range(count if seconds < 1 else 2):
                    envs.step({"go": np.ones(4, np.int64)})
        assert server.stop()
        assert server.errors == []
    seen(environments=8, threads_of_one=1.0)


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("thread", [None, "main"])
@counts(10, 100)
def test_in_one_file(
    seconds: float, thread: Any, count: int, made: list[Strict], seen: Seen
) -> None:
    server = one_file.serve(Strict, idle_world_seconds=0.0, thread=thread)
    waiter = threading.Thread(target=server.wait)
    waiter.start()
    try:
        use(server.address, seconds, count if seconds < 1 else 3)
    finally:
        server.stop(1.0)
        waiter.join()
    assert not server.errors
    check(made, seen)
