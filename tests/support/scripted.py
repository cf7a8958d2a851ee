"""A server that can be killed, and what tests of connections count and wait for."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from google.protobuf import any_pb2, wrappers_pb2

from tests.support import forks
from tests.support.ports import HeldPort
from tests.support.stopwatch import Stopwatch, patience

_LOOK_SECONDS = 0.02

_LOOKS = 25
"""So many looks at least before a test gives up: one that took long tells what was before it."""


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

    os.kill(pid, signal.SIGSTOP)
    assert settles(lambda: thread_states(pid) == {"T"})


def thread_states(pid: int) -> set[str]:
    """The states that the threads of a process are in, as in proc(5); none if it is gone."""
    states = set()
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
    return states


class SignalledServer:
    """A server in a process of its own, which signals may be sent to."""

    def __init__(self, address: str, pid: int):
        self.address = address
        self.pid = pid

    def signal(self, number: signal.Signals) -> None:
        if number is signal.SIGSTOP:
            freeze(self.pid)
        else:
            os.kill(self.pid, number)


class ServerProcess(SignalledServer):
    """A server that a program starts, whose first line is the address. A context that kills it."""

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

    def __exit__(self, *exc_info: object) -> None:
        self.kill()


def _serve_echo(address: str, told: Connection) -> None:
    from dm_env_rpc_client.server import serve
    from tests.support.environments import Echo

    parent = multiprocessing.parent_process()
    assert parent is not None
    with serve(Echo, address) as server:
        told.send(server.address)
        parent.join()


@contextlib.contextmanager
def served_echo() -> Iterator[SignalledServer]:
    """The Echo environment in a process of its own."""
    # Its clients go on looking for it when it was killed.
    with HeldPort() as port, forks.child(_serve_echo, port.address) as (pid, pipe):
        yield SignalledServer(pipe.recv(), pid)


@contextlib.contextmanager
def playing(environment: Any, settings: Any = None, **options: Any) -> Iterator[Any]:
    """An environment as the client of its server sees it.

    Args:
      environment: what is served.
      settings: with which its world is created.
      **options: of the server.
    """
    from dm_env_rpc_client import make
    from dm_env_rpc_client.server import serve

    with serve(environment, **options) as server, make(server.address, settings or {}) as env:
        yield env


@contextlib.contextmanager
def listening(answer: Callable[[socket.socket], object]) -> Iterator[str]:
    """A TCP server that does with each connection what a function does; yields its address.

    Args:
      answer: called in a thread for each connection, which is open until it is closed there, or to
        the end of the block. An error is raised there, unless the other end is gone.
    """
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def run(connection: socket.socket) -> None:
        try:
            answer(connection)
        except BaseException as error:
            if isinstance(error, TimeoutError) or not isinstance(error, OSError):
                errors.append(error)

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                threads.append(threading.Thread(target=run, args=(connection,), daemon=True))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            taking.join(5)
            for connection in connections:
                with contextlib.suppress(OSError):  # It has ended already.
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(30)
            for connection in connections:
                connection.close()
    assert errors == []


def answering_socket(
    script: Callable[[socket.socket], object],
) -> contextlib.AbstractContextManager[str]:
    """As `listening`; a connection is closed when the script has ended."""

    def answer(connection: socket.socket) -> None:
        with connection:
            script(connection)

    return listening(answer)


def settles(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `condition` becomes true in time: sockets and threads end in their own time."""
    stopwatch, looks = Stopwatch(), 1
    while not condition():  # Which may do something, so that it is not asked again.
        if looks >= _LOOKS and not stopwatch.within(patience(seconds)):
            return False
        looks += 1
        time.sleep(_LOOK_SECONDS)  # Nothing tells; it is looked at again.
    return True


async def settles_async(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """As `settles`, while the event loop runs."""
    stopwatch, looks = Stopwatch(), 1
    while not condition():
        if looks >= _LOOKS and not stopwatch.within(patience(seconds)):
            return False
        looks += 1
        await asyncio.sleep(_LOOK_SECONDS)  # Nothing tells; it is looked at again.
    return True


def thread_count() -> int:
    """Threads of this process, grpc's own among them."""
    return len(os.listdir("/proc/self/task"))


def descriptor_count() -> int:
    """Open files and sockets of this process."""
    return len(os.listdir("/proc/self/fd"))
