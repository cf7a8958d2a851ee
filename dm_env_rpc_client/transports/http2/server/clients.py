"""Accept a listener's connections, encrypt them with TLS, and close them."""

from __future__ import annotations

import collections
import contextlib
import logging
import queue
import select
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable
from typing import Any

from dm_env_rpc_client.system.polling import at_work
from dm_env_rpc_client.transports.http2.protocol.server_half import Event, ServerHalf
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection
from dm_env_rpc_client.transports.net.listening import PAUSE_SECONDS, ListeningSockets
from dm_env_rpc_client.transports.net.sockets import WOULD_BLOCK, ServerTls, accepted_socket

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
"""The interval, in seconds, between checks for silent connections."""

_GREET_SECONDS = 10.0
"""The time limit, in seconds, for a new client to open a stream."""

_UNREAD_SECONDS = 600.0
"""How long, in seconds, a client can leave answers unread. A program does not read answers while
it trains or is paused in a debugger.

The server sends no probes, because a program that reads only while it waits for an answer would
not respond. The kernel closes connections to unreachable machines (see `set_options`).
"""

_LINGER_SECONDS = 5.0
"""How long, in seconds, a client that violated HTTP/2 has to read why it was disconnected."""

_MOST_LINGERING = 64
"""The maximum number of draining connections. Beyond this number, the oldest one is closed."""

_ADMIT_SECONDS = 0.0002
"""How long, in seconds, new connections are accepted before open ones are served. At least one
connection is accepted each time."""

_LONGEST_REST = 0.002
"""The maximum pause, in seconds, of the handshake thread after a handshake."""

_THROWN_AWAY = bytearray(1 << 18)
"""The buffer for discarded bytes. With MSG_TRUNC, TCP does not even write to this buffer."""


class Clients:
    """A listener's open connections, used only by the leading thread.

    Args:
      poll: the poll object that reports which sockets are ready.
      tls: the source of TLS contexts, or None for plaintext.
      make_half: a function that creates the state of a connection, given the client's address.
      most: the maximum number of connections.
      closed: a function called with each closed connection, to close its streams.

    Attributes:
      listening: the listening sockets.
      connections: the open connections, by descriptor.
      draining: the connections that were ended because of client errors, oldest first.
      next_look: the time of the next call of `look` on the monotonic clock, or 0.0 if no call is
        due.
    """

    def __init__(
        self,
        poll: select.epoll,
        tls: ServerTls | None,
        make_half: Callable[[str], ServerHalf],
        most: int,
        closed: Callable[[ServerConnection], None],
    ):
        self.listening = ListeningSockets(poll)
        self.connections: dict[int, ServerConnection] = {}
        self.draining: dict[int, DrainingConnection] = {}
        self.next_look = 0.0
        self._poll = poll
        self._tls = tls
        self._make_half = make_half
        self._most = most
        self._closed = closed

    def accept(self, descriptor: int) -> None:
        """Accept connections on one of the listening sockets."""
        ends = time.perf_counter() + _ADMIT_SECONDS
        while True:
            try:
                accepted = self.listening.accept(descriptor)
            except OSError as error:
                _log.warning("could not accept a connection: %s", error)
                if self._drop_silent():
                    continue
                self.listening.pause()
                self.next_look = time.monotonic() + PAUSE_SECONDS
                return
            if accepted is None:
                return
            self._admit(*accepted)
            if time.perf_counter() > ends:
                return

    def _admit(self, accepted: socket.socket, where: Any) -> None:
        """Create a connection for an accepted socket if the limits permit it.

        Args:
          accepted: the accepted socket.
          where: the address of the client, in the format of the socket's family.
        """
        if len(self.connections) + len(self.draining) >= self._most and not self._drop_silent():
            accepted.close()
            return
        made: Any = accepted
        try:
            made = accepted_socket(accepted, self._tls)
            self.add(made, peer_address(accepted.family, where))
        except (OSError, ValueError) as error:
            _log.info("a client disconnected before it was served: %s", error)
            made.close()

    def add(self, made: Any, address: str) -> ServerConnection:
        """Create a connection for a socket that this end opened or accepted.

        Args:
          made: the non-blocking socket.
          address: the client's address, in gRPC's syntax.

        Raises:
          OSError, ValueError: the client has disconnected.
        """
        connection = ServerConnection(made, address, self._make_half(address), self._poll)
        self.connections[connection.fileno()] = connection
        self._begin_to_look()
        with connection.lock:
            connection.flush()
        return connection

    def look(self) -> None:
        """Close connections that open no stream, do not read answers, or drain for too long."""
        now = time.monotonic()
        self.listening.go_on()
        self.next_look = now + _LOOK_SECONDS if self.connections or self.draining else 0.0
        for descriptor, last in list(self.draining.items()):
            if now > last.ends_at:
                self._close_lingering(descriptor)
        for connection in list(self.connections.values()):
            if not connection.half.last_stream and now - connection.accepted_at > _GREET_SECONDS:
                _log.info("%s did not open a stream in time", connection.address)
                self.close(connection)
            elif connection.unsent and now - connection.taken_at > _UNREAD_SECONDS:
                _log.info("%s does not read its answers", connection.address)
                self.close(connection, resets=True)
            else:
                with connection.lock:
                    connection.half.replenish()

    def close(self, connection: ServerConnection, resets: bool = False) -> None:
        """Close a connection; its streams are closed when their events are processed.

        Args:
          connection: the connection. A connection that is already closed is ignored.
          resets: whether to reset the connection, which drops unsent bytes.
        """
        with connection.lock:
            if not connection.is_open:
                return
            connection.flush()
            del self.connections[connection.fileno()]
            if resets:
                connection.reset()
            else:
                connection.close()
            self._end_streams(connection)
        self._tell(connection)

    def break_off(self, connection: ServerConnection) -> None:
        """End a connection after a client error, but let the client read the reason.

        The streams of the connection are closed when their events are processed.
        """
        if connection.has_ended:
            self.close(connection)
            return
        if len(self.draining) >= _MOST_LINGERING:
            self._close_lingering(next(iter(self.draining)))
        with connection.lock:
            descriptor = connection.fileno()
            del self.connections[descriptor]
            ends_at = time.monotonic() + _LINGER_SECONDS
            self.draining[descriptor] = DrainingConnection(*connection.part(), self._poll, ends_at)
            self._end_streams(connection)
        self.go_on_lingering(descriptor)
        self._begin_to_look()
        self._tell(connection)

    def go_on_lingering(self, descriptor: int) -> None:
        """Continue draining a ready socket."""
        if not self.draining[descriptor].go_on():
            self._close_lingering(descriptor)

    def end_lingering(self) -> None:
        """Close all draining sockets."""
        for descriptor in list(self.draining):
            self._close_lingering(descriptor)

    def _close_lingering(self, descriptor: int) -> None:
        self.draining.pop(descriptor).close()

    def _begin_to_look(self) -> None:
        if self.next_look == 0.0:
            self.next_look = time.monotonic() + _LOOK_SECONDS

    def _end_streams(self, connection: ServerConnection) -> None:
        half = connection.half
        half.end_all()
        # Including finished calls whose clients have not received all answers.
        half.events.extend((each.call, Event.GONE) for each in list(connection.served))

    def _tell(self, connection: ServerConnection) -> None:
        # Most of those that do not play never had a stream.
        if connection.half.events:
            self._closed(connection)

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets."""
        self.listening.abandon()
        for connection in self.connections.values():
            connection.abandon()
        for last in self.draining.values():
            last.abandon()

    def _drop_silent(self) -> bool:
        """Make room by closing a connection without a stream, if there is one.

        Draining connections are closed first, then the oldest connection that never had a stream,
        then the oldest of the other connections.
        """
        if self.draining:
            self._close_lingering(next(iter(self.draining)))
            return True
        oldest = None
        for connection in self.connections.values():  # In the order in which they came.
            if not connection.half.last_stream:
                oldest = connection
                break
            if oldest is None and not any(served.is_counted for served in connection.served):
                oldest = connection
        if oldest is not None:
            self.close(oldest)
        return oldest is not None


def peer_address(family: int, where: Any) -> str:
    """Return a client's address in gRPC's syntax."""
    if family == socket.AF_INET:
        return f"ipv4:{where[0]}:{where[1]}"
    if family == socket.AF_INET6:
        return f"ipv6:{urllib.parse.quote(f'[{where[0]}]', safe=':')}:{where[1]}"
    return "unix:"


class DrainingConnection:
    """A connection that ended because of a client error and still sends its final frames.

    Closing a socket with unread input resets the connection, and the kernel drops unsent bytes, so
    the GOAWAY frame with the reason would be lost. To avoid this loss, the server sends the final
    frames, shuts down its side, and discards further input until the client has closed its side.

    Args:
      connected: the non-blocking socket, registered with `poll`.
      last_words: the final frames.
      poll: the poll object that reports whether the socket is ready.
      ends_at: the time on the monotonic clock at which the socket is closed at the latest.

    Attributes:
      ends_at: the time on the monotonic clock at which the socket is closed at the latest.
    """

    def __init__(
        self, connected: Any, last_words: Iterable[Any], poll: select.epoll, ends_at: float
    ):
        self.ends_at = ends_at
        self._socket = connected
        self._unsent = collections.deque(memoryview(piece) for piece in last_words)
        self._has_said_all = False
        self._poll = poll

    def go_on(self) -> bool:
        """Send and receive as much as the socket permits.

        Returns:
          False if the client has closed its end, or True if the connection still drains.
        """
        try:
            if not self._has_said_all:
                self._send()
            # As a plain socket: discarded input need not be decrypted.
            return socket.socket.recv_into(self._socket, _THROWN_AWAY, 0, socket.MSG_TRUNC) > 0
        except WOULD_BLOCK:
            return True
        except (OSError, ValueError):
            return False

    def _send(self) -> None:
        """Send as many final frames as possible; after the last, shut down the sending side."""
        unsent = self._unsent
        try:
            while True:
                if not unsent:
                    break
                piece = unsent[0]
                sent = self._socket.send(piece)
                if sent == len(piece):
                    unsent.popleft()
                else:
                    unsent[0] = piece[sent:]
        except WOULD_BLOCK:
            self._poll.modify(self._socket, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._has_said_all = True
            self._poll.modify(self._socket, select.EPOLLIN)
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(self._socket)
        with contextlib.suppress(OSError):
            # A process forked from this one may have a copy, which would keep it open.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()

    def abandon(self) -> None:
        """Close a forked child's copy of the socket."""
        self._socket.close()


class Handshakes:
    """The thread that performs a listener's TLS handshakes, each of which takes milliseconds.

    Any client can start as many handshakes as connections are allowed. Meanwhile the leading thread
    continues to serve streams, because a handshake releases the GIL while it computes. After each
    handshake the thread rests for as long as the handshake took.

    Only the leading thread calls the methods.

    Args:
      name: the name of the thread, which starts with the first handshake.
      failed: a function called in any thread with each connection whose handshake failed.
    """

    def __init__(self, name: str, failed: Callable[[ServerConnection], None]):
        self._failed = failed
        self._name = name
        # No pool of `concurrent.futures`: pools end as soon as the main thread's code ends.
        self._thread: threading.Thread | None = None
        self._waiting: queue.SimpleQueue[ServerConnection | None] = queue.SimpleQueue()

    def go_on(self, connection: ServerConnection) -> None:
        """Continue the handshake of a connection that the poll object has reported."""
        # Each connection is in it once at most: the poll is silent about it from then on.
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # No thread can be started now.
                self._encrypt(connection)
                return
            self._thread = thread
        self._waiting.put(connection)

    def stop(self) -> None:
        """End the thread."""
        self._waiting.put(None)

    def _run(self) -> None:
        while True:
            connection = self._waiting.get()
            if connection is None:
                return
            self._encrypt(connection)
            del connection  # While it waits for the next one.

    def _encrypt(self, connection: ServerConnection) -> None:
        begun = time.perf_counter()
        try:
            with at_work(), connection.lock:
                is_over = connection.is_open and connection.encrypt()
                if is_over:
                    connection.flush()
        except BaseException:
            _log.exception("the handshake with %s failed", connection.address)
            is_over = False
        if is_over is False:
            self._failed(connection)
        # A thread that always computes keeps its processor for some milliseconds while others wait
        # for it. With rests they wait for one handshake: beside a flood of ClientHellos at two
        # processes the 99th percentile of a step fell from 2.1 to 1.0 ms (row 50).
        time.sleep(min(time.perf_counter() - begun, _LONGEST_REST))
