"""A listener on plain sockets: one thread reads requests, has them answered and writes the answers.

grpcio's server hands each message over between several threads, which takes 80 % of a cheap step.
Here the thread that has read a request answers it, too. It leads: it waits for all sockets, and
for most servers it is the only thread that ever runs.

Streams stay independent nevertheless. A second thread watches. When an answer takes longer than
a few milliseconds, the watcher takes over the lead, and the thread that still answers keeps just
the stream that it answers. Such a stream has a thread of its own until its answers are quick
again. So has one that waits for other streams (`ServerStream.may_wait`), from the start.

A request is answered only while the client takes the answers; otherwise it waits, and then the
client's window for requests stays closed. So what one client can make the server hold is bounded.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
import select
import socket
import ssl
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

from dm_env_rpc_client.transports import listening
from dm_env_rpc_client.transports.health import open_health
from dm_env_rpc_client.transports.http2.doors import Doors
from dm_env_rpc_client.transports.http2.server_connection import ServerConnection
from dm_env_rpc_client.transports.http2.server_half import (
    Event,
    ServerCall,
    ServerHalf,
)
from dm_env_rpc_client.transports.http2.sockets import set_options
from dm_env_rpc_client.transports.self_pipe import SelfPipe
from dm_env_rpc_client.transports.server_streams import (
    OpenStream,
    Peer,
    Refused,
    ServerStream,
    StreamStatusError,
    full_error,
)
from dm_env_rpc_client.transports.status import PROCESS
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES, Allocate, plain_memory

__all__ = ["Http2Listener"]

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.005
"""How often the watcher looks; an answer that it sees twice is slow."""

_REST_SECONDS = 0.5
"""After so much time without an answer the watcher waits to be woken."""

_SLOW_SECONDS = 0.001
"""Streams whose answers take longer than this have threads of their own, so that they run at the
same time if they leave the interpreter to others."""

_QUICK_SECONDS = 0.0003
"""Streams whose answers take less than this are answered by the thread that leads again."""

_LINGER_SECONDS = 5.0
"""How long the thread of a stream waits for a request."""

_BATCH_SECONDS = 0.0001
"""How long a small answer may wait for others on its connection, to be sent with them."""

_LOOK_SECONDS = 1.0
"""How often silent connections are looked for."""

_GREET_SECONDS = 10.0
"""How long a client may take until it has opened a stream."""

_UNREAD_SECONDS = 600.0
"""How long a client may leave answers unread. Programs do when they train, or are in a debugger.

There are no probes: a program that reads only when it waits for an answer does not respond to
them. Connections of machines that are gone are ended by the kernel (`set_options`).
"""

_CLOSE_SECONDS = 5.0
"""How long `stop` waits for streams to be closed, when the grace is over."""

_PAUSE_SECONDS = 0.2
"""How long clients wait when there are no descriptors for them."""

_SHARE_SECONDS = 0.0003
"""How long the requests of one connection are answered before it is the turn of others."""

_MAX_WAITING = 64
"""Requests of a stream that wait for its thread; the client's window stays closed meanwhile."""

_MAX_AHEAD_BYTES = 1 << 26
"""What may wait to be answered on a connection before a stream that sends more is ended."""

_REQUEST_BYTES = 128
"""What a request takes beside its contents."""

_ACCEPTED_AT_ONCE = 64
_MORE_SOCKETS = 64
"""Sockets that have no stream, beyond the number of streams."""

_MORE_STREAMS = 100
"""Streams of a connection beyond the limit of all streams: those are refused with a reason."""

_MAX_STREAMS_OF_CONNECTION = 4096


class _Served:
    """A stream and the call that it answers. `condition` protects what two threads use.

    Attributes:
      waiting: requests that its thread is to answer.
      has_thread: whether a thread of its own answers.
      has_ended: whether the client sends no more.
      is_gone: whether the client is gone.
      stays: whether it goes on when the client sends no more.
      seconds: about how long its answers take.
      waiting_bytes: what `waiting` takes.
    """

    __slots__ = (
        "call",
        "condition",
        "connection",
        "has_ended",
        "has_thread",
        "is_closed",
        "is_counted",
        "is_gone",
        "is_unary",
        "seconds",
        "stays",
        "stream",
        "waiting",
        "waiting_bytes",
    )

    def __init__(self, connection: ServerConnection, call: ServerCall, stream: ServerStream):
        self.connection = connection
        self.call = call
        self.stream = stream
        self.condition = threading.Condition(threading.Lock())
        self.waiting: collections.deque[bytearray | memoryview] = collections.deque()
        self.has_thread = self.has_ended = self.is_gone = self.is_closed = False
        self.is_unary = self.is_counted = self.stays = False
        self.seconds = 0.0
        self.waiting_bytes = 0

    @property
    def is_stalled(self) -> bool:
        """Whether it gets no answers, because the client does not take earlier ones."""
        return self.call.has_unsent or self.connection.is_clogged


_Inline: TypeAlias = tuple[_Served, bool]
"""What the thread that leads is doing for one stream, and whether that is an answer."""


class Http2Listener:
    """A `Listener` that speaks HTTP/2 itself.

    Args:
      open_stream: makes the server's end of each stream.
      address: `host:port` or `unix:path`; port 0 takes a free one. None to serve only connections
        that another process accepts, see `adopt`.
      tls: the context for TLS, with the ALPN protocol h2; None for plaintext.
      max_streams: streams beyond this are refused with RESOURCE_EXHAUSTED.
      max_message_bytes: the size of the largest request.
      allocate: gives the memory for large requests.
      refused: told of each stream beyond `max_streams`.
      processes: how many processes serve the connections of this server.

    Raises:
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        address: str | None,
        tls: ssl.SSLContext | None,
        max_streams: int,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        allocate: Allocate = plain_memory,
        refused: Refused = lambda *_: None,
        processes: int = 1,
    ):
        self._open_stream = open_stream
        self._refused = refused
        self._tls = tls
        self._max_streams = max_streams
        self._max_message_bytes = max_message_bytes
        self._allocate = allocate
        self._processes = processes
        self._poll = select.epoll()
        self._doors = Doors(self._poll)
        self._connections: dict[int, ServerConnection] = {}
        # Connections on which something happened that the thread that leads has not seen.
        self._ready: collections.deque[ServerConnection] = collections.deque()
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._bell = SelfPipe()
        # Protects what follows; held briefly. Entering it costs less than entering the condition.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._leader: object = None
        self._inline: _Inline | None = None
        self._answers = 0
        self._stream_count = 0
        self._is_resting = False
        self._rested = threading.Event()
        self._is_ending = self._is_stopped = False
        self._next_look = 0.0
        try:
            self.address = "" if address is None else listening.listen(self._doors.add, address)
            self._poll.register(self._bell.fileno(), select.EPOLLIN)
            self._start(self._lead, "leads")
        except BaseException:
            self._doors.close()
            self._release()
            raise
        _listeners.add(self)

    # The interface.

    def wait(self, timeout: float | None = None) -> bool:
        """See `Listener.wait`."""
        with self._lock:
            return self._changed.wait_for(lambda: self._is_stopped, timeout)

    def stop(self, grace: float) -> None:
        """See `Listener.stop`."""
        self._command(self._say_goodbye)
        deadline = time.monotonic() + grace
        with self._lock:
            # Closed streams are told, sent answers are not.
            while not self._is_stopped and self._is_busy():
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self._changed.wait(min(remaining, _TICK_SECONDS))
        self._command(self._end)
        with self._lock:
            self._changed.wait_for(lambda: self._is_stopped, _CLOSE_SECONDS)

    def abort(self) -> None:
        """See `Listener.abort`."""
        self._command(self._end)

    def adopt(self, descriptor: int) -> None:
        """Serves a connection that another process has accepted.

        Args:
          descriptor: its socket, which belongs to the listener from then on.
        """
        accepted = socket.socket(fileno=descriptor)
        try:
            where = accepted.getpeername()
        except OSError:
            accepted.close()  # The client is gone.
        else:
            self._command(functools.partial(self._admit, accepted, where))

    # Connections.

    def _accept(self, descriptor: int) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted = self._doors.accept(descriptor)
            except OSError as error:
                _log.warning("could not accept a connection: %s", error)
                if self._drop_silent():
                    continue
                self._doors.pause()
                self._next_look = time.monotonic() + _PAUSE_SECONDS
                return
            if accepted is None:
                return
            self._admit(*accepted)

    def _admit(self, accepted: socket.socket, where: Any) -> None:
        """Makes a connection of a socket, if there is room for it."""
        most = self._max_streams + _MORE_SOCKETS
        if len(self._connections) >= most and not self._drop_silent():
            accepted.close()
            return
        made: Any = accepted
        try:
            accepted.setblocking(False)
            set_options(accepted)
            if self._tls is not None:
                made = self._tls.wrap_socket(
                    accepted, server_side=True, do_handshake_on_connect=False
                )
            address = _peer_address(accepted.family, where)
            half = ServerHalf(
                f"the client {address}",
                self._max_message_bytes,
                min(self._max_streams + _MORE_STREAMS, _MAX_STREAMS_OF_CONNECTION),
                self._allocate,
                self._processes,
            )
            connection = ServerConnection(made, address, half, self._poll)
        except (OSError, ValueError) as error:
            _log.info("a client was gone before it was served: %s", error)
            made.close()
            return
        self._connections[connection.fileno()] = connection
        if self._next_look == 0.0:
            self._next_look = time.monotonic() + _LOOK_SECONDS
        with connection.lock:
            connection.flush()

    def _drop_silent(self) -> bool:
        """Closes a connection without a stream, if there is one, to make room.

        Those that never had one are first, and of them the oldest.
        """
        silent = (
            connection
            for connection in self._connections.values()
            if not any(served.is_counted for served in connection.served)
        )
        oldest = min(
            silent, key=lambda one: (one.half.last_stream > 0, one.accepted_at), default=None
        )
        if oldest is not None:
            self._close(oldest)
        return oldest is not None

    # The thread that leads.

    def _start(self, target: Callable[..., None], name: str, *arguments: Any) -> None:
        threading.Thread(
            target=target, args=arguments, name=f"dm_env_rpc {self.address} {name}", daemon=True
        ).start()

    def _lead(self) -> None:
        """Leads until another thread takes over or the listener is stopped."""
        me = object()
        with self._lock:
            self._leader = me
        try:
            self._start(self._watch, "watches")
        except RuntimeError:
            _log.exception("no thread can be started; long answers delay the others")
        while True:
            try:
                if not self._turn(me):
                    return
            except BaseException:
                if not self._leads(me):
                    return
                _log.exception("serving failed")
                time.sleep(_TICK_SECONDS)

    def _leads(self, me: object) -> bool:
        with self._lock:
            return self._leader is me and not self._is_stopped

    def _turn(self, me: object) -> bool:
        """Waits for sockets and does what there is to do; False if another thread leads now."""
        while self._commands:
            self._commands.popleft()()
        if self._is_ending and not self._ready:
            self._become_stopped()
            return False
        wait = 0.0 if self._ready else -1.0
        if self._next_look:
            until_look = self._next_look - time.monotonic()
            if until_look <= 0:
                self._look()
                return True
            if wait:
                wait = until_look
        for descriptor, mask in self._poll.poll(wait):
            connection = self._connections.get(descriptor)
            if connection is None:
                if descriptor in self._doors:
                    self._accept(descriptor)
                else:
                    self._bell.drain()
            # Nothing is lost if another thread leads from here on: what this thread was told
            # about other sockets, that one is told again.
            elif connection.is_queued:
                # It has had its turn. What it sent stays in its socket until the next one.
                if mask & select.EPOLLOUT:
                    with connection.lock:
                        connection.flush(is_writable=True)
            elif not self._serve(me, connection, mask):
                return False
        # One of them: those that send less than they may do not wait for all that send more.
        if self._ready:
            queued = self._ready.popleft()
            queued.is_queued = False
            if not self._serve(me, queued, 0):
                return False
        return not self._is_stopped

    def _serve(self, me: object, connection: ServerConnection, mask: int) -> bool:
        """Does what a connection is ready for; False if another thread leads now."""
        try:
            self._move_bytes(connection, mask)
            return self._process(me, connection)
        except BaseException:
            _log.exception("serving %s failed", connection.address)
            if not self._leads(me):
                return False
            self._close(connection)
            return True

    def _move_bytes(self, connection: ServerConnection, mask: int) -> None:
        if not connection.is_open:
            return  # What it has received and not parsed is of no use any more.
        if connection.is_encrypting:
            if not mask:
                return
            is_done = connection.encrypt()
            if is_done is False:
                self._close(connection)
            elif is_done:
                with connection.lock:
                    connection.flush()
            return
        if mask & select.EPOLLOUT:
            with connection.lock:
                connection.flush(is_writable=True)
        # What was received before is done first, so that it does not pile up.
        if not connection.half.events:
            connection.advance(bool(mask & ~select.EPOLLOUT))
        if connection.stalled:
            self._resume(connection)

    def _process(self, me: object, connection: ServerConnection) -> bool:
        """Does what the client has asked for; False if another thread leads now."""
        events = connection.half.events
        framing = connection.half.framing
        sending = framing.sending
        begun = ends = 0.0
        while events:
            call, what = events.popleft()
            served = call.shell
            if what is Event.OPENED:
                self._open(connection, call)
            elif served is None:
                continue
            elif what is Event.ENDED:
                if not self._end_requests(me, served):
                    return False
            elif what is Event.GONE:
                if not self._abandon(me, served):
                    return False
            elif not self._request(me, served, what):
                return False
            now = time.perf_counter()
            if sending.outbound:
                begun = begun or now
                if now - begun > _BATCH_SECONDS:
                    begun = 0.0
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
            self._close(connection)
        if events or (connection.is_open and (framing.is_behind or connection.has_more)):
            self._again(connection)
        return True

    def _again(self, connection: ServerConnection) -> None:
        """Has the thread that leads look at a connection when the others have had their turn."""
        if not connection.is_queued:
            connection.is_queued = True
            self._ready.append(connection)

    def _open(self, connection: ServerConnection, call: ServerCall) -> None:
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

    def _served(self, connection: ServerConnection, call: ServerCall) -> _Served | None:
        if call.is_over:
            return None
        health = open_health(call.path)
        if health is not None:
            served = _Served(connection, call, health.stream)
            served.is_unary, served.stays = health.is_unary, not health.is_unary
            return served
        if call.path != PROCESS:
            raise StreamStatusError("UNIMPLEMENTED", f"no method {call.path}")
        if self._stream_count >= self._max_streams:
            full = full_error(self._max_streams)
            self._refused(connection.address, f"{full.code}: {full}")
            raise full
        stream = self._open_stream(Peer(connection.address, call.metadata))
        served = _Served(connection, call, stream)
        served.is_counted = True
        with self._lock:
            self._stream_count += 1
        return served

    def _request(self, me: object, served: _Served, message: bytearray | memoryview) -> bool:
        """Has a request answered; False if another thread leads now."""
        if served.call.is_over:
            return True
        if (
            served.has_thread
            or served.waiting
            or served.seconds > _SLOW_SECONDS
            or served.stream.may_wait
            or served.is_stalled
        ):
            return self._enqueue(me, served, message)
        return self._answer_inline(me, served, message)

    def _answer_inline(self, me: object, served: _Served, message: bytearray | memoryview) -> bool:
        self._enter(served, True)
        begin = time.perf_counter()
        answer = _answer(served, message)
        took = time.perf_counter() - begin
        served.seconds += (took - served.seconds) / 8
        if self._leave(me):
            if self._reply(served, answer, False):
                return True
            return self._close_inline(me, served)
        # The stream is what this thread keeps.
        served.seconds = max(served.seconds, _TICK_SECONDS)
        if self._reply(served, answer, True):
            self._serve_alone(served)
        else:
            self._close_stream(served)
        return False

    def _enter(self, served: _Served, is_answer: bool) -> None:
        """Begins what may take long."""
        self._inline = (served, is_answer)
        # After that: the watcher looks at both in the other order.
        if self._is_resting:
            self._is_resting = False
            self._rested.set()

    def _leave(self, me: object) -> bool:
        """Ends what `_enter` began; False if another thread leads now."""
        with self._lock:
            leads = self._leader is me
            if leads:
                self._inline = None
                self._answers += 1
            return leads

    def _reply(self, served: _Served, answer: bytes | StreamStatusError, at_once: bool) -> bool:
        """Queues an answer; False if it was the last of its stream."""
        connection, call = served.connection, served.call
        with connection.lock:
            if isinstance(answer, StreamStatusError):
                call.finish(answer.code, str(answer))
            else:
                call.send(answer)
                connection.added(len(answer))
                if served.is_unary:
                    call.finish("OK")
            if at_once:
                connection.flush()
        return not (served.is_unary or isinstance(answer, StreamStatusError))

    def _end_requests(self, me: object, served: _Served) -> bool:
        if served.stays:
            return True
        with served.condition:
            served.has_ended = True
            if served.has_thread:
                served.condition.notify_all()
                return True
            if served.waiting:
                return True  # They are answered when the client takes the answers.
        with served.connection.lock:
            served.call.finish("OK")
        return self._close_inline(me, served)

    def _abandon(self, me: object, served: _Served) -> bool:
        with served.condition:
            if served.is_gone or served.is_closed:
                return True
            served.is_gone = True
            served.waiting.clear()
            # Under the condition: `close` comes after it.
            try:
                served.stream.abandon()
            except BaseException:
                _log.exception("abandoning a stream of %s failed", served.connection.address)
            if served.has_thread:
                served.condition.notify_all()
                return True
        return self._close_inline(me, served)

    def _close_inline(self, me: object, served: _Served) -> bool:
        """Closes a stream that no thread answers; False if another thread leads now."""
        self._enter(served, False)
        self._close_stream(served)
        return self._leave(me)

    def _close_stream(self, served: _Served) -> None:
        with served.condition:
            if served.is_closed:
                return
            served.is_closed = True
            served.waiting.clear()
        served.call.shell = None
        connection = served.connection
        with connection.lock:
            connection.stalled.discard(served)
        try:
            served.stream.close()
        except BaseException:
            _log.exception("closing a stream of %s failed", connection.address)
        connection.served.discard(served)
        if served.is_counted:
            with self._lock:
                self._stream_count -= 1
                self._changed.notify_all()

    def _resume(self, connection: ServerConnection) -> None:
        """Goes on with streams whose answers could not be sent."""
        with connection.lock:
            ready = [served for served in connection.stalled if not served.is_stalled]
            connection.stalled.difference_update(ready)
        for served in ready:
            self._give_thread(served)

    # Streams with threads of their own.

    def _enqueue(self, me: object, served: _Served, message: bytearray | memoryview) -> bool:
        """Has a request answered by a thread of its stream; False if another thread leads now."""
        connection = served.connection
        with served.condition:
            served.waiting.append(message)
            served.waiting_bytes += len(message) + _REQUEST_BYTES
            if len(served.waiting) >= _MAX_WAITING:
                with connection.lock:
                    served.call.hold(True)
            is_much = not len(served.waiting) % _MAX_WAITING
            has_thread = served.has_thread
            if has_thread:
                served.condition.notify()
            elif served.is_stalled:
                with connection.lock:
                    connection.stalled.add(served)
                has_thread = True  # `_resume` gives one.
        if not has_thread:
            self._give_thread(served)
        if is_much and sum(one.waiting_bytes for one in list(connection.served)) > _MAX_AHEAD_BYTES:
            with connection.lock:
                served.call.finish(
                    "RESOURCE_EXHAUSTED", "the client sent too many requests ahead of the answers"
                )
            return self._abandon(me, served)
        return True

    def _give_thread(self, served: _Served) -> None:
        with served.condition:
            if served.has_thread or served.is_closed:
                return
            served.has_thread = True
        try:
            self._start(self._serve_alone, "serves a stream", served)
        except RuntimeError:
            _log.exception("no thread can be started for %s", served.connection.address)
            with served.connection.lock:
                served.call.finish("RESOURCE_EXHAUSTED", "the server cannot start a thread")
            self._close_stream(served)

    def _serve_alone(self, served: _Served) -> None:
        """Answers the requests of one stream until it is over, quick, or idle."""
        while True:
            message = self._next_request(served)
            if message is None:
                if served.has_thread:
                    break
                return
            begin = time.perf_counter()
            answer = _answer(served, message)
            took = time.perf_counter() - begin
            served.seconds += (took - served.seconds) / 8
            if not self._reply(served, answer, True):
                break
        if served.has_ended and not served.is_gone:
            with served.connection.lock:
                served.call.finish("OK")
                served.connection.flush()
        self._close_stream(served)

    def _next_request(self, served: _Served) -> bytearray | memoryview | None:
        """Waits for a request; None if there is none.

        Then `has_thread` is False if others are to go on with the stream.
        """
        connection = served.connection
        with served.condition:
            while not served.waiting:
                if served.has_ended or served.is_gone:
                    return None
                is_quick = served.seconds < _QUICK_SECONDS and not served.stream.may_wait
                if is_quick or not (
                    served.condition.wait(_LINGER_SECONDS)
                    or served.waiting
                    or served.has_ended
                    or served.is_gone
                ):
                    served.has_thread = False
                    return None
            # With the lock: whoever receives that there is room again looks at `stalled` then.
            with connection.lock:
                if served.is_stalled:
                    connection.stalled.add(served)
                    served.has_thread = False
                    return None
            message = served.waiting.popleft()
            served.waiting_bytes -= len(message) + _REQUEST_BYTES
            if not served.waiting and served.call.assembler.is_held:
                with connection.lock:
                    served.call.hold(False)
                    connection.flush()
        return message

    # The thread that watches.

    def _watch(self) -> None:
        """Takes over the lead from a thread whose answer takes long."""
        leader = self._leader
        seen: _Inline | None = None
        answers, since = -1, time.monotonic()
        while not self._is_stopped:
            time.sleep(_TICK_SECONDS)
            inline = self._inline
            if inline is None or inline is not seen:
                seen = inline
                now = time.monotonic()
                if self._answers != answers:
                    answers, since = self._answers, now
                elif inline is None and now - since > _REST_SECONDS:
                    self._rest()
                    since = time.monotonic()
                continue
            with self._lock:
                if self._inline is not seen or self._leader is not leader:
                    continue
                self._leader = None
                self._inline = None
                served, is_answer = inline
                if is_answer:
                    served.has_thread = True
            self._again(served.connection)
            self._lead()
            return

    def _rest(self) -> None:
        """Waits until there is something to watch again."""
        self._rested.clear()
        self._is_resting = True
        # After that: the thread that leads does both in the other order.
        if self._inline is None and not self._is_stopped:
            self._rested.wait()
        self._is_resting = False

    # Now and then, and the end.

    def _look(self) -> None:
        """Ends connections that do not greet, and those whose clients do not read."""
        now = time.monotonic()
        self._doors.go_on()
        self._next_look = now + _LOOK_SECONDS if self._connections else 0.0
        for connection in list(self._connections.values()):
            if not connection.half.last_stream and now - connection.accepted_at > _GREET_SECONDS:
                _log.info("%s did not open a stream in time", connection.address)
                self._close(connection)
            elif connection.unsent and now - connection.taken_at > _UNREAD_SECONDS:
                _log.info("%s does not read its answers", connection.address)
                self._close(connection, resets=True)
            else:
                with connection.lock:
                    connection.half.forgive()

    def _close(self, connection: ServerConnection, resets: bool = False) -> None:
        """Closes a connection; its streams are closed as their events are processed."""
        with connection.lock:
            if not connection.is_open:
                return
            connection.flush()
            self._connections.pop(connection.fileno(), None)
            if resets:
                connection.reset()
            else:
                connection.close()
            half = connection.half
            half.end_all()
            # Also streams whose calls were over: their clients have not taken all answers.
            half.events.extend((each.call, Event.GONE) for each in list(connection.served))
        self._again(connection)

    def _command(self, command: Callable[[], None]) -> None:
        """Has the thread that leads do something."""
        self._commands.append(command)
        self._bell.notify()

    def _say_goodbye(self) -> None:
        self._doors.close()
        for connection in self._connections.values():
            with connection.lock:
                connection.half.leave()
                connection.flush()

    def _is_busy(self) -> bool:
        """Whether there is a stream, or an answer that was not sent."""
        if self._stream_count:
            return True
        return any(
            connection.half.framing.sending.has_unsent
            for connection in list(self._connections.values())
            if not connection.is_encrypting
        )

    def _end(self) -> None:
        """Begins the end: closes what is open. The rest follows when all streams are closed."""
        self._doors.close()
        self._is_ending = True
        for connection in list(self._connections.values()):
            with connection.lock:
                for call in list(connection.half.calls.values()):
                    call.finish("UNAVAILABLE", "the server was stopped")
            self._close(connection)

    def _become_stopped(self) -> None:
        self._release()
        with self._lock:
            self._is_stopped = True
            self._changed.notify_all()
        self._rested.set()

    def _release(self) -> None:
        self._poll.close()
        self._bell.close()

    def after_fork_in_child(self) -> None:
        """Gives up what belongs to the parent; called in the only thread of a forked child."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._doors.abandon()
        for connection in self._connections.values():
            connection.abandon()
        self._poll.close()
        self._bell.abandon()
        self._is_stopped = True


def _answer(served: _Served, message: bytearray | memoryview) -> bytes | StreamStatusError:
    try:
        return served.stream.answer(bytes(message))
    except StreamStatusError as error:
        return error
    except BaseException as error:
        # Also SystemExit: an environment must not end the thread that serves the others.
        _log.exception("a stream of %s failed", served.connection.address)
        return StreamStatusError("INTERNAL", f"the server failed: {type(error).__name__}")


def _peer_address(family: int, where: Any) -> str:
    """Returns the address of a client as gRPC writes it."""
    if family == socket.AF_INET:
        return f"ipv4:{where[0]}:{where[1]}"
    if family == socket.AF_INET6:
        return f"ipv6:{urllib.parse.quote(f'[{where[0]}]', safe=':')}:{where[1]}"
    return "unix:"


_listeners: weakref.WeakSet[Http2Listener] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for listener in list(_listeners):
        listener.after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
