"""A server that can be killed, and what tests of connections count and wait for."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from google.protobuf import any_pb2, wrappers_pb2

from tests import forks
from tests.reliability.scorecard import is_strict


def extension(number: int) -> any_pb2.Any:
    """An extension request that is told from others by its number."""
    request = any_pb2.Any()
    request.Pack(wrappers_pb2.StringValue(value=str(number)))
    return request


def number_of(request: any_pb2.Any) -> int:
    """The number of an `extension`."""
    return int(wrappers_pb2.StringValue.FromString(request.value).value)


def freeze(pid: int) -> None:
    """Stops a process by SIGSTOP, and waits until every thread has stopped: one might answer."""

    def is_stopped() -> bool:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        states = [(task / "stat").read_text().rpartition(")")[2].split()[0] for task in tasks]
        return set(states) == {"T"}

    os.kill(pid, signal.SIGSTOP)
    assert settles(is_stopped)


class SignalledServer:
    """A server in a process of its own, which signals may be sent to. A context that kills it."""

    def __init__(self, address: str, pid: int):
        self.address = address
        self.pid = pid

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGSTOP:
            freeze(self.pid)
        else:
            os.kill(self.pid, number)

    def kill(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> SignalledServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


class ServerProcess(SignalledServer):
    """A server that a program starts, whose first line is the address."""

    def __init__(self, *argv: str):
        self.process = subprocess.Popen(
            [sys.executable, "-c", *argv], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        super().__init__(self.process.stdout.readline().strip(), self.process.pid)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> ServerProcess:
        return self


def _serve_echo(told: Connection) -> None:
    from dm_env_rpc_client.server import serve
    from tests.environments import Echo

    parent = multiprocessing.parent_process()
    assert parent is not None
    with serve(Echo) as server:
        told.send(server.address)
        parent.join()


class _ServedEcho(SignalledServer):
    def __init__(self) -> None:
        heard, told = forks.context.Pipe(duplex=False)
        self._process = forks.context.Process(target=_serve_echo, args=(told,), daemon=True)
        self._process.start()
        told.close()
        with heard:
            address = heard.recv()
        assert self._process.pid is not None
        super().__init__(address, self._process.pid)

    def kill(self) -> None:
        forks.end(self._process)


def served_echo() -> SignalledServer:
    """The Echo environment in a process of its own."""
    return _ServedEcho()


def own_seconds() -> float:
    """A clock that stands still while this thread waits for a processor that others have."""
    waited = Path("/proc/thread-self/schedstat").read_text().split()[1]
    return time.monotonic() - int(waited) / 1e9


BUSY_SECONDS = 0.0 if is_strict() else 5.0
"""How much longer than alone something may take on a machine that is busy with other things."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Fails a block that takes longer, with an allowance for a busy machine.

    What would happen instead has to take longer than both together.
    """
    started = time.monotonic()
    yield
    took = time.monotonic() - started
    limit = seconds + BUSY_SECONDS
    assert took <= limit, f"took {took:.2f} s; at most {limit} s are allowed"


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
