"""A recorder that is killed at any moment leaves a recording of all but the last moments.

What was sent or received longer ago than `FLUSH_SECONDS` is with the operating system; the tests
allow a second, since the machine may be loaded.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import dm_env

import dm_env_rpc_client
from dm_env_rpc_client.errors import ConnectionLostError
from dm_env_rpc_client.recording import proxy, read, replay
from dm_env_rpc_client.recording.recorder import FLUSH_SECONDS
from dm_env_rpc_client.server import Catch, Server
from tests.recording.sessions import SETTINGS, assert_same, entries, move
from tests.reliability.scorecard import counts
from tests.support.forks import context, end
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch

COUNTS = counts(3, 50, seconds=900)
MARGIN_SECONDS = 1.0
LEAST_STEPS = 100
"""In the file before a recorder is killed."""


def forward_until_killed(told: Connection, upstream: str, path: str) -> None:
    """A proxy that records."""
    running = proxy(upstream, path)
    told.send(running.address)
    running.wait()


@contextlib.contextmanager
def process_of(target: Callable[..., None], *arguments: Any) -> Iterator[BaseProcess]:
    process = context.Process(target=target, args=arguments, daemon=True)
    process.start()
    try:
        yield process
    finally:
        end(process)


def local(steps: int) -> list[dm_env.TimeStep]:
    """The TimeSteps of the environment itself."""
    env = Catch(**SETTINGS)
    return [env.reset(), *(env.step(move(step)) for step in range(steps))]


def recorded_timesteps(path: Path) -> list[dm_env.TimeStep]:
    recording = read(path)
    assert not recording.is_complete
    return [step for episode in recording.episodes for step in episode.flat_timesteps]


def has_least(path: Path) -> bool:
    """Whether requests and answers of more steps than these have been written."""
    return len(entries(path)) > 2 * LEAST_STEPS + 10


class Progress:
    """How many steps were taken by when."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def note(self, steps: int) -> None:
        self._seen.append((time.monotonic(), steps))

    def check(self, count: int, killed: float, machine: Stopwatch, most: int) -> None:
        """Checks how many steps were recorded, of which the last moments may be missing."""
        moment = killed - MARGIN_SECONDS - machine.allowance
        least = max((steps for when, steps in self._seen if when <= moment), default=0)
        assert least <= count <= most


@COUNTS
def test_a_proxy_that_is_killed(server: Server, tmp_path: Path, count: int) -> None:
    """A client that records has the same recorder."""
    assert FLUSH_SECONDS < MARGIN_SECONDS
    moments = random.Random(count)
    longest = 0
    for index in range(count):
        path = tmp_path / f"{index}.mcap"
        seen: list[dm_env.TimeStep] = []
        progress = Progress()
        mine, its = context.Pipe()
        with process_of(forward_until_killed, its, server.address, str(path)) as process:
            address = mine.recv()
            env = dm_env_rpc_client.make(address, SETTINGS)
            seen.append(env.reset())
            while len(seen) < 2 * LEAST_STEPS:
                seen.append(env.step(move(len(seen) - 1)))
            assert settles(lambda: has_least(path))  # noqa: B023  # at once
            machine = Stopwatch()
            seconds = moments.uniform(0, 1.5 * MARGIN_SECONDS)
            killer = threading.Timer(seconds, process.kill)
            killer.start()
            killed = time.monotonic() + seconds
            with contextlib.suppress(ConnectionLostError):
                while True:
                    seen.append(env.step(move(len(seen) - 1)))
                    progress.note(len(seen))
            env.close()
            killer.join()
        mine.close()
        its.close()
        found = recorded_timesteps(path)
        # The proxy may have recorded an answer that the client did not get any more.
        progress.check(len(found), killed, machine, len(seen) + 1)
        assert_same(seen[: len(found)], found[: len(seen)])
        assert_same(local(len(found))[: len(found)], found)
        longest = max(longest, len(found))
    assert longest > LEAST_STEPS
    # The last one is replayed as far as it goes.
    with replay(path) as replayed, contextlib.suppress(ConnectionLostError):
        env = dm_env_rpc_client.make(replayed.address, SETTINGS)
        assert_same(found[:20], [env.reset(), *(env.step(move(step)) for step in range(19))])
        env.connection.close()
