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
import contextlib
import logging
import os
import select
import socket
import ssl
import stat
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

from dm_env_rpc_client.transports import listening
from dm_env_rpc_client.transports.addresses import parse_host_port
from dm_env_rpc_client.transports.health import open_health
from dm_env_rpc_client.transports.http2.server_connection import ServerConnection
from dm_env_rpc_client.transports.http2.server_half import Event, ServerCall, ServerHalf
from dm_env_rpc_client.transports.http2.sockets import set_options
from dm_env_rpc_client.transports.self_pipe import SelfPipe
from dm_env_rpc_client.transports.server_streams import (
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
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

_PROBE_SECONDS = 20.0
"""After so much silence a client is probed; after as much again its connection is over."""

_MAX_WAITING = 64
"""Requests of a stream that wait for its thread; the client's window stays closed meanwhile."""

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
      seconds: about how long its answers take.
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
        "stream",
        "waiting",
    )

    def __init__(self, connection: ServerConnection, call: ServerCall, stream: ServerStream):
        self.connection = connection
        self.call = call
        self.stream = stream
        self.condition = threading.Condition(threading.Lock())
        self.waiting: collections.deque[bytearray | memoryview] = collections.deque()
        self.has_thread = self.has_ended = self.is_gone = self.is_closed = False
        self.is_unary = self.is_counted = False
        self.seconds = 0.0


class _Inline(NamedTuple):
    """What the thread that leads is doing for one stream."""

    served: _Served
    is_answer: bool


class Http2Listener:
    """A `Listener` that speaks HTTP/2 itself.

    Args:
      open_stream: makes the server's end of each stream.
      address: `host:port` or `unix:path`; port 0 takes a free one.
      tls: the context for TLS, with the ALPN protocol h2; None for plaintext.
      max_streams: streams beyond this are refused with RESOURCE_EXHAUSTED.
      max_message_bytes: the size of the largest request.
      allocate: gives the memory for large requests.

    Raises:
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        address: str,
        tls: ssl.SSLContext | None,
        max_streams: int,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        allocate: Allocate = plain_memory,
    ):
        self._open_stream = open_stream
        self._tls = tls
        self._max_streams = max_streams
        self._max_message_bytes = max_message_bytes
        self._allocate = allocate
        self._poll = select.epoll()
        self._doors: dict[int, socket.socket] = {}
        self._paths: list[str] = []
        self._connections: dict[int, ServerConnection] = {}
        # Connections on which something happened that the thread that leads has not seen.
        self._ready: collections.deque[ServerConnection] = collections.deque()
        self._commands: collections.deque[Callable[[], None]] = collections.deque()
        self._bell = SelfPipe()
        # Protects what follows; held briefly.
        self._mutex = threading.Condition(threading.Lock())
        self._leader: object = None
        self._inline: _Inline | None = None
        self._answers = 0
        self._stream_count = 0
        self._is_resting = False
        self._rested = threading.Event()
        self._is_stopping = self._is_stopped = False
        self._next_look = 0.0
        try:
            self.address = listening.listen(self._add_door, address)
        except BaseException:
            self._close_doors()
            self._poll.close()
            raise
        self._poll.register(self._bell.fileno(), select.EPOLLIN)
        self._start(self._lead, "leads")

    # The interface.

    def wait(self, timeout: float | None = None) -> bool:
        """See `Listener.wait`."""
        with self._mutex:
            return self._mutex.wait_for(lambda: self._is_stopped, timeout)

    def stop(self, grace: float) -> None:
        """See `Listener.stop`."""
        self._command(self._say_goodbye)
        with self._mutex:
            self._mutex.wait_for(lambda: self._is_stopped or not self._stream_count, grace)
        self._command(self._end)
        with self._mutex:
            self._mutex.wait_for(lambda: self._is_stopped, _LINGER_SECONDS)

    def abort(self) -> None:
        """See `Listener.abort`."""
        self._command(self._end)

    # Sockets that accept.

    def _add_door(self, address: str) -> int:
        """Listens on one address; RuntimeError if that is not possible."""
        try:
            if address.startswith("unix:"):
                self._add_unix_door(address.removeprefix("unix:"))
                return 0
            host, port = parse_host_port(address)
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, where in found:
                door = socket.socket(family, kind, protocol)
                self._open_door(door, (where[0], port, *where[2:]))
                # The further addresses of a name have the port that the first one got.
                port = door.getsockname()[1]
            return port
        except OSError as error:
            raise RuntimeError(str(error)) from error

    def _open_door(self, door: socket.socket, where: Any) -> None:
        self._doors[door.fileno()] = door
        if door.family == socket.AF_INET6:
            # As gRPC does it: [::] is both families.
            is_any = where[0] == "::"
            door.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_any)
        if door.family != socket.AF_UNIX:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(where)
        door.setblocking(False)
        door.listen(min(1024, socket.SOMAXCONN))
        self._poll.register(door, select.EPOLLIN)

    def _add_unix_door(self, path: str) -> None:
        path = path.removeprefix("//")
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(os.stat(path).st_mode) and not _is_listening(path):
                os.unlink(path)  # Left by a server that was killed.
        self._open_door(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)
        self._paths.append(path)

    def _close_doors(self) -> None:
        for door in self._doors.values():
            door.close()
        self._doors.clear()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._paths.clear()

    def _accept(self, door: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, where = door.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                # No descriptors are left, or the client is gone already.
                _log.warning("could not accept a connection: %s", error)
                self._drop_silent()
                return
            try:
                self._admit(accepted, where)
            except OSError:
                accepted.close()

    def _admit(self, accepted: socket.socket, where: Any) -> None:
        if len(self._connections) >= self._max_streams + _MORE_SOCKETS:
            self._drop_silent()
        accepted.setblocking(False)
        set_options(accepted)
        made: Any = accepted
        if self._tls is not None:
            made = self._tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)
        address = _peer_address(accepted.family, where)
        half = ServerHalf(
            f"the client {address}",
            self._max_message_bytes,
            min(self._max_streams + _MORE_STREAMS, _MAX_STREAMS_OF_CONNECTION),
            self._allocate,
        )
        connection = ServerConnection(made, address, half, self._poll)
        self._connections[connection.fileno()] = connection
        if self._next_look == 0.0:
            self._next_look = time.monotonic() + _LOOK_SECONDS
        if not connection.is_encrypting:
            with connection.lock:
                connection.flush()

    def _drop_silent(self) -> None:
        """Closes the oldest connection without a stream, to make room."""
        silent = (one for one in self._connections.values() if not one.half.calls)
        oldest = min(silent, key=lambda one: one.accepted_at, default=None)
        if oldest is not None:
            self._close(oldest)

    # The thread that leads.

    def _start(self, target: Callable[..., None], name: str, *arguments: Any) -> None:
        threading.Thread(
            target=target, args=arguments, name=f"dm_env_rpc {self.address} {name}", daemon=True
        ).start()

    def _lead(self) -> None:
        """Leads until another thread takes over or the listener is stopped."""
        me = object()
        with self._mutex:
            self._leader = me
        self._start(self._watch, "watches")
        while self._turn(me):
            pass

    def _turn(self, me: object) -> bool:
        """Waits for sockets and does what there is to do; False if another thread leads now."""
        if self._commands:
            self._commands.popleft()()
            return not self._is_stopped
        while self._ready:
            connection = self._ready.popleft()
            if not self._process(me, connection):
                return False
        wait = -1.0
        if self._next_look:
            wait = self._next_look - time.monotonic()
            if wait <= 0:
                self._look()
                return True
        for descriptor, mask in self._poll.poll(wait):
            connection_or_none = self._connections.get(descriptor)
            if connection_or_none is None:
                if descriptor in self._doors:
                    self._accept(self._doors[descriptor])
                else:
                    self._bell.drain()
                continue
            connection = connection_or_none
            try:
                self._serve(connection, mask)
            except Exception:
                _log.exception("serving %s failed", connection.address)
                self._close(connection)
            # Nothing is lost if another thread leads from here on: what this thread was told
            # about other sockets, that one is told again.
            if not self._process(me, connection):
                return False
        return True

    def _serve(self, connection: ServerConnection, mask: int) -> None:
        if connection.is_encrypting:
            is_done = connection.encrypt()
            if is_done is False:
                self._close(connection)
            elif is_done:
                with connection.lock:
                    connection.flush()
            return
        if mask & select.EPOLLOUT:
            with connection.lock:
                connection.flush()
            self._resume(connection)
        if mask & ~select.EPOLLOUT:
            while not connection.receive():
                pass
            self._resume(connection)

    def _process(self, me: object, connection: ServerConnection) -> bool:
        """Does what the client has asked for; False if another thread leads now."""
        events = connection.half.events
        sending = connection.half.framing.sending
        begun = 0.0
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
            if sending.outbound:
                now = time.perf_counter()
                begun = begun or now
                if now - begun > _BATCH_SECONDS:
                    begun = 0.0
                    with connection.lock:
                        connection.flush()
        if sending.outbound:
            with connection.lock:
                connection.flush()
        failure = connection.half.framing.failure
        if failure is not None and connection.is_open:
            _log.info("%s", failure)
            self._close(connection)
        return True

    def _open(self, connection: ServerConnection, call: ServerCall) -> None:
        try:
            served = self._served(connection, call)
        except StreamStatusError as error:
            with connection.lock:
                call.finish(error.code, str(error))
        except Exception:
            _log.exception("opening a stream of %s failed", connection.address)
            with connection.lock:
                call.finish("INTERNAL", "the server failed to open the stream")
        else:
            call.shell = served

    def _served(self, connection: ServerConnection, call: ServerCall) -> _Served | None:
        if call.is_over:
            return None
        health = open_health(call.path)
        if health is not None:
            served = _Served(connection, call, health.stream)
            served.is_unary = health.is_unary
            return served
        if call.path != PROCESS:
            raise StreamStatusError("UNIMPLEMENTED", f"no method {call.path}")
        if self._stream_count >= self._max_streams:
            raise StreamStatusError(
                "RESOURCE_EXHAUSTED",
                f"the server has reached its limit of {self._max_streams} streams",
            )
        stream = self._open_stream(Peer(connection.address, call.metadata))
        served = _Served(connection, call, stream)
        served.is_counted = True
        with self._mutex:
            self._stream_count += 1
        return served

    def _request(self, me: object, served: _Served, message: bytearray | memoryview) -> bool:
        """Has a request answered; False if another thread leads now."""
        if served.has_thread or served.waiting or served.seconds > _SLOW_SECONDS:
            self._enqueue(served, message)
            return True
        if served.stream.may_wait or served.call.has_unsent:
            self._enqueue(served, message)
            return True
        return self._answer_inline(me, served, message)

    def _answer_inline(self, me: object, served: _Served, message: bytearray | memoryview) -> bool:
        if self._is_resting:
            self._is_resting = False
            self._rested.set()
        self._inline = _Inline(served, True)
        begin = time.perf_counter()
        answer = _answer(served, message)
        with self._mutex:
            self._inline = None
            self._answers += 1
            leads = self._leader is me
        took = time.perf_counter() - begin
        served.seconds += (took - served.seconds) / 8
        if leads:
            self._reply(served, answer, False)
            return True
        # The stream is what this thread keeps.
        served.seconds = max(served.seconds, _TICK_SECONDS)
        self._reply(served, answer, True)
        self._serve_alone(served)
        return False

    def _reply(self, served: _Served, answer: bytes | StreamStatusError, at_once: bool) -> None:
        connection, call = served.connection, served.call
        with connection.lock:
            if isinstance(answer, StreamStatusError):
                call.finish(answer.code, str(answer))
            else:
                call.send(answer)
                if served.is_unary:
                    call.finish("OK")
            if at_once:
                connection.flush()

    def _end_requests(self, me: object, served: _Served) -> bool:
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
        served.stream.abandon()
        with served.condition:
            served.is_gone = True
            served.waiting.clear()
            if served.has_thread:
                served.condition.notify_all()
                return True
        return self._close_inline(me, served)

    def _close_inline(self, me: object, served: _Served) -> bool:
        """Closes a stream that no thread answers; False if another thread leads now."""
        self._inline = _Inline(served, False)
        self._close_stream(served)
        with self._mutex:
            self._inline = None
            return self._leader is me

    def _close_stream(self, served: _Served) -> None:
        with served.condition:
            if served.is_closed:
                return
            served.is_closed = True
        served.call.shell = None
        try:
            served.stream.close()
        except Exception:
            _log.exception("closing a stream of %s failed", served.connection.address)
        if served.is_counted:
            with self._mutex:
                self._stream_count -= 1
                self._mutex.notify_all()

    def _resume(self, connection: ServerConnection) -> None:
        """Goes on with streams whose answers could not be sent."""
        stalled = connection.stalled
        for served in list(stalled) if stalled else ():
            if not served.call.has_unsent:
                stalled.discard(served)
                self._give_thread(served)

    # Streams with threads of their own.

    def _enqueue(self, served: _Served, message: bytearray | memoryview) -> None:
        with served.condition:
            served.waiting.append(message)
            if len(served.waiting) >= _MAX_WAITING:
                with served.connection.lock:
                    served.call.hold(True)
            if served.has_thread:
                served.condition.notify()
                return
            if served.call.has_unsent:
                served.connection.stalled.add(served)
                return  # `_resume` goes on.
        self._give_thread(served)

    def _give_thread(self, served: _Served) -> None:
        with served.condition:
            if served.has_thread:
                return
            served.has_thread = True
        self._start(self._serve_alone, "serves a stream", served)

    def _serve_alone(self, served: _Served) -> None:
        """Answers the requests of one stream until it is over, quick, or idle."""
        while True:
            with served.condition:
                if not served.waiting and not (served.has_ended or served.is_gone):
                    if served.seconds < _QUICK_SECONDS and not served.stream.may_wait:
                        served.has_thread = False
                        return
                    if not served.condition.wait(_LINGER_SECONDS) and not served.waiting:
                        served.has_thread = False
                        return
                    continue
                if served.waiting and served.call.has_unsent and not served.is_gone:
                    served.has_thread = False
                    served.connection.stalled.add(served)
                    return  # `_resume` goes on when the client takes the answers.
                if not served.waiting:
                    break
                message = served.waiting.popleft()
                is_last = not served.waiting
            if is_last and served.call.assembler.is_held:
                with served.connection.lock:
                    served.call.hold(False)
                    served.connection.flush()
            begin = time.perf_counter()
            answer = _answer(served, message)
            took = time.perf_counter() - begin
            served.seconds += (took - served.seconds) / 8
            self._reply(served, answer, True)
        if served.has_ended and not served.is_gone:
            with served.connection.lock:
                served.call.finish("OK")
                served.connection.flush()
        self._close_stream(served)

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
            with self._mutex:
                if self._inline is not seen or self._leader is not leader:
                    continue
                self._leader = None
                self._inline = None
                served = inline.served
            if inline.is_answer:
                served.has_thread = True
            self._ready.append(served.connection)
            self._lead()
            return

    def _rest(self) -> None:
        """Waits until there is something to watch again."""
        self._rested.clear()
        self._is_resting = True
        if self._inline is None:
            self._rested.wait()
        self._is_resting = False

    # Now and then, and the end.

    def _look(self) -> None:
        """Ends connections that do not greet, and those whose clients are frozen or gone."""
        now = time.monotonic()
        self._next_look = now + _LOOK_SECONDS if self._connections else 0.0
        for connection in list(self._connections.values()):
            if not connection.half.last_stream:
                if now - connection.accepted_at > _GREET_SECONDS:
                    _log.info("%s did not open a stream in time", connection.address)
                    self._close(connection)
                continue
            silence = now - connection.heard_at
            if connection.is_probed and silence > 2 * _PROBE_SECONDS:
                _log.info("%s does not answer a probe", connection.address)
                self._close(connection)
            elif silence > _PROBE_SECONDS and not connection.is_probed:
                connection.is_probed = True
                with connection.lock:
                    connection.half.framing.probe()
                    connection.flush()

    def _close(self, connection: ServerConnection) -> None:
        """Closes a connection; its streams are closed as their events are processed."""
        with connection.lock:
            if not connection.is_open:
                return
            connection.flush()
            self._connections.pop(connection.fileno(), None)
            connection.close()
            half = connection.half
            for call in list(half.calls.values()):
                half.end_stream(call.number, 0)
        self._ready.append(connection)

    def _command(self, command: Callable[[], None]) -> None:
        """Has the thread that leads do something."""
        self._commands.append(command)
        self._bell.notify()

    def _say_goodbye(self) -> None:
        self._is_stopping = True
        self._close_doors()
        for connection in self._connections.values():
            with connection.lock:
                connection.half.leave()
                if not connection.is_encrypting:
                    connection.flush()

    def _end(self) -> None:
        self._close_doors()
        for connection in list(self._connections.values()):
            with connection.lock:
                for call in list(connection.half.calls.values()):
                    call.finish("UNAVAILABLE", "the server was stopped")
                if not connection.is_encrypting:
                    connection.flush()
            self._close(connection)
        while self._ready:
            connection = self._ready.popleft()
            for call, what in connection.half.events:
                if what is Event.GONE and call.shell is not None:
                    self._abandon(self._leader, call.shell)
        self._poll.close()
        self._bell.close()
        with self._mutex:
            self._is_stopped = True
            self._mutex.notify_all()
        self._rested.set()


def _answer(served: _Served, message: bytearray | memoryview) -> bytes | StreamStatusError:
    try:
        return served.stream.answer(bytes(message))
    except StreamStatusError as error:
        return error
    except Exception as error:
        _log.exception("a stream of %s failed", served.connection.address)
        return StreamStatusError("INTERNAL", f"the server failed: {type(error).__name__}")


def _peer_address(family: int, where: Any) -> str:
    """Returns the address of a client as gRPC writes it."""
    if family == socket.AF_INET:
        return f"ipv4:{where[0]}:{where[1]}"
    if family == socket.AF_INET6:
        return f"ipv6:{urllib.parse.quote(f'[{where[0]}]', safe=':')}:{where[1]}"
    return "unix:"


def _is_listening(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
