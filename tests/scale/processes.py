"""Server processes that a run starts and ends, and what they use of the machine."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

import dm_env

from dm_env_rpc_client.server import serve
from tests import forks
from tests.benchmarks.cheap import Cheap

__all__ = [
    "MAX_CONNECTIONS",
    "Busy",
    "Process",
    "Usage",
    "process",
    "quietest",
    "served",
    "usage",
    "waited",
]

MAX_CONNECTIONS = 1024
"""What 1,000 environments need; the default of `serve` is 256."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What a process has used."""

    cpu: float
    """Seconds of the processors, of all threads."""

    waited: float
    """Seconds for which its thread was ready to run, and others had the processors: of several
    threads, which wait at the same time and for one another, that which waited most."""

    memory: int
    """Resident bytes now."""


def usage() -> Usage:
    """Returns what this process has used."""
    most = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # The thread has ended.
            most = max(most, int(path.read_text().split()[1]))
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return Usage(time.process_time(), most / 1e9, resident * _PAGE_BYTES)


def waited() -> float:
    """Returns the seconds for which this thread was ready to run, and others had the processors."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def quietest(turns: Sequence[tuple[float, float]], count: int) -> list[tuple[float, float]]:
    """Returns the turns in which processes waited least for a processor.

    Args:
      turns: the share of the time that was waited in each, and what was measured.
      count: how many to return.
    """
    return sorted(turns)[:count]


class Process:
    """The other end of a process.

    Attributes:
      address: where it serves.
    """

    def __init__(self, told: Pipe):
        self._told = told
        self.address: str = told.recv()

    def ask(self, question: Any) -> Any:
        """Returns the answer to a question; the processes of this package know what it means."""
        self._told.send(question)
        return self._told.recv()

    def usage(self) -> Usage:
        """Returns what it has used."""
        found: Usage = self.ask(Usage)
        return found


@contextlib.contextmanager
def process(target: Callable[..., None], *arguments: Any) -> Iterator[Process]:
    """Starts a process, which says its address first, and kills it."""
    mine, its = forks.context.Pipe()
    started = forks.context.Process(target=target, args=(its, *arguments), daemon=True)
    started.start()
    its.close()
    try:
        yield Process(mine)
    finally:
        mine.close()
        forks.end(started)


class Busy(Cheap):
    """Computes for so many seconds of its processor in each step, and lets nobody else run.

    Args:
      payload: what it observes; a name of `PAYLOADS`.
      seconds: how long.
      waits: whether it waits for so many seconds instead, as for a program that computes elsewhere.
    """

    def __init__(self, payload: str, seconds: float = 0.0, waits: bool = False):
        super().__init__(payload)
        self._seconds = seconds
        self._waits = waits

    def step(self, action: Any) -> dm_env.TimeStep:
        if self._waits:
            time.sleep(self._seconds)
            return super().step(action)
        ends = time.thread_time() + self._seconds
        while time.thread_time() < ends:
            pass
        return super().step(action)


def _be_a_server(told: Pipe) -> None:
    with serve(Busy, max_connections=MAX_CONNECTIONS) as server:
        told.send(server.address)
        with contextlib.suppress(EOFError):
            while told.recv():
                told.send(usage())


@contextlib.contextmanager
def served() -> Iterator[Process]:
    """This package's server, of `Busy` environments, in a process of its own."""
    with process(_be_a_server) as running:
        yield running
