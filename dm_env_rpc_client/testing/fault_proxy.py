"""A TCP proxy that simulates bad networks, for testing clients and servers.

A single thread runs the whole proxy in an event loop. Each direction of a connection has two
tasks. One task reads pieces of data and queues each piece, with its due time, in a `_Flow`. The
other task sends the pieces. The end of a connection passes through the same queue, so it is
delayed like data and stays in order. A method such as `reset` or `blackhole` has taken effect when
it returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.net.addresses import Target

Direction: TypeAlias = Literal["to_server", "to_client", "both"]
"""The direction that a fault affects: requests, answers, or both."""

_READ_BYTES = 1 << 16
_QUEUED_BYTES = 1 << 22
"""The maximum number of buffered bytes in one direction of a connection."""

_BANDWIDTH_SECONDS = 0.01
"""The time, in seconds, that it takes to send one piece if the bandwidth is limited."""

_SENDS_IN_A_ROW = 500
"""The number of consecutive sends before other connections and method calls get a turn."""

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: an RST instead of a FIN.

_TCP = (socket.AF_INET, socket.AF_INET6)

_Piece: TypeAlias = bytes | None
"""The bytes to send, b"" to end a direction (FIN), or None to reset a connection (RST)."""


class _Flow:
    """One direction of a connection."""

    sender: asyncio.Task[None]

    def __init__(self, name: str, source: socket.socket, target: socket.socket):
        self.name = name
        self.source, self.target = source, target
        self.pieces: asyncio.Queue[tuple[float, _Piece]] = asyncio.Queue()
        self.queued = 0
        self.room = asyncio.Event()  # Set when the queue gets shorter.
        self.last_due = 0.0
        self.is_shut = False  # Nothing more is sent; received bytes are dropped.

    def push(self, due: float, piece: _Piece) -> None:
        self.last_due = max(due, self.last_due)  # Pieces never overtake one another.
        self.pieces.put_nowait((self.last_due, piece))
        self.queued += len(piece or b"")

    def pop(self, size: int) -> None:
        self.queued -= size
        self.room.set()


class FaultProxy:
    """A proxy that listens on a free loopback port and adds faults to connections to a server.

    It works between any client and any server, with TLS or without. Faults can be combined, and
    attributes can be changed while connections are open; new values apply to bytes that arrive
    afterwards.

    with FaultProxy(server.address, latency=0.05) as proxy:
        env = make(proxy.address, request_timeout=5.0)

    Args:
      address: the server: "host:port" or "unix:path". It need not listen yet; if it refuses a
        connection, the client is reset.
      latency: the delay of each direction, in seconds.
      jitter: the maximum additional delay in seconds, random for each piece that arrives. Bytes
        keep their order.
      slice_bytes: the maximum number of bytes per send, such as 1; None for no limit.
      bandwidth: bytes per second in each direction of each connection; None for no limit.
      seed: the seed of the random choices (jitter, and the values of corrupted bytes).

    Attributes:
      address: the address for clients, such as "127.0.0.1:40123".
      latency: the current delay of each direction, in seconds. `jitter`, `slice_bytes` and
        `bandwidth` are attributes, too.
      bytes_to_server: the number of bytes forwarded to the server so far.
      bytes_to_client: the number of bytes forwarded to clients so far.

    Raises:
      SpecError: an argument is invalid, or the address is malformed.
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
        self.latency = arguments.seconds("latency", latency, least=0.0)
        self.jitter = arguments.seconds("jitter", jitter, least=0.0)
        none = arguments.NO_LIMIT
        self.slice_bytes = arguments.count("slice_bytes", slice_bytes, none=none)
        self.bandwidth = arguments.amount("bandwidth", bandwidth, none=none)
        self.bytes_to_server = self.bytes_to_client = 0
        self._addresses = _resolve(address)
        self._random = random.Random(seed)
        self._lock = make_lock()
        self._links: dict[asyncio.Task[None], Sequence[_Flow]] = {}
        self._corruptions: dict[str, list[tuple[int, int]]] = {"to_server": [], "to_client": []}
        self._passable = {name: asyncio.Event() for name in self._corruptions}
        for passable in self._passable.values():
            passable.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._loop = asyncio.new_event_loop()
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="fault proxy", daemon=True)
        self._thread.start()

    @property
    def connection_count(self) -> int:
        """The number of connected clients."""
        return sum(map(bool, tuple(self._links.values())))

    def reset(self) -> None:
        """Reset all open connections at both ends (RST), but accept new connections as before."""
        self._call(self._reset)

    def blackhole(self, direction: Direction = "both") -> None:
        """Block all traffic until `resume` is called, as if a cable had been unplugged.

        Both ends can still send until buffers are full, but receive neither bytes nor the end of
        the connection. New connections of clients are accepted, as a kernel would accept them.

        Args:
          direction: the blocked direction.
        """
        names = _named(direction)

        async def hold() -> None:
            for name in names:
                self._passable[name].clear()

        self._call(hold)

    def resume(self) -> None:
        """Stop blocking traffic, and deliver everything that was sent in the meantime."""

        async def release() -> None:
            for passable in self._passable.values():
                passable.set()

        self._call(release)

    def half_close(self, direction: Direction) -> None:
        """End one direction of all open connections (FIN), but keep the other direction open.

        Args:
          direction: "to_client" looks like a server that has shut down its side. Bytes that still
            arrive in this direction are dropped.
        """
        names = _named(direction)

        async def shut_down() -> None:
            for flow in [flow for flows in self._links.values() for flow in flows]:
                if flow.name in names:
                    flow.is_shut = True
                    flow.sender.cancel()
                    await asyncio.wait([flow.sender])

        self._call(shut_down)

    def corrupt(self, direction: Direction, count: int = 1, after: int = 0) -> None:
        """Start to corrupt the bytes that arrive on any connection.

        Args:
          direction: the affected bytes; "both" changes `count` bytes in each direction.
          count: the number of consecutive bytes. Each gets a different, random value.
          after: the number of bytes that pass unchanged before these.

        Raises:
          SpecError: a number is negative.
        """
        if count < 0 or after < 0:
            raise SpecError(f"count and after must be at least 0, got {count} and {after}")
        names = _named(direction)

        async def add() -> None:
            for name in names:
                self._corruptions[name].append((after, count))

        self._call(add)

    def close(self) -> None:
        """Reset all connections and stop the proxy.

        A second call does nothing.
        """
        with self._lock:
            if self._thread.is_alive():
                self._loop.call_soon_threadsafe(self._accepting.cancel)
                self._thread.join()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<FaultProxy at {self.address}: {self.connection_count} connections>"

    def _call(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function in the thread of the event loop, and wait for its result."""
        # Under the lock, so that `close` cannot end the loop before the result.
        with self._lock:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    def _run(self) -> None:
        with contextlib.closing(self._loop), contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._accepting)

    async def _reset(self) -> None:
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    async def _accept(self) -> None:
        # Not `sock_accept`, which loses an accepted connection if it is cancelled at that moment.
        self._loop.add_reader(self._listener, self._take)
        try:
            await asyncio.Event().wait()
        finally:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            # The newest client is in the links only once its task has begun.
            await asyncio.sleep(0)
            await self._reset()

    def _take(self) -> None:
        with contextlib.suppress(OSError):  # The client has gone already.
            client, _ = self._listener.accept()
            client.setblocking(False)
            # Keeps the task alive until it runs and is in the links.
            self._newest = self._loop.create_task(self._forward(client))

    async def _forward(self, client: socket.socket) -> None:
        """Relay a client's connection until both directions have ended or one is reset."""
        link = asyncio.current_task()
        assert link is not None
        # Not earlier: a task that is cancelled before it runs would close nothing.
        self._links[link] = ()
        tasks: list[asyncio.Task[None]] = []
        ends = [client]
        is_reset = True
        try:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            server = await self._connected()
            ends.append(server)
            flows = (_Flow("to_server", client, server), _Flow("to_client", server, client))
            for flow in flows:
                flow.sender = self._loop.create_task(self._send(flow))
                tasks += [flow.sender, self._loop.create_task(self._receive(flow))]
            # A sender that `half_close` cancels must have begun, or it would send no FIN.
            await asyncio.sleep(0)
            self._links[link] = flows
            await asyncio.gather(*tasks)
            is_reset = False
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for task in tasks:
                task.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # A stop of the proxy meanwhile cancels this again.
                for end in ends:
                    with contextlib.suppress(OSError):
                        if is_reset and end.family in _TCP:
                            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    end.close()
                del self._links[link]

    async def _connected(self) -> socket.socket:
        """Return a connection to the first address that accepts one."""
        for family, where in self._addresses:
            server = socket.socket(family, socket.SOCK_STREAM)
            server.setblocking(False)
            try:
                await self._loop.sock_connect(server, where)
                if family in _TCP:
                    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return server
            except OSError:
                server.close()
            except asyncio.CancelledError:
                server.close()
                raise
        raise ConnectionRefusedError

    async def _receive(self, flow: _Flow) -> None:
        """Receive data in one direction of a connection until that direction ends."""
        contents: _Piece = b""
        while True:
            try:
                contents = await self._loop.sock_recv(flow.source, _READ_BYTES)
            except OSError:
                if flow.is_shut:
                    raise
                contents = None
            due = time.monotonic() + self.latency + self._random.uniform(0.0, self.jitter)
            if not contents:
                flow.push(due, contents)
                return
            if not flow.is_shut:
                self._push(flow, due, self._corrupted(flow.name, contents))
            while flow.queued >= _QUEUED_BYTES and not flow.is_shut:
                flow.room.clear()
                await flow.room.wait()

    def _push(self, flow: _Flow, due: float, contents: bytes) -> None:
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

    async def _send(self, flow: _Flow) -> None:
        """Send data in one direction of a connection until that direction ends."""
        passable = self._passable[flow.name]
        piece: _Piece = b""
        try:
            while True:
                due, piece = await flow.pieces.get()
                await asyncio.sleep(due - time.monotonic())
                await passable.wait()
                if piece is None:
                    raise ConnectionResetError
                if not piece:
                    break
                await self._send_piece(flow, memoryview(piece), passable)
        except asyncio.CancelledError:
            if not flow.is_shut:
                raise
        flow.is_shut = True
        flow.room.set()
        with contextlib.suppress(OSError):
            flow.target.shutdown(socket.SHUT_WR)

    async def _send_piece(self, flow: _Flow, piece: memoryview, passable: asyncio.Event) -> None:
        sends = 0
        while piece:
            await passable.wait()
            part = piece[: self.slice_bytes]
            await self._loop.sock_sendall(flow.target, part)
            piece = piece[len(part) :]
            flow.pop(len(part))
            if flow.name == "to_server":
                self.bytes_to_server += len(part)
            else:
                self.bytes_to_client += len(part)
            sends += 1
            if sends % _SENDS_IN_A_ROW == 0:
                await asyncio.sleep(0)


def _resolve(address: str) -> Sequence[Any]:
    """Resolve `address` to pairs of family and socket address, in order of preference."""
    target = Target.parse(address)
    if target.path:
        return [(socket.AF_UNIX, target.path)]
    found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def _named(direction: Direction) -> tuple[str, ...]:
    if direction not in ("to_server", "to_client", "both"):
        raise SpecError(f"direction must be 'to_server', 'to_client' or 'both', got {direction!r}")
    return ("to_server", "to_client") if direction == "both" else (direction,)
