"""Servers on plain sockets that say whatever a test wants, at full speed; a client for them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from dm_env_rpc_client import connect, connect_async, dm_env_rpc_pb2

Script = Callable[[socket.socket], None]


@contextlib.contextmanager
def answering_socket(script: Script) -> Iterator[str]:
    """Runs `script` on each accepted connection, in a thread; yields the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    connections: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def serve(connected: socket.socket) -> None:
        with connected, contextlib.suppress(OSError):
            script(connected)

    def accept() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            connections.append(connected)
            threads.append(threading.Thread(target=serve, args=(connected,), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        host, port = listener.getsockname()
        yield f"{host}:{port}"
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(5)
        for connected in connections:
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(5)


def read_for_ever(connected: socket.socket) -> None:
    """Reads and forgets what the client sends, in a thread."""

    def read() -> None:
        with contextlib.suppress(OSError):
            while connected.recv(1 << 16):
                pass

    threading.Thread(target=read, daemon=True).start()


def ask(
    address: str, is_async: bool, *, wait: float | None = None, debug: bool = False, **how: Any
) -> None:
    """Connects, asks for a world, and closes.

    Args:
      address: of a server.
      is_async: whether in a coroutine.
      wait: how long for the answer, in seconds; None for the usual time.
      debug: whether asyncio looks for mistakes.
      **how: what `connect` takes.
    """
    request = dm_env_rpc_pb2.CreateWorldRequest()

    async def main() -> None:
        async with await connect_async(address, **how) as connection:
            await connection.send(request, wait)

    if is_async:
        asyncio.run(main(), debug=debug)
    else:
        with connect(address, **how) as connection:
            connection.send(request, wait)
