"""Server processes that a run starts and ends, what they use of the machine, and who disturbs them.

Two things disturb a measurement, and neither is seen in what is measured. Other programs may have
the processors for a while: the kernel counts for how long a thread was ready to run and had to
wait. And a processor may be slower for a while, 1.75 times on a machine of two: it is one half of
a core whose other half belongs to another machine. Nothing counts that, so a short loop is timed
before and after, in all processes that take part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import dm_env

from dm_env_rpc_client.server import serve
from tests.benchmarks.cheap import Cheap
from tests.support import forks

__all__ = [
    "MAX_CONNECTIONS",
    "Busy",
    "Process",
    "Turn",
    "Usage",
    "Watch",
    "answer",
    "on_one_core",
    "process",
    "quietest",
    "served",
    "usage",
]

MAX_CONNECTIONS = 1024
"""What 1,000 environments need; the default of `serve` is 256."""

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CORES = sorted(os.sched_getaffinity(0))
_PACED = range(1500)
_PACES = 3
"""The loop of `pace`, and how often it runs."""

Found = TypeVar("Found")
_Process = TypeVar("_Process", bound="Process")


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


def pace() -> float:
    """Returns the seconds that this processor takes now for a loop, which is always the same."""
    found = []
    for _ in range(_PACES):
        begin = time.perf_counter()
        total = 0
        for number in _PACED:
            total += number * number
        found.append(time.perf_counter() - begin)
    return min(found)


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Keeps this process on one core, and those that it starts meanwhile on the others."""
    os.sched_setaffinity(0, _CORES[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, _CORES)


class _Fastest:
    pace = math.inf


@dataclasses.dataclass(frozen=True)
class Turn(Generic[Found]):
    """What was measured in a turn.

    Attributes:
      found: what was measured.
      waited: the share of its time for which processes waited for a processor.
      pace: the longest `pace` before and after it.
    """

    found: Found
    waited: float
    pace: float

    @property
    def disturbance(self) -> float:
        """The share of its time that others took, at least: 0 for none."""
        return max(self.waited, 1 - _Fastest.pace / self.pace)


class Watch:
    """Watches this process, and others that answer it, while they are measured.

    Args:
      *others: the others.
    """

    def __init__(self, *others: Process):
        self._others = others

    def turn(self, measured: Callable[[], Found]) -> Turn[Found]:
        """Returns what a function returns, and who disturbed it."""
        paces = self._paces()
        waited, begin = self._waited(), time.perf_counter()
        found = measured()
        took = time.perf_counter() - begin
        waited = self._waited() - waited
        paces += self._paces()
        _Fastest.pace = min(_Fastest.pace, *paces)
        return Turn(found, waited / took, max(paces))

    def _paces(self) -> list[float]:
        # The others first: right after other work the loop takes a tenth longer.
        return [*(other.ask(pace) for other in self._others), pace()]

    def _waited(self) -> float:
        return usage().waited + sum(other.usage().waited for other in self._others)


def quietest(turns: Sequence[Turn[Found]], count: int) -> list[Turn[Found]]:
    """Returns the turns that were disturbed least."""
    return sorted(turns, key=lambda turn: turn.disturbance)[:count]


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
        found: Usage = self.ask(usage)
        return found


@contextlib.contextmanager
def process(
    target: Callable[..., None], *arguments: Any, kind: type[_Process]
) -> Iterator[_Process]:
    """Starts a process, which says its address first, and kills it.

    Args:
      target: what it runs, with a pipe to this process and the arguments.
      *arguments: picklable.
      kind: what this process has of it.
    """
    mine, its = forks.context.Pipe()
    cores = sorted(set(_CORES) - os.sched_getaffinity(0)) or _CORES
    started = forks.context.Process(target=_run, args=(cores, target, its, *arguments), daemon=True)
    started.start()
    its.close()
    try:
        yield kind(mine)
    finally:
        mine.close()
        forks.end(started)


def _run(cores: Sequence[int], target: Callable[..., None], *arguments: Any) -> None:
    os.sched_setaffinity(0, cores)
    target(*arguments)


def answer(question: Any) -> Any:
    """Answers the questions that `Watch` and `Process` ask; None for any other."""
    return question() if question in (usage, pace) else None


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
            time.sleep(self._seconds)  # It takes time to step.
            return super().step(action)
        ends = time.thread_time() + self._seconds
        while time.thread_time() < ends:
            pass
        return super().step(action)


def _be_a_server(told: Pipe) -> None:
    with serve(Busy, max_connections=MAX_CONNECTIONS) as server:
        told.send(server.address)
        with contextlib.suppress(EOFError):
            while True:
                told.send(answer(told.recv()))


@contextlib.contextmanager
def served() -> Iterator[Process]:
    """This package's server, of `Busy` environments, in a process of its own."""
    with process(_be_a_server, kind=Process) as running:
        yield running
