"""A proxy that delays what passes it, and counts round trips."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

from tests.support.scripted import settles


class Distance:
    """Forwards connections to a server, each piece of data later than it came.

    Round trips are counted by Lamport's clocks, not by time: what a client sends after it got
    something belongs to the next one. So a slow machine changes nothing, unless it takes longer
    than the delay for what belongs together.

    Args:
      address: `host:port` of the server.
      seconds: how much later, in each direction.

    Attributes:
      address: where clients connect to.
    """

    def __init__(self, address: str, seconds: float = 0.1):
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._seconds = seconds
        self._lock = threading.Lock()
        self._at_client = self._at_server = 0
        self._under_way = 0
        self._is_over = False
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Distance:
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._lock:
            self._is_over = True
        for each in [self._listening, *self._sockets]:
            _close(each)

    @contextlib.contextmanager
    def counted(self) -> Iterator[list[int]]:
        """A context in which round trips are counted; its list gets their number at the end."""
        settles(lambda: not self._under_way)
        with self._lock:
            self._at_client = self._at_server = 0
        found: list[int] = []
        yield found
        with self._lock:
            found.append(self._at_client)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        # The server hears of the connection as late as of everything else.
        with self._lock:
            trip = self._at_client + 1
        if not self._keep(client):
            return
        time.sleep(self._seconds)  # The distance.
        try:
            server = socket.create_connection(self._server)
        except OSError:
            _close(client)
            return
        with self._lock:
            self._at_server = max(self._at_server, trip)
        if not self._keep(server):
            return
        for one, other, is_client in ((client, server, True), (server, client, False)):
            with contextlib.suppress(OSError):  # It is over.
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._forward(one, other, is_client)

    def _keep(self, connected: socket.socket) -> bool:
        """Has a socket closed at the end; closes it and returns False if that has come."""
        with self._lock:
            if not self._is_over:
                self._sockets.append(connected)
                return True
        _close(connected)
        return False

    def _forward(self, one: socket.socket, other: socket.socket, is_client: bool) -> None:
        pieces: queue.SimpleQueue[tuple[float, int, bytes]] = queue.SimpleQueue()

        def receive() -> None:
            data = b"first"
            while data:
                try:
                    data = one.recv(1 << 16)
                except OSError:
                    data = b""
                with self._lock:
                    trip = self._at_client + 1 if is_client else self._at_server
                    self._under_way += 1
                pieces.put((time.monotonic() + self._seconds, trip, data))

        def send() -> None:
            data = b"first"
            while data:
                due, trip, data = pieces.get()
                time.sleep(max(0.0, due - time.monotonic()))  # The distance.
                with self._lock:
                    self._under_way -= 1
                    if data and is_client:
                        self._at_server = max(self._at_server, trip)
                    elif data:
                        self._at_client = max(self._at_client, trip)
                with contextlib.suppress(OSError):
                    other.sendall(data) if data else other.shutdown(socket.SHUT_WR)

        for run in (receive, send):
            threading.Thread(target=run, daemon=True).start()


def _close(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
    connected.close()
