"""A listener on plain sockets, with one thread that reads requests and writes answers.

grpcio's server passes each message between several threads, which takes up 80 % of the time of a
cheap step. In this listener, the thread that reads a request usually also answers it. The leading
thread waits on all sockets, and in most servers it is the only thread that ever runs.

Streams do not delay each other: `answering.py` chooses the thread that answers a slow stream, and
`leading.py` chooses the thread that leads in the meantime.

Requests are answered only while the client reads the answers. Otherwise the requests wait, and the
client's flow-control window stays closed, which limits the memory that one client can use.
"""

from __future__ import annotations

import collections
import functools
import logging
import select
import time
from collections.abc import Callable

from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.polling import BusyWait, SelfPipe
from dm_env_rpc_client.system.waiting import InterruptibleCondition
from dm_env_rpc_client.transports.http2.protocol.server_half import Event, ServerCall, ServerHalf
from dm_env_rpc_client.transports.http2.server.answering import Answering
from dm_env_rpc_client.transports.http2.server.clients import Clients, Handshakes
from dm_env_rpc_client.transports.http2.server.connection import ServedStream, ServerConnection
from dm_env_rpc_client.transports.http2.server.leading import TICK_SECONDS, Leader, RelievedError
from dm_env_rpc_client.transports.net import listening
from dm_env_rpc_client.transports.net.sockets import ServerTls
from dm_env_rpc_client.transports.net.status import PROCESS
from dm_env_rpc_client.transports.server_streams import (
    Listener,
    ListenerOptions,
    Peer,
    Room,
    StreamStatusError,
)
from dm_env_rpc_client.transports.services import open_own

_log = logging.getLogger(__name__)


class Streams:
    """A listener's streams.

    Args:
      options: the streams to serve, and their limits.
      changed: the condition that is notified when a stream is closed.

    Attributes:
      room: the count of open streams, except those of the built-in services.
    """

    def __init__(self, options: ListenerOptions, changed: InterruptibleCondition):
        self.room = Room(options)
        self._options = options
        self._changed = changed

    def open(self, connection: ServerConnection, call: ServerCall) -> None:
        """Open a stream, or end the call with an error. Only the leading thread calls this."""
        try:
            served = self._served(connection, call)
        except StreamStatusError as error:
            with connection.lock:
                call.finish(error.code, str(error))
        except BaseException:
            _log.exception("opening a stream of %s failed", connection.address)
            with connection.lock:
                call.finish("INTERNAL", "the server failed to open the stream")
        else:
            call.shell = served
            if served is not None:
                connection.served.add(served)
                connection.alone = None

    def _served(self, connection: ServerConnection, call: ServerCall) -> ServedStream | None:
        if call.is_over:
            return None
        own = open_own(call.path)
        if own is not None:
            served = ServedStream(connection, call, own.stream)
            served.is_unary, served.stays = own.is_unary, own.stays
            return served
        if call.path != PROCESS:
            raise StreamStatusError(
                "UNIMPLEMENTED", f"no such method; this server's only method is {PROCESS}"
            )
        self.room.enter(connection.address)
        try:
            stream = self._options.open_stream(Peer(connection.address, call.metadata))
        except BaseException:
            self.room.leave()
            raise
        served = ServedStream(connection, call, stream)
        served.is_counted = connection.is_known = True
        with connection.lock:
            call.accept()
        self.room.admit(served, functools.partial(self._drop, served))
        return served

    def _drop(self, served: ServedStream, error: StreamStatusError) -> None:
        """End an idle stream, which no thread answers. Only the leading thread calls this."""
        _log.info("a stream of %s is dropped: %s", served.connection.address, error)
        with served.connection.lock:
            served.call.finish(error.code, str(error))
            served.connection.flush()
        self.close(served)

    def close(self, served: ServedStream) -> None:
        """Close a stream; only its answering thread calls this method. Later calls do nothing."""
        with served.condition:
            if served.is_closed:
                return
            served.is_closed = True
            served.waiting.clear()
        served.call.shell = None
        connection = served.connection
        with connection.lock:
            connection.stalled.discard(served)
        if served.stream.owner is not None:
            served.stream.owner.slow.discard(served)
        try:
            served.stream.close()
        except BaseException:
            _log.exception("closing a stream of %s failed", connection.address)
        connection.served.discard(served)
        connection.alone = None
        if served.is_counted:
            self.room.leave(served)
            self._changed.notify_all()


_BATCH_SECONDS = 0.0001
"""The maximum time, in seconds, that a small answer waits to be sent with other answers."""

_BATCH_BYTES = 1 << 15
"""Answers that together exceed this many bytes are sent immediately, so that the client can read
them during the next step. For 16 environments with 84x84x4 observations, this reduces the step
time to 0.95x with uint8 and to 0.87x with float32."""

_CLOSE_SECONDS = 5.0
"""The maximum time, in seconds, that `stop` waits for streams to close after the grace period."""

_SHARE_SECONDS = 0.0003
"""The maximum time, in seconds, spent on one connection's requests before other connections are
served. The same limit applies to the total time spent on connections that have not opened a
stream yet. Otherwise, anyone could keep the server busy with the handshakes, health checks and
rejected requests of many such connections."""

_MORE_SOCKETS = 64
"""How many more sockets than streams are allowed, for clients without a stream."""

_MORE_STREAMS = 100
"""How many streams a connection can open beyond the listener's limit, so that the server can tell
the client why it refuses them."""

_MAX_STREAMS_OF_CONNECTION = 4096


class Http2Listener(Listener):
    """A `Listener` with its own implementation of HTTP/2.

    Args:
      options: the streams to serve, and their limits.
      address: `host:port` or `unix:path`; port 0 selects a free port.
      tls: the source of TLS contexts with the ALPN protocol h2, or None for plaintext.

    Raises:
      OSError: the address is in use or is not an address of this machine.
    """

    def __init__(self, options: ListenerOptions, address: str, tls: ServerTls | None):
        self._poll = select.epoll()
        # Connections with events that the leading thread has not processed yet.
        self._ready: collections.deque[ServerConnection] = collections.deque()
        # Unknown connections, with the events that the poll reported.
        self._strangers: collections.deque[tuple[ServerConnection, int]] = collections.deque()
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._bell = SelfPipe()
        self._busy_wait = BusyWait()
        self._changed = InterruptibleCondition()
        self._leader = Leader(self._turn, self._again, self._bell.notify)
        self._is_ending = False
        most_of_connection = min(options.max_streams + _MORE_STREAMS, _MAX_STREAMS_OF_CONNECTION)
        self._clients = Clients(
            self._poll,
            tls,
            lambda client: ServerHalf(
                f"the client {client}",
                options.max_message_bytes,
                most_of_connection,
                options.allocate,
            ),
            options.max_streams + _MORE_SOCKETS,
            self._again,
        )
        self._streams = Streams(options, self._changed)
        self._answering = Answering(self._leader, self._streams.close, self._again)
        try:
            self.address: str = listening.listen(self._clients.listening.add, address)
            self._handshakes = Handshakes(
                f"dm_env_rpc {self.address} shakes hands",
                lambda failed: self._command(functools.partial(self._clients.close, failed)),
            )
            self._poll.register(self._bell.fileno(), select.EPOLLIN)
            self._leader.start(f"dm_env_rpc {self.address}")
        except BaseException:
            self._leader.stop()
            self._clients.listening.close()
            self._release()
            raise
        forking.register(self, Http2Listener.after_fork_in_child)

    # The interface.

    def wait(self, timeout: float | None = None) -> bool:
        return self._changed.wait_for(lambda: self._leader.is_stopped, timeout)

    def stop(self, grace: float) -> None:
        self._command(self._say_goodbye)
        deadline = time.monotonic() + grace
        # Closed streams are reported, sent answers are not.
        while not self._changed.wait_for(self._is_idle, min(TICK_SECONDS, grace)):
            if time.monotonic() >= deadline:
                break
        self._command(self._end)
        self.wait(_CLOSE_SECONDS)

    def abort(self) -> None:
        self._command(self._end)

    # The thread that leads.

    def _turn(self) -> None:
        """Wait for sockets to become ready, and serve them."""
        while self._commands:
            self._commands.popleft()()
        clients, wait = self._clients, -1.0
        if self._ready or self._strangers:
            wait = 0.0
        elif self._is_ending:
            self._become_stopped()
            return
        if clients.next_look:
            until_look = clients.next_look - time.monotonic()
            if until_look <= 0:
                clients.look()
                return
            if wait:
                wait = until_look
        connections = clients.connections
        busy_wait, poll, ready = self._busy_wait, self._poll.poll, None
        if wait and next(busy_wait.rests, None) is None:
            ready = busy_wait.spin(poll, 0)
        for descriptor, mask in ready or poll(wait):
            connection = connections.get(descriptor)
            if connection is None:
                if descriptor in clients.listening:
                    clients.accept(descriptor)
                elif descriptor in clients.draining:
                    clients.go_on_lingering(descriptor)
                else:
                    self._bell.drain()
                    self._leader.run_calls()
            # Nothing is lost if another thread leads from here on: the poll, which is
            # level-triggered, reports the other sockets to that thread again.
            elif connection.is_queued:
                # It already had its turn; further input stays in its socket until the next one.
                if mask & select.EPOLLOUT:
                    with connection.lock:
                        connection.flush(is_writable=True)
            elif not connection.is_known:
                connection.is_queued = True
                self._strangers.append((connection, mask))
            else:
                self._serve(connection, mask)
        # Only one per turn, so that modest clients do not wait for all the greedy ones.
        if self._ready:
            queued = self._ready.popleft()
            queued.is_queued = False
            self._serve(queued, 0)
        if self._strangers:
            self._serve_strangers()

    def _serve_strangers(self) -> None:
        """Serve connections without a stream for a limited time, then pause if any are left."""
        ends = time.perf_counter() + _SHARE_SECONDS
        while self._strangers:
            connection, mask = self._strangers.popleft()
            connection.is_queued = False
            self._serve(connection, mask)
            if time.perf_counter() > ends:
                # A process that always computes keeps its processor for some milliseconds while
                # this server's other processes wait for it. Rests let them run: during health
                # checks with much metadata at two processes, the 99th percentile of a step was
                # 1.1 to 1.8 ms without rests and is 0.7 to 0.9 ms with them (row 50).
                time.sleep(_SHARE_SECONDS)
                break

    def _serve(self, connection: ServerConnection, mask: int) -> None:
        """Send and receive on a connection that is ready."""
        here = self._leader.owner
        try:
            served = connection.alone
            if served is not None and mask == select.EPOLLIN:
                message = connection.receive_request(served)
                if message is not None:
                    if not served.is_closed:
                        self._answering.request(served, message, True)
                    if connection.sending.outbound:
                        with connection.lock:
                            connection.flush()
                    return
                mask = 0  # `receive_request` has already received the input.
            if connection.is_encrypting:
                if mask and connection.is_open:
                    self._handshakes.go_on(connection)
                return
            if connection.is_open:  # Unparsed bytes of a closed connection are dropped.
                if mask & select.EPOLLOUT:
                    with connection.lock:
                        connection.flush(is_writable=True)
                # Earlier events are processed first, so that they do not pile up.
                if not connection.half.events:
                    connection.advance(bool(mask & ~select.EPOLLOUT))
                if connection.stalled:
                    self._answering.resume(connection)
            self._process(connection)
        except RelievedError:
            raise
        except BaseException:
            _log.exception("serving %s failed", connection.address)
            if not self._leader.is_held_by(here):
                raise RelievedError from None
            self._clients.close(connection)

    def _process(self, connection: ServerConnection) -> None:
        """Process the events of a client's connection."""
        answering = self._answering
        events = connection.half.events
        framing = connection.half.framing
        sending = framing.sending
        begun = ends = 0.0
        sent = sending.submitted
        while events:
            call, what = events.popleft()
            served = call.shell
            if not isinstance(what, Event):
                # Most are messages; members of an enum are slow to find.
                if served is not None:
                    answering.request(served, what)
            elif what is Event.OPENED:
                self._streams.open(connection, call)
            elif served is None:
                continue
            elif what is Event.ENDED:
                answering.end_requests(served)
            else:  # GONE
                answering.abandon(served)
            now = time.perf_counter()
            if sending.outbound:
                begun = begun or now
                if now - begun > _BATCH_SECONDS or sending.submitted - sent > _BATCH_BYTES:
                    begun = 0.0
                    sent = sending.submitted
                    with connection.lock:
                        connection.flush()
            ends = ends or now + _SHARE_SECONDS
            if now > ends:
                break
        if sending.outbound:
            with connection.lock:
                connection.flush()
        failure = framing.failure
        if failure is not None and connection.is_open:
            _log.debug("%s", failure)
            self._clients.break_off(connection)
        if events or (connection.is_open and (framing.is_behind or connection.has_more)):
            self._again(connection)

    def _again(self, connection: ServerConnection) -> None:
        """Queue a connection to be served again by the leading thread, after the others."""
        if not connection.is_queued:
            connection.is_queued = True
            if connection.is_known:
                self._ready.append(connection)
            else:
                self._strangers.append((connection, 0))

    # Now and then, and the end.

    def _command(self, command: Callable[[], None]) -> None:
        """Run a function in the leading thread."""
        self._commands.append(command)
        self._bell.notify()

    def _say_goodbye(self) -> None:
        self._clients.listening.close()
        for connection in self._clients.connections.values():
            with connection.lock:
                connection.half.leave()
                connection.flush()

    def _is_idle(self) -> bool:
        """Return whether all streams are closed and answers sent, or the listener has stopped."""
        if self._leader.is_stopped:
            return True
        return not self._streams.room.count and not any(
            connection.half.framing.sending.has_unsent
            for connection in list(self._clients.connections.values())
            if not connection.is_encrypting
        )

    def _end(self) -> None:
        """Begin to close the listener; `_become_stopped` follows once all streams are closed."""
        self._clients.listening.close()
        self._clients.end_lingering()
        self._is_ending = True
        for connection in list(self._clients.connections.values()):
            with connection.lock:
                for call in list(connection.half.calls.values()):
                    call.finish("UNAVAILABLE", "the server was stopped")
            self._clients.close(connection)

    def _become_stopped(self) -> None:
        self._handshakes.stop()
        self._release()
        self._leader.stop()
        self._changed.notify_all()

    def _release(self) -> None:
        self._poll.close()
        self._bell.close()

    def after_fork_in_child(self) -> None:
        """Abandon the parent's resources. Only a forked child calls this, in its only thread."""
        self._changed = InterruptibleCondition()
        self._clients.abandon()
        self._poll.close()
        self._bell.abandon()
        self._leader.is_stopped = True
