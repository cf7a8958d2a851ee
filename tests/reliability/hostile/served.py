"""A server in a process of its own, its memory, and an honest client that measures its steps."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any, NamedTuple

from dm_env_rpc_client import dm_env_rpc_pb2, make
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.http2.server import clients
from tests.support import forks, memory
from tests.support.stopwatch import Stopwatch, patience

_LARGE = dm_env_rpc_pb2.Tensor(int8s={"array": bytes(100_000)})


def _large_request() -> bytes:
    request = dm_env_rpc_pb2.EnvironmentRequest()
    request.extension.Pack(dm_env_rpc_pb2.Tensor())
    return request.SerializeToString()


LARGE_REQUEST = _large_request()
"""A request whose answer takes 100 KB."""


class Where(NamedTuple):
    """A server: its address, and what `make` takes beside that."""

    address: str
    how: dict[str, Any]


class Served(NamedTuple):
    """A server: its address and the id of its process."""

    address: str
    pid: int

    def watch_memory(self) -> int:
        """Begins to look for the peak, and returns what the processes take now, in bytes."""
        return sum(memory.watch(process.name) for process in self._processes())

    def peak(self) -> int:
        """The most that they took since `watch_memory`, in bytes."""
        return sum(memory.peak(process.name) for process in self._processes())

    def descriptors(self) -> int:
        """How many descriptors its processes have open."""
        return sum(len(list((process / "fd").iterdir())) for process in self._processes())

    def run_on(self, processors: Collection[int]) -> None:
        """Has its threads run on these processors only, and the threads that they start."""
        for process in self._processes():
            for thread in (process / "task").iterdir():
                with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
                    os.sched_setaffinity(int(thread.name), processors)

    def _processes(self) -> list[Path]:
        """The server's own process and its workers."""
        found = [Path(f"/proc/{self.pid}")]
        for process in found:
            for children in process.glob("task/*/children"):
                with contextlib.suppress(OSError):  # A thread that has ended meanwhile.
                    found.extend(Path("/proc") / child for child in children.read_text().split())
        return found


def measured(use: Callable[[], object], told: Pipe) -> None:
    """Tells how something in this process ended, and how many bytes it took at its peak."""
    before = memory.watch()
    try:
        use()
        outcome = ""
    except Exception as error:
        outcome = f"{type(error).__name__}: {error}"
    told.send((outcome, memory.peak() - before))


def heard(pipe: Pipe) -> Any:
    """What a process tells within two minutes."""
    assert pipe.poll(120)
    return pipe.recv()


def _answer_much(message: object, world: object) -> dm_env_rpc_pb2.Tensor:
    return _LARGE


_EXTENSIONS: dict[Any, Any] = {dm_env_rpc_pb2.Tensor: _answer_much}


def _be_a_server(
    told: Pipe, environment: Any, options: dict[str, Any], seconds: dict[str, float]
) -> None:
    for name, value in seconds.items():
        assert hasattr(clients, name)
        setattr(clients, name, value)
    # As the command line does.
    gc.collect()
    gc.freeze()
    options = {"transport": "http2", "extensions": _EXTENSIONS, **options}
    with serve(environment, **options) as server:
        told.send(server.address)
        with contextlib.suppress(EOFError):
            told.recv()


@contextlib.contextmanager
def served(
    seconds: dict[str, float] | None = None, environment: Any = Catch, **options: Any
) -> Iterator[Served]:
    """Runs a server.

    Args:
      seconds: times of the module `clients`, by name.
      environment: what is served; a function or a class of a module.
      options: of `serve`.
    """
    told, heard = forks.context.Pipe()
    process = forks.context.Process(
        target=_be_a_server, args=(heard, environment, options, seconds or {})
    )
    process.start()
    heard.close()
    try:
        assert process.pid is not None
        yield Served(told.recv(), process.pid)
        assert process.is_alive()
    finally:
        told.close()
        forks.end(process)


class Honest:
    """A client that plays, and measures how long its steps take.

    Args:
      where: the server.
      pause: seconds between two steps, so that others have a processor, too.
    """

    def __init__(self, where: str | Where, pause: float = 0.0):
        self._pause = pause
        address, how = (where, {}) if isinstance(where, str) else where
        self._env = make(address, **{"timeout": patience(10.0), **how})
        self._env.reset()

    def __enter__(self) -> Honest:
        return self

    def __exit__(self, *exception: object) -> None:
        self._env.close()

    def step(self) -> float:
        """Returns how long a step took, in seconds."""
        if self._pause:
            time.sleep(self._pause)  # How often it steps.
        begin = time.perf_counter()
        self._env.step({"paddle": 0})
        return time.perf_counter() - begin

    def steps_within(self, seconds: float) -> bool:
        """Whether a step takes no longer than that, and what is allowed in addition."""
        stopwatch = Stopwatch()
        self.step()
        return stopwatch.within(seconds)

    def p99(self, count: int) -> float:
        """Returns the 99th percentile of so many steps, in seconds."""
        return percentile([self.step() for _ in range(count)])


def percentile(seconds: list[float], share: float = 0.99) -> float:
    """Returns a percentile."""
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))]
