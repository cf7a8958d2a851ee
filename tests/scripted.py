"""A server that can be killed, and what tests of connections count and wait for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from google.protobuf import any_pb2


def extension(number: int) -> any_pb2.Any:
    """An extension request that is told from others by its number."""
    return any_pb2.Any(type_url="tests/echo", value=str(number).encode())


class ServerProcess:
    """A server in a process of its own, which signals may be sent to."""

    def __init__(self, *argv: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", *argv], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)
        if number is signal.SIGSTOP:
            # It takes a moment until every thread has stopped; one of them might answer.
            assert settles(self._is_stopped)

    def _is_stopped(self) -> bool:
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
        return set(states) == {"T"}

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


SERVE = """
import sys, time
from dm_env_rpc_client.server import serve
from tests.environments import Echo
with serve(Echo) as server:
    print(server.address, flush=True)
    time.sleep(300)
"""


def served_echo() -> ServerProcess:
    """The Echo environment in a process of its own."""
    return ServerProcess(SERVE)


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fails a block that takes longer."""
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    assert took <= seconds, f"took {took:.2f} s; at most {seconds} s are allowed"


def settles(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    """Whether `condition` becomes true soon: sockets and threads end in their own time."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def thread_count() -> int:
    """Threads of this process, grpc's own among them."""
    return len(os.listdir("/proc/self/task"))


def descriptor_count() -> int:
    """Open files and sockets of this process."""
    return len(os.listdir("/proc/self/fd"))
