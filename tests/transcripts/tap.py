"""A relay between a client and a server, which writes down the bytes that pass.

It knows sockets alone: what the bytes mean is found out afterwards (`streams.py`). So both ends
work as without it, and it adds one change of threads to each direction.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import NamedTuple

CLIENT, SERVER = "client", "server"

_SECONDS = 60.0
"""A connection that is still open so long after its client was closed is cut off."""


class Chunk(NamedTuple):
    """Bytes that arrived together.

    Args:
      who: sent them, CLIENT or SERVER.
      data: the bytes.
    """

    who: str
    data: bytes


class Tap:
    """A relay; a context, which waits at its end until the clients are gone.

    Args:
      upstream: where the server is, `host:port` or `unix:path`.
      address: where the relay listens, in the same form.

    Attributes:
      address: where clients find the relay.
      connections: what passed on each, in the order in which it did.
    """

    def __init__(self, upstream: str, address: str = "127.0.0.1:0"):
        self.connections: list[list[Chunk]] = []
        self._upstream = upstream
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        if address.startswith("unix:"):
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(address.removeprefix("unix:"))
            self._listener.listen()
            self.address = address
        else:
            host, _, port = address.rpartition(":")
            self._listener = socket.create_server((host, int(port)), backlog=64)
            self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for thread in self._threads:
            thread.join(_SECONDS)
        self.cut()  # What did not end by itself.
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()

    def cut(self) -> None:
        """Breaks all connections off, as a network does."""
        for each in self._sockets:
            with contextlib.suppress(OSError):  # It has ended already.
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = _connected(self._upstream)
            self._sockets += [client, server]
            chunks: list[Chunk] = []
            self.connections.append(chunks)
            for who, source, target in ((CLIENT, client, server), (SERVER, server, client)):
                if source.family != socket.AF_UNIX:
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread = threading.Thread(target=self._pass, args=(who, source, target, chunks))
                thread.start()
                self._threads.append(thread)

    def _pass(
        self, who: str, source: socket.socket, target: socket.socket, chunks: list[Chunk]
    ) -> None:
        with contextlib.suppress(OSError):  # One end is gone; the other is told below.
            while data := source.recv(1 << 20):
                with self._lock:
                    chunks.append(Chunk(who, data))
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _connected(address: str) -> socket.socket:
    if address.startswith("unix:"):
        connected = socket.socket(socket.AF_UNIX)
        connected.connect(address.removeprefix("unix:"))
        return connected
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]"), int(port)))
