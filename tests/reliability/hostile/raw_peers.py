"""A client for servers on plain sockets, and what those do at full speed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Any

from dm_env_rpc_client import connect, connect_async, dm_env_rpc_pb2


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
