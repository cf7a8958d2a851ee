"""One accepted socket of a listener, and its streams. Called by its threads.

Only the leading thread receives. Any thread may send, with `lock` held, which also protects the
half.
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
from dm_env_rpc_client.transports.server_streams import ServerStream, StreamStatusError
from dm_env_rpc_client.transports.streams import Buffer

_log = logging.getLogger(__name__)

_BUFFERS_AT_ONCE = 512

_MAX_UNSENT = 1 << 22
"""Bytes of answers that a client may leave unread before nothing more is read from it, and none
of its requests is answered."""

_PIECE_BYTES = 128
"""The size of a piece of an answer besides its contents, in bytes."""

_HICCUP_SECONDS = 0.004
"""An answer that took longer counts as this: one alone, on a busy machine or with a reset, does not
make a quick stream slow, but three do."""

_ONCE = select.EPOLLIN | select.EPOLLONESHOT
_BOTH = select.EPOLLIN | select.EPOLLOUT


class ServerConnection:
    """A connection of a client.

    Args:
      accepted: the socket, not blocking; an ssl.SSLSocket for TLS, whose handshake may be over.
      address: the client's, in the syntax of gRPC.
      half: the state of the connection.
      poll: reports the readiness of the socket to the leading thread.

    Attributes:
      address: as the argument.
      half: as the argument.
      lock: held while the half is changed and while something is sent.
      is_open: whether the socket is open.
      is_encrypting: whether the TLS handshake is not over.
      is_known: whether it has had a stream that the server accepted.
      has_ended: whether the client has closed its end, or the connection is broken.
      accepted_at: when it was accepted, in seconds of the monotonic clock.
      unsent: approximate number of bytes that the socket did not accept.
      taken_at: the last time the socket accepted bytes while some were unsent.
      has_more: whether there may be input that the poll does not report.
      is_queued: whether the leading thread will serve it without a report of the poll.
      stalled: streams whose requests wait until the client receives earlier answers. Protected by
        `lock`.
      served: the open streams.
      alone: the only stream, if it has been answered, on a plain socket; None otherwise.
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
        self._poll = poll
        self._sending = half.framing.sending
        self._mask = _ONCE if self.is_encrypting else select.EPOLLIN
        self._counted = 0
        poll.register(accepted, self._mask)

    def fileno(self) -> int:
        """Return the file descriptor of the socket."""
        number: int = self._socket.fileno()
        return number

    @property
    def is_clogged(self) -> bool:
        """Whether the client leaves so much unread that it gets no further answers."""
        return self.unsent > _MAX_UNSENT

    def encrypt(self) -> bool | None:
        """Continue the TLS handshake; called with the lock held, by any thread.

        The poll tells once that the socket is ready for that, and again after this.

        Returns:
          None if it is not over, False if it failed.
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
        """Receive from a readable socket; usually one request.

        Args:
          served: the stream `alone`.

        Returns:
          The request of this stream, if nothing else was received. Otherwise None: the input, if
          any, is among the events of the half.
        """
        half, sending = self.half, self._sending
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
            count = self._socket.recv_into(framing.memory[0])
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
        """Receive once and parse it; False if there may be more at once."""
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
        """Send as much as the socket accepts; called with the lock held.

        Args:
          is_writable: whether the poll has reported that a full socket accepts bytes again.
        """
        sending = self._sending
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
                    first = outbound[0]
                    count = self._socket.send(first)
                    if count == len(first):
                        outbound.popleft()  # `sent`, without the call.
                    else:
                        sending.sent(count)
                    has_advanced = True
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

    def send_alone(self, call: ServerCall, answer: bytes) -> bool:
        """Send an answer if nothing else waits to be sent; called with the lock.

        Returns:
          Whether it was sent, or as much as the socket took; otherwise it is for `ServerCall.send`.
        """
        outbound = self._sending.outbound
        if outbound or not self.is_open:
            return False
        head = call.head(len(answer))
        if head is None:
            return False
        try:
            if len(answer) > COPIED_BYTES:
                count = self._socket.sendmsg((head, answer))
            else:
                count = self._socket.send(head + answer)
        except WOULD_BLOCK:
            count = 0
        except OSError:
            return True  # The end is received, too.
        # The rest waits in the queue, like any answer the socket does not accept.
        if count != len(head) + len(answer):
            outbound.append(head)
            outbound.append(answer)
            self._sending.sent(count)
            self.flush()
        return True

    def is_alone(self, served: ServedStream) -> None:
        """Let a stream be answered alone from now on, if the socket is plain."""
        if not self._is_tls:
            self.alone = served

    def added(self, size: int) -> None:
        """Count an answer that was queued behind unsent ones; called with the lock."""
        self.unsent += size
        if self.is_clogged:
            self._watch(select.EPOLLOUT)

    def _count(self) -> None:
        outbound = self._sending.outbound
        self._counted = len(outbound)
        self.unsent = sum(map(len, outbound)) + _PIECE_BYTES * len(outbound)
        self._watch(select.EPOLLOUT if self.is_clogged else _BOTH)

    def reset(self) -> None:
        """Close the socket at once; called with the lock.

        The kernel's unsent bytes are lost, too; it would keep them while the client lives.
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
        """Close the socket; called with the lock held. Unsent bytes are lost."""
        if self.is_open:
            self._unregister()
            with contextlib.suppress(OSError):
                # A process forked from this one may have a copy, which would keep it open.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            self._socket.close()

    def part(self) -> tuple[Any, list[Any]]:
        """End the connection, but leave the socket open; called with the lock.

        Returns:
          The socket, and the frames still to be sent.
        """
        self.is_open = False
        last_words = list(self._sending.outbound)
        self._sending.outbound.clear()
        return self._socket, last_words

    def _unregister(self) -> None:
        self.is_open = False
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(self._socket)

    def abandon(self) -> None:
        """Close a forked child's copy of the socket; the connection is the parent's."""
        self.is_open = False
        self._socket.close()

    def _watch(self, mask: int) -> None:
        if mask != self._mask and self.is_open:
            self._mask = mask
            self._poll.modify(self._socket, mask)


class ServedStream:
    """A stream and the call it answers. `condition` protects the state shared by two threads.

    Attributes:
      blocked: the streams of its connection that wait for a window.
      waiting: requests that its thread is to answer.
      has_thread: whether another thread than the one that leads answers, or is to.
      has_ended: whether the client sends no more.
      is_gone: whether the client is gone.
      stays: whether it goes on when the client sends no more.
      seconds: how long its answers take on average.
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
    def is_stalled(self) -> bool:
        """Whether the stream gets no answers because the client does not read earlier ones."""
        connection = self.connection
        if connection.unsent and connection.is_clogged:
            return True
        # Most often nothing waits for a window, which takes no call to see.
        return bool(self.blocked) and self.call.has_unsent

    def answer(self, message: Buffer) -> bytes | StreamStatusError:
        """Return the answer to a request, or the error that ends the stream, and count the time.

        Raises:
          ElsewhereError: as `ServerStream.answer`.
        """
        begin = time.perf_counter()
        answer: bytes | StreamStatusError
        try:
            answer = self.stream.answer(bytes(message))
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

    def reply(self, answer: bytes | StreamStatusError, at_once: bool) -> bool:
        """Queue an answer.

        Args:
          answer: the result of `answer`.
          at_once: whether to send it, too.

        Returns:
          Whether the stream goes on.
        """
        connection, call = self.connection, self.call
        with connection.lock:
            if isinstance(answer, StreamStatusError):
                call.finish(answer.code, str(answer))
            elif at_once and connection.alone is self and connection.send_alone(call, answer):
                return True
            else:
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
