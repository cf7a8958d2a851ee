"""A gRPC server that does exactly what a test tells it to, and one that can be killed."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import grpc
from google.protobuf import any_pb2

from dm_env_rpc_client import dm_env_rpc_pb2

Request = dm_env_rpc_pb2.EnvironmentRequest
Response = dm_env_rpc_pb2.EnvironmentResponse
Script = Callable[[Iterator[Request], grpc.ServicerContext], Iterable[Response | bytes]]


class ScriptedServer:
    """Runs `script` for each stream: it takes requests and yields responses, or bytes."""

    def __init__(self, script: Script, credentials: grpc.ServerCredentials | None = None):
        self.open_streams = 0
        self._lock = threading.Lock()

        def process(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[bytes]:
            with self._lock:
                self.open_streams += 1
            try:
                for response in script(requests, context):
                    yield response if isinstance(response, bytes) else response.SerializeToString()
            finally:
                with self._lock:
                    self.open_streams -= 1

        handler: Any = grpc.stream_stream_rpc_method_handler(process, Request.FromString)
        self._executor = concurrent.futures.ThreadPoolExecutor(64)
        self._server = grpc.server(self._executor, options=[("grpc.so_reuseport", 0)])
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    "dm_env_rpc.v1.Environment", {"Process": handler}
                ),
            )
        )
        if credentials is None:
            port = self._server.add_insecure_port("localhost:0")
        else:
            port = self._server.add_secure_port("localhost:0", credentials)
        self.address = f"localhost:{port}"
        self._server.start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.stop(0.1).wait()
        self._executor.shutdown()


def echo(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
    """Answers every extension with itself."""
    for request in requests:
        yield Response(extension=request.extension)


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
