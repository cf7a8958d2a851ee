"""A connection accepted by a listener, and its streams.

Only the leading thread receives data. Any thread can send while it holds `lock`, which also
protects the connection's state.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import logging
import select
import socket
import ssl
import struct
import threading
import time
from typing import Any

from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.system.owner_threads import ElsewhereError
from dm_env_rpc_client.transports.http2.protocol.send_queue import COPIED_BYTES
from dm_env_rpc_client.transports.http2.protocol.server_half import ServerCall, ServerHalf
from dm_env_rpc_client.transports.net.sockets import WOULD_BLOCK
from dm_env_rpc_client.transports.server_streams import Parts, ServerStream, StreamStatusError
from dm_env_rpc_client.transports.streams import Buffer

_log = logging.getLogger(__name__)

_BUFFERS_AT_ONCE = 512

_MAX_UNSENT = 1 << 22
"""How many bytes of answers a client can leave unread. Beyond this limit, the server neither reads
from the client nor answers its requests."""

_PIECE_BYTES = 128
"""The overhead of each piece of an answer, in bytes."""

_HICCUP_SECONDS = 0.004
"""The maximum time, in seconds, that one answer contributes to the average. A single slow answer,
caused by a busy machine or a reset, does not make a quick stream count as slow, but three do."""

_ONCE = select.EPOLLIN | select.EPOLLONESHOT
_BOTH = select.EPOLLIN | select.EPOLLOUT


class ServerConnection:
    """A client's connection to the server.

    Args:
      accepted: the non-blocking socket. For TLS, it is an ssl.SSLSocket, before or after the
        handshake.
      address: the client's address, in gRPC's syntax.
      half: the server's half of the protocol state.
      poll: the poll object that reports to the leading thread whether the socket is ready.

    Attributes:
      address: the client's address, in gRPC's syntax.
      half: the server's half of the protocol state.
      lock: the lock that is held while `half` is changed and while bytes are sent.
      is_open: whether the socket is open.
      is_encrypting: whether the TLS handshake is still in progress.
      is_known: whether the connection has had a stream that the server accepted.
      has_ended: whether the client has closed its end, or the connection is broken.
      accepted_at: the time on the monotonic clock at which the connection was accepted.
      unsent: the approximate number of bytes that the socket has not accepted yet.
      taken_at: the last time at which the socket accepted bytes while others were unsent.
      has_more: whether input might be available that the poll does not report.
      is_queued: whether the leading thread will serve the connection without a report of the poll.
      sending: the send queue.
      stalled: the streams whose requests wait until the client receives earlier answers. `lock`
        protects them.
      served: the open streams.
      alone: the only stream of a plain socket, if it has been answered, or None.
    """

    def __init__(self, accepted: Any, address: str, half: ServerHalf, poll: select.epoll):
        self.address = address
        self.half = half
        self.lock = make_lock()
        self.is_open = True
        self._is_tls = isinstance(accepted, ssl.SSLSocket)
        self.is_encrypting = self._is_tls and accepted.version() is None
        self.is_known = self.has_ended = False
        self.accepted_at = self.taken_at = time.monotonic()
        self.unsent = 0
        # Beyond the handshake, some may be decrypted that makes no socket readable.
        self.has_more = self._is_tls and not self.is_encrypting
        self.is_queued = False
        self.stalled: set[ServedStream] = set()
        self.served: set[ServedStream] = set()
        self.alone: ServedStream | None = None
        self._socket = accepted
        self._recv_into, self._memory = accepted.recv_into, half.framing.memory[0]
        self._poll = poll
        self.sending = half.framing.sending
        self._mask = _ONCE if self.is_encrypting else select.EPOLLIN
        self._counted = 0
        poll.register(accepted, self._mask)

    def fileno(self) -> int:
        """Return the file descriptor of the socket."""
        number: int = self._socket.fileno()
        return number

    @property
    def is_clogged(self) -> bool:
        """Whether the client has left so many bytes unread that it gets no further answers."""
        return self.unsent > _MAX_UNSENT

    def encrypt(self) -> bool | None:
        """Continue the TLS handshake. Any thread that holds `lock` can call this.

        The poll reports only once that the socket is ready for the handshake. This call makes it
        report again.

        Returns:
          None if the handshake is still in progress, False if it failed, or True if it succeeded.
        """
        try:
            self._socket.do_handshake()
        except ssl.SSLWantWriteError:
            self._poll.modify(self._socket, select.EPOLLOUT | select.EPOLLONESHOT)
            return None
        except ssl.SSLWantReadError:
            self._poll.modify(self._socket, _ONCE)
            return None
        except (OSError, ValueError):
            return False
        # gRPC is HTTP/2 by agreement only.
        if self._socket.selected_alpn_protocol() != "h2":
            return False
        self.is_encrypting = False
        self._watch(select.EPOLLIN)
        return True

    def advance(self, is_readable: bool) -> None:
        """Parse the received bytes and receive more, without waiting.

        Args:
          is_readable: whether the poll reported input.
        """
        framing = self.half.framing
        # Received earlier, and left for its next turn.
        if framing.is_behind:
            with self.lock:
                framing.go_on()
        while (is_readable or self.has_more) and not framing.is_behind:
            is_readable = self.has_more = not self._receive()

    def receive_request(self, served: ServedStream) -> bytes | None:
        """Receive data, usually exactly one request, from a readable socket.

        Args:
          served: the stream `alone`.

        Returns:
          The request, if nothing else was received on the connection, or None. If the result is
          None, any input is among the events of `half`.
        """
        half, sending = self.half, self.sending
        framing = half.framing
        if (
            not framing.is_between_frames
            or half.events
            or sending.outbound
            or sending.blocked
            or self.stalled
        ):
            # Events come first: `advance` would add to them out of order.
            if not half.events:
                self.advance(True)
            return None
        try:
            count = self._recv_into(self._memory)
        except WOULD_BLOCK:
            return None
        except (OSError, ValueError):
            count = 0
        call = served.call
        with self.lock:
            message = framing.whole(count, call.number, call.assembler)
            if message is None:
                self.has_ended = not count
                framing.received(count)
                return None
            # Copied: the buffer receives the next request.
            return bytes(message)

    def _receive(self) -> bool:
        """Receive and parse once, and return False if TLS has buffered more input."""
        framing = self.half.framing
        buffers = framing.buffers()
        try:
            if self._is_tls:
                with self.lock:
                    count = self._socket.recv_into(buffers[0])
            elif len(buffers) == 1:
                count = self._socket.recv_into(buffers[0])
            else:
                count = self._socket.recvmsg_into(buffers)[0]
        except WOULD_BLOCK:
            return True
        except (OSError, ValueError):
            count = 0
        self.has_ended = not count
        with self.lock:
            framing.received(count)
        # What TLS has decrypted already makes no socket readable.
        return not (self._is_tls and framing.failure is None and self._socket.pending())

    def flush(self, is_writable: bool = False) -> None:
        """Send as many bytes as the socket accepts. The caller must hold `lock`.

        Args:
          is_writable: whether the poll has reported that a full socket accepts bytes again.
        """
        sending = self.sending
        outbound = sending.outbound
        if not self.is_open:
            outbound.clear()
            return
        if self.is_encrypting:
            return
        if self._mask & select.EPOLLOUT and not is_writable:
            # Counted again when there is twice as much; the largest pieces are `added`.
            if len(outbound) > 2 * self._counted + 64:
                self._count()
            return
        has_advanced = not self.unsent
        try:
            while True:
                if not outbound:
                    break
                if self._is_tls or len(outbound) == 1:
                    # What did not fit is tried again with the same bytes, as TLS demands.
                    sending.sent(self._socket.send(outbound[0]))
                else:
                    buffers = itertools.islice(outbound, _BUFFERS_AT_ONCE)
                    sending.sent(self._socket.sendmsg(buffers))
                has_advanced = True
        except WOULD_BLOCK:
            if has_advanced:
                # The client takes something; `clients.py` ends connections that take nothing for
                # long.
                self.taken_at = time.monotonic()
            self._count()
        except OSError:
            outbound.clear()  # The end is received, too.
            self.unsent = 0
        else:
            self.unsent = 0
            if self._mask != select.EPOLLIN:
                self._watch(select.EPOLLIN)

    def send_alone(self, call: ServerCall, answer: bytes | Parts) -> bool:
        """Send an answer if no other bytes are waiting. The caller must hold `lock`.

        What the socket accepts of an answer in parts is not copied.

        Returns:
          Whether the answer was sent or queued. If it was not, `ServerCall.send` must send it.
        """
        if self.sending.outbound or not self.is_open:
            return False
        size = answer.size if isinstance(answer, Parts) else len(answer)
        head = call.head(size)
        if head is None:
            return False
        try:
            if isinstance(answer, Parts):
                count = self._socket.sendmsg((head, *answer.buffers))
            elif size > COPIED_BYTES:
                count = self._socket.sendmsg((head, answer))
            else:
                count = self._socket.send(head + answer)
        except WOULD_BLOCK:
            count = 0
        except OSError:
            return True  # The end is received, too.
        if count != len(head) + size:
            # The rest is queued like any other answer.
            rest = answer.joined() if isinstance(answer, Parts) else answer
            self.sending.outbound.extend((head, rest))
            self.sending.sent(count)
            self.flush()
        return True

    def is_alone(self, served: ServedStream) -> None:
        """Record a stream as the connection's only one (`alone`), unless the socket uses TLS."""
        if not self._is_tls:
            self.alone = served

    def added(self, size: int) -> None:
        """Count an answer that was queued behind unsent answers. The caller must hold `lock`."""
        self.unsent += size
        if self.is_clogged:
            self._watch(select.EPOLLOUT)

    def _count(self) -> None:
        outbound = self.sending.outbound
        self._counted = len(outbound)
        self.unsent = sum(map(len, outbound)) + _PIECE_BYTES * len(outbound)
        self._watch(select.EPOLLOUT if self.is_clogged else _BOTH)

    def reset(self) -> None:
        """Close the socket immediately, and discard unsent bytes. The caller must hold `lock`.

        Resetting the connection also discards the kernel's unsent bytes, which the kernel would
        otherwise keep while the client lives.
        """
        if self.is_open:
            with contextlib.suppress(OSError):
                # A reset discards unsent bytes, so the kernel does not keep the socket for a dead
                # client.
                linger = struct.pack("ii", 1, 0)
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._unregister()
            self._socket.close()

    def close(self) -> None:
        """Close the socket, and discard unsent bytes. The caller must hold `lock`."""
        if self.is_open:
            self._unregister()
            with contextlib.suppress(OSError):
                # A process forked from this one may have a copy, which would keep it open.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            self._socket.close()

    def part(self) -> tuple[Any, list[Any]]:
        """End the connection, but leave the socket open. The caller must hold `lock`.

        Returns:
          The socket, and the frames that are still to be sent.
        """
        self.is_open = False
        last_words = list(self.sending.outbound)
        self.sending.outbound.clear()
        return self._socket, last_words

    def _unregister(self) -> None:
        self.is_open = False
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(self._socket)

    def abandon(self) -> None:
        """Close a forked child's copy of the socket, without affecting the parent's connection."""
        self.is_open = False
        self._socket.close()

    def _watch(self, mask: int) -> None:
        if mask != self._mask and self.is_open:
            self._mask = mask
            self._poll.modify(self._socket, mask)


class ServedStream:
    """A served stream and its gRPC call. `condition` protects the state shared by two threads.

    Attributes:
      blocked: the streams of the same connection that wait for a window.
      waiting: the requests that wait to be answered by the stream's thread.
      has_thread: whether a thread other than the leading thread answers the stream, or is about to.
      has_ended: whether the client has ended its half of the stream.
      is_gone: whether the client has disconnected or has reset the stream.
      stays: whether the stream continues after the client has ended its half.
      seconds: the average time that the stream takes for an answer, in seconds.
      waiting_bytes: the size of `waiting`, in bytes.
    """

    __slots__ = (
        "blocked",
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

    def __init__(
        self,
        connection: ServerConnection,
        call: ServerCall,
        stream: ServerStream,
    ):
        self.connection = connection
        self.call = call
        self.blocked = connection.half.framing.sending.blocked
        self.stream = stream
        # Held for moments: the waiting requests, and whether the stream has a thread.
        self.condition = threading.Condition(make_lock())
        self.waiting: collections.deque[Buffer] = collections.deque()
        self.has_thread = self.has_ended = self.is_gone = self.is_closed = False
        self.is_unary = self.is_counted = self.stays = False
        self.seconds = 0.0
        self.waiting_bytes = 0

    @property
    def idle_since(self) -> float | None:
        """As `ServerStream.idle_since`; requests that wait for another thread count, too."""
        return None if self.has_thread or self.waiting else self.stream.idle_since

    @property
    def is_stalled(self) -> bool:
        """Whether answers are held back because the client does not read earlier ones."""
        connection = self.connection
        if connection.unsent and connection.is_clogged:
            return True
        # Most often nothing waits for a window, which takes no call to see.
        return bool(self.blocked) and self.call.has_unsent

    def answer(self, message: Buffer) -> bytes | Parts | StreamStatusError:
        """Return a request's answer or the error that ends the stream, and record the time taken.

        Raises:
          ElsewhereError: another thread must answer the request (see `ServerStream.answer`).
        """
        begin = time.perf_counter()
        answer: bytes | Parts | StreamStatusError
        try:
            answer = self.stream.answer_in_parts(bytes(message))
        except StreamStatusError as error:
            answer = error
        except ElsewhereError:
            raise
        except BaseException as error:
            # Also SystemExit: an environment must not end the thread that serves the others.
            _log.exception("a stream of %s failed", self.connection.address)
            answer = StreamStatusError("INTERNAL", f"the server failed: {type(error).__name__}")
        took = time.perf_counter() - begin
        if took > _HICCUP_SECONDS:
            took = _HICCUP_SECONDS
        self.seconds += (took - self.seconds) / 8
        return answer

    def reply(self, answer: bytes | Parts | StreamStatusError, at_once: bool) -> bool:
        """Queue an answer to be sent to the client.

        Args:
          answer: the result of the method `answer`.
          at_once: whether to send the answer immediately.

        Returns:
          Whether the stream continues.
        """
        connection, call = self.connection, self.call
        with connection.lock:
            if isinstance(answer, StreamStatusError):
                call.finish(answer.code, str(answer))
            else:
                is_alone = at_once and connection.alone is self
                if is_alone and connection.send_alone(call, answer):
                    return True
                if isinstance(answer, Parts):
                    answer = answer.joined()
                call.send(answer)
                if self.is_counted and len(connection.served) == 1:
                    connection.is_alone(self)
                if connection.unsent:
                    connection.added(len(answer))
                if self.is_unary:
                    call.finish("OK")
            if at_once:
                connection.flush()
        return not (self.is_unary or isinstance(answer, StreamStatusError))
