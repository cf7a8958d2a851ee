"""A server of HTTP/2 that sends whatever bytes a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from dm_env_rpc_client import connect, connect_async, dm_env_rpc_pb2
from tests.support.scripted import answering_socket, extension
from tests.transports import frames
from tests.transports.frames import data, greeting, grpc_message

Script: TypeAlias = Callable[[socket.socket], None]

both_ways = pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])


def raw_server(script: Script) -> contextlib.AbstractContextManager[str]:
    """A server that does with each connection what the script says; yields its address."""

    def run(connection: socket.socket) -> None:
        connection.settimeout(30)
        script(connection)

    return answering_socket(run)


@contextlib.contextmanager
def full_listener() -> Iterator[str]:
    """An address that accepts no connection: the kernel drops what does not fit into the queue."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(2):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def read_exactly(connection: socket.socket, count: int) -> bytes:
    contents = b""
    while len(contents) < count:
        part = connection.recv(count - len(contents))
        if not part:
            raise ConnectionResetError
        contents += part
    return contents


def next_frame(connection: socket.socket) -> frames.Frame:
    head = read_exactly(connection, 9)
    (size,) = struct.unpack(">I", b"\0" + head[:3])
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    return frames.Frame(kind, flags, stream, read_exactly(connection, size))


def greet(connection: socket.socket) -> None:
    assert read_exactly(connection, len(frames.PREFACE)) == frames.PREFACE
    connection.sendall(greeting())


def echoed(number: int) -> bytes:
    response = dm_env_rpc_pb2.EnvironmentResponse(extension=extension(number))
    return data(grpc_message(response.SerializeToString()))


def until_closed(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def ask(
    address: str,
    is_async: bool,
    request: Any = None,
    *,
    wait: float | None = None,
    debug: bool = False,
    **how: Any,
) -> Any:
    """Connects, sends a request if there is one, and closes.

    Args:
      address: of a server.
      is_async: whether in a coroutine.
      request: a message, or the number of an extension.
      wait: how long for the answer, in seconds; None for the usual time.
      debug: whether asyncio looks for mistakes.
      **how: what `connect` takes.
    """
    message = extension(request) if isinstance(request, int) else request

    async def main() -> Any:
        async with await connect_async(address, **how) as connection:
            return None if message is None else await connection.send(message, wait)

    if is_async:
        return asyncio.run(main(), debug=debug)
    with connect(address, **how) as connection:
        return None if message is None else connection.send(message, wait)
