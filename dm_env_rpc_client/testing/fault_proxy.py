"""A TCP proxy that spoils what goes through it, to try clients and servers with bad networks.

One thread does everything, with sockets that never block. Bytes that are read go into the queue of
their `_Flow`, each piece with the time at which it is due; ends of connections go through the same
queue, so that order and delay hold for them, too. Controls act at once, in the caller's thread,
under the lock that the proxy's thread holds except while it waits.
"""

from __future__ import annotations

import collections
import contextlib
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.http2.client.target import Target

__all__ = ["Direction", "FaultProxy"]

Direction: TypeAlias = Literal["to_server", "to_client", "both"]
"""Which bytes a fault is for: requests, answers, or both."""

_READ_BYTES = 1 << 16
_QUEUED_BYTES = 1 << 22
"""What a direction of a connection holds at most, before no more is read for it."""

_BANDWIDTH_SECONDS = 0.01
"""With a limited bandwidth, pieces are so large as what passes in this time."""

_SENDS_IN_A_ROW = 500
"""After so many, other connections and the controls have their turn."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: an RST instead of a FIN.

_TCP = (socket.AF_INET, socket.AF_INET6)

_Piece: TypeAlias = bytes | None
"""Bytes to send; empty for the end of a direction (FIN), None for a reset (RST)."""


class _Flow:
    """One direction of a connection."""

    def __init__(self, name: str, source: socket.socket, target: socket.socket):
        self.name = name
        self.source, self.target = source, target
        self.pieces: collections.deque[tuple[float, _Piece]] = collections.deque()
        self.queued = 0
        self.last_due = 0.0
        self.ended = False  # Nothing more can be read.
        self.shut = False  # Nothing more is sent; what is read is dropped.
        self.is_full = False  # The socket took no more.

    @property
    def wants_to_read(self) -> bool:
        return not self.ended and self.queued < _QUEUED_BYTES

    def push(self, due: float, piece: _Piece) -> None:
        self.last_due = max(due, self.last_due)  # Pieces never overtake one another.
        self.pieces.append((self.last_due, piece))
        self.queued += len(piece or b"")

    def shut_down(self) -> None:
        self.shut = True
        self.pieces.clear()
        self.queued = 0
        with contextlib.suppress(OSError):
            self.target.shutdown(socket.SHUT_WR)


class _Link:
    """A connection of a client and the one to the server that belongs to it."""

    def __init__(self, client: socket.socket, server: socket.socket, others: list[Any]):
        self.client, self.server = client, server
        self.others = others  # Addresses that are left to try.
        self.is_connected = False
        self.flows = (_Flow("to_server", client, server), _Flow("to_client", server, client))


class FaultProxy:
    """Forwards TCP connections from a free loopback port to a server, with faults.

    It works between any client and any server, with TLS or without. All faults can be combined,
    and the attributes may be changed while connections are open: they apply to bytes that arrive
    from then on.

    with FaultProxy(server.address, latency=0.05) as proxy:
        env = make(proxy.address, request_timeout=5.0)

    Args:
      address: of the server: "host:port" or "unix:path". It need not listen yet; a client whose
        connection the server refuses is reset.
      latency: seconds by which each direction is delayed.
      jitter: up to so many seconds more, chosen at random for each piece that arrives. Bytes keep
        their order.
      slice_bytes: sends at most so many bytes at a time, such as 1; None for as many as there are.
      bandwidth: bytes per second in each direction of each connection; None for no limit.
      seed: of the random choices (jitter, and the values of corrupted bytes).

    Attributes:
      address: where clients connect, such as "127.0.0.1:40123".
      latency: as in the arguments; so are `jitter`, `slice_bytes` and `bandwidth`.
      bytes_to_server: the number of bytes that were sent on to the server so far.
      bytes_to_client: the number of bytes that were sent on to clients so far.

    Raises:
      SpecError: an argument is invalid, or the address has another form.
      OSError: the name of the server cannot be resolved.
    """

    def __init__(
        self,
        address: str,
        *,
        latency: float = 0.0,
        jitter: float = 0.0,
        slice_bytes: int | None = None,
        bandwidth: float | None = None,
        seed: int = 0,
    ):
        if latency < 0 or jitter < 0:
            raise SpecError(f"latency and jitter are seconds from 0 on, got {latency} and {jitter}")
        if (slice_bytes is not None and slice_bytes < 1) or (
            bandwidth is not None and bandwidth <= 0
        ):
            raise SpecError(
                "slice_bytes is at least 1 and bandwidth more than 0, or None for no limit; got "
                f"{slice_bytes} and {bandwidth}"
            )
        self.latency, self.jitter = latency, jitter
        self.slice_bytes, self.bandwidth = slice_bytes, bandwidth
        self.bytes_to_server = self.bytes_to_client = 0
        self._addresses = _resolve(address)
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._held: set[str] = set()  # Directions in which nothing passes.
        self._corruptions: dict[str, list[tuple[int, int]]] = {"to_server": [], "to_client": []}
        self._is_closing = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._waker, self._woken = socket.socketpair()
        self._waker.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._thread.start()

    @property
    def connection_count(self) -> int:
        """The number of clients that are connected."""
        return len(self._links)

    def reset(self) -> None:
        """Resets all open connections at both ends (RST); new ones are accepted as before."""
        with self._control():
            for link in tuple(self._links):
                self._drop(link, abort=True)

    def blackhole(self, direction: Direction = "both") -> None:
        """Lets nothing pass, as when a cable is pulled, until `resume`.

        Both ends can still send until buffers are full, and see neither bytes nor the end of the
        other. Connections that clients open are accepted, as kernels do it.

        Args:
          direction: in which nothing passes.
        """
        with self._control():
            self._held.update(_named(direction))

    def resume(self) -> None:
        """Ends `blackhole`: what was sent meanwhile arrives now, and nothing is lost."""
        with self._control():
            self._held.clear()

    def half_close(self, direction: Direction) -> None:
        """Ends one direction of all open connections (FIN); the other one goes on.

        Args:
          direction: "to_client" is seen as a server that has shut its side down. What the other
            end still sends in this direction is dropped.
        """
        with self._control():
            for link in tuple(self._links):
                for flow in link.flows:
                    if flow.name in _named(direction):
                        flow.shut_down()
                self._settle(link)

    def corrupt(self, direction: Direction, count: int = 1, after: int = 0) -> None:
        """Changes bytes that arrive from now on, of whichever connection they are.

        Args:
          direction: which bytes. "both": so many in each direction.
          count: how many bytes, one after another. Each gets a random other value.
          after: how many bytes pass unchanged before these.

        Raises:
          SpecError: a number is negative.
        """
        if count < 0 or after < 0:
            raise SpecError(f"count and after are 0 or more, got {count} and {after}")
        with self._control():
            for name in _named(direction):
                self._corruptions[name].append((after, count))

    def close(self) -> None:
        """Resets all connections and stops; a second call does nothing."""
        with self._control():
            self._is_closing = True
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy at {self.address}: {self.connection_count} connections>"

    @contextlib.contextmanager
    def _control(self) -> Iterator[None]:
        """Keeps the thread out, and wakes it afterwards."""
        with self._lock:
            yield
            with contextlib.suppress(OSError):  # Closed, or it will wake anyway.
                self._waker.send(b"\0")

    def _run(self) -> None:
        timeout: float | None = None
        while True:
            ready = self._selector.select(timeout)
            with self._lock:
                if self._is_closing:
                    break
                for key, events in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(_READ_BYTES)
                    elif key.data in self._links:
                        self._handle(key.data, key.fileobj, events)
                timeout = self._forward_what_is_due()
        for link in tuple(self._links):
            self._drop(link, abort=True)
        self._selector.close()
        for own in (self._listener, self._woken, self._waker):
            own.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # It has gone already.
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connect(client, list(self._addresses))

    def _connect(self, client: socket.socket, addresses: list[Any]) -> None:
        """Begins to connect to the first of the addresses; resets the client if there is none."""
        while addresses:
            family, where = addresses.pop(0)
            server = socket.socket(family, socket.SOCK_STREAM)
            server.setblocking(False)
            with contextlib.suppress(OSError):  # What went wrong shows when it is writable.
                server.connect_ex(where)
            link = _Link(client, server, addresses)
            self._links.add(link)
            self._selector.register(server, selectors.EVENT_WRITE, link)
            return
        _close(client, abort=True)

    def _handle(self, link: _Link, which: Any, events: int) -> None:
        if not link.is_connected:
            self._finish_connecting(link)
            return
        for flow in link.flows:
            if flow.source is which and events & selectors.EVENT_READ:
                self._read(flow)
            if flow.target is which and events & selectors.EVENT_WRITE:
                flow.is_full = False
        self._settle(link)

    def _finish_connecting(self, link: _Link) -> None:
        if link.server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._links.discard(link)
            self._selector.unregister(link.server)
            link.server.close()
            self._connect(link.client, link.others)
            return
        link.is_connected = True
        if link.server.family in _TCP:
            link.server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(link.client, selectors.EVENT_READ, link)
        self._settle(link)

    def _read(self, flow: _Flow) -> None:
        now = time.monotonic()
        due = now + self.latency + self._random.uniform(0.0, self.jitter)
        try:
            contents = flow.source.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            flow.ended = True
            flow.push(due, None)
            return
        if flow.shut and contents:
            return
        if not contents:
            flow.ended = True
            flow.push(due, b"")
            return
        contents = self._corrupted(flow.name, contents)
        if self.bandwidth is None:
            flow.push(due, contents)
            return
        # A piece is due when its last byte has passed; it begins after the piece before it.
        size = max(1, int(self.bandwidth * _BANDWIDTH_SECONDS))
        due = max(due, flow.last_due)
        for begin in range(0, len(contents), size):
            piece = contents[begin : begin + size]
            due += len(piece) / self.bandwidth
            flow.push(due, piece)

    def _corrupted(self, name: str, contents: bytes) -> bytes:
        changed = bytearray(contents)
        left = []
        for after, count in self._corruptions[name]:
            for place in range(after, min(after + count, len(changed))):
                changed[place] ^= self._random.randint(1, 255)
            rest = max(0, after + count - max(after, len(changed)))
            if rest:
                left.append((max(0, after - len(changed)), rest))
        self._corruptions[name] = left
        return bytes(changed)

    def _forward_what_is_due(self) -> float | None:
        """Sends what is due, and returns the seconds until the next piece is."""
        now = time.monotonic()
        next_due: list[float] = []
        for link in tuple(self._links):
            if not link.is_connected:
                continue
            for flow in link.flows:
                self._forward(link, flow, now)
            if link in self._links:
                self._settle(link)
                next_due += [
                    flow.pieces[0][0]
                    for flow in link.flows
                    if flow.pieces and not flow.is_full and flow.name not in self._held
                ]
        return max(0.0, min(next_due) - now) if next_due else None

    def _forward(self, link: _Link, flow: _Flow, now: float) -> None:
        if flow.name in self._held or flow.is_full or link not in self._links:
            return
        for _ in range(_SENDS_IN_A_ROW):
            if not flow.pieces or flow.pieces[0][0] > now:
                return
            due, piece = flow.pieces.popleft()
            if piece is None:
                self._drop(link, abort=True)
                return
            if not piece:
                flow.shut_down()
                return
            flow.queued -= len(piece)
            try:
                sent = flow.target.send(piece[: self.slice_bytes])
            except BlockingIOError:
                sent, flow.is_full = 0, True
            except OSError:  # The other end has gone.
                self._drop(link, abort=True)
                return
            if flow.name == "to_server":
                self.bytes_to_server += sent
            else:
                self.bytes_to_client += sent
            if sent < len(piece):
                flow.pieces.appendleft((due, piece[sent:]))
                flow.queued += len(piece) - sent
            if flow.is_full:
                return

    def _settle(self, link: _Link) -> None:
        """Waits for what can happen next on a connection; closes it if nothing can."""
        if all(flow.shut and flow.ended for flow in link.flows):
            self._drop(link, abort=False)
            return
        if not link.is_connected:
            return
        to_server, to_client = link.flows
        for one, read, write in (
            (link.client, to_server.wants_to_read, to_client.is_full),
            (link.server, to_client.wants_to_read, to_server.is_full),
        ):
            events = selectors.EVENT_READ * read | selectors.EVENT_WRITE * write
            known = self._selector.get_map().get(one.fileno())
            if events and known is None:
                self._selector.register(one, events, link)
            elif events and known is not None and known.events != events:
                self._selector.modify(one, events, link)
            elif not events and known is not None:
                self._selector.unregister(one)

    def _drop(self, link: _Link, abort: bool) -> None:
        self._links.discard(link)
        for one in (link.client, link.server):
            if one.fileno() in self._selector.get_map():
                self._selector.unregister(one)
            _close(one, abort)


def _resolve(address: str) -> Sequence[Any]:
    """Returns what to connect to, in order of preference, as pairs of family and address."""
    target = Target.parse(address)
    if target.path:
        return [(socket.AF_UNIX, target.path)]
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def _named(direction: Direction) -> tuple[str, ...]:
    if direction not in ("to_server", "to_client", "both"):
        raise SpecError(f"a direction is 'to_server', 'to_client' or 'both', got {direction!r}")
    return ("to_server", "to_client") if direction == "both" else (direction,)


def _close(one: socket.socket, abort: bool) -> None:
    with contextlib.suppress(OSError):
        if abort and one.family in _TCP:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        one.close()
