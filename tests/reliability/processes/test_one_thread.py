"""The threads that call an environment: one, wherever it is served and however slow it is."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Iterator
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


SERVERS: dict[str, Callable[[], Any]] = {
    "http2": lambda: serve(Strict, idle_world_seconds=0.0),
    "grpc": lambda: serve(Strict, idle_world_seconds=0.0, transport="grpc"),
    "threads of worlds": lambda: serve(Strict, idle_world_seconds=0.0, threads="world"),
    "main thread": lambda: serve(Strict, idle_world_seconds=0.0, thread="main"),
    # What they observe cannot be seen from here: they refuse other threads themselves.
    "worker processes": lambda: serve(Strict, idle_world_seconds=0.0, processes=2),
    "one file": lambda: one_file.serve(Strict, idle_world_seconds=0.0),
    "one file, main thread": lambda: one_file.serve(Strict, idle_world_seconds=0.0, thread="main"),
}


@contextlib.contextmanager
def serving(kind: str) -> Iterator[str]:
    """A server, in whose thread something waits if environments want that."""
    server = SERVERS[kind]()
    waiter = threading.Thread(target=server.wait)
    waiter.start()
    try:
        yield server.address
    finally:
        server.stop(10.0)
        waiter.join()
    assert not server.errors


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


def use_rows(address: str, seconds: float, count: int, **how: Any) -> None:
    with BatchedEnvironment(address, 4, {"seconds": seconds}, **how) as envs:
        envs.reset()
        for _ in range(count):
            envs.step({"go": np.ones(4, np.int64)})


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("used", [use, use_rows])
@pytest.mark.parametrize("served", SERVERS)
@counts(10, 100)
def test_one_thread_calls_an_environment_from_its_constructor_to_close(
    served: str,
    used: Callable[[str, float, int], None],
    seconds: float,
    count: int,
    made: list[Strict],
    seen: Seen,
) -> None:
    with serving(served) as address:
        for _ in range(2):  # The second time it is known how long they take.
            used(address, seconds, count if seconds < 1 else 3)
    check(made, seen)
