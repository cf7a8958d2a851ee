"""The stream over HTTP/2 on a plain socket, for threads.

The thread that waits for an answer reads the socket itself, so that a step takes four system
calls (check for unexpected data, send, wait, receive) and wakes no other thread: a float32
scalar takes 1.3 to 1.4x the time of a bare C++ gRPC client (`python -m tests.benchmarks --only
waiting`). Spinning before the wait was tried and is slower. A thread that writes never waits: the
reading thread sends what the socket or the server's window did not accept.
"""

from __future__ import annotations

import itertools
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client.errors import ConnectionClosedError, ConnectionLostError, DmEnvRpcClientError
from dm_env_rpc_client.transports.endpoint import RETRY_SECONDS, Endpoint
from dm_env_rpc_client.transports.http2.attempts import Attempts, HandshakeError
from dm_env_rpc_client.transports.http2.client_half import ClientHalf
from dm_env_rpc_client.transports.http2.keepalive import LOOK_SECONDS, Keepalive, Verdict
from dm_env_rpc_client.transports.http2.request import Header, request_headers
from dm_env_rpc_client.transports.http2.sockets import connect_socket, tls_context
from dm_env_rpc_client.transports.http2.target import Target
from dm_env_rpc_client.transports.status import silent
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES, Allocate, Buffer, plain_memory

__all__ = ["Http2Stream"]

_DISPOSE_SECONDS = 1.0
"""How long the end waits for a thread that is sending. On a busy machine 0.1 s were not enough once
in 50,000 times, and the socket was left to the garbage collection."""

_BUFFERS_AT_ONCE = 64
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Http2Stream:
    """A `Stream` on a connection of its own.

    Args:
      endpoint: the server; its address is `host:port`, `unix:path` or `unix-abstract:name`, its
        credentials are an ssl.SSLContext, or None (or gRPC's local credentials) for plaintext.
      timeout: seconds until the server must have accepted the connection; None for no limit.
      allocate: gives the memory for large messages.

    Raises:
      SpecError: an address or credentials that this transport does not support.
      ConnectionLostError: there was no connection within `timeout`; says why.
      DeadlineExceededError: nothing at all came back within `timeout`.
      ProtocolError: something else than an HTTP/2 server listens there.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        timeout: float | None = 10.0,
        allocate: Allocate = plain_memory,
    ):
        address = self.address = endpoint.address
        self._allocate = allocate
        target = Target.parse(address)
        tls = tls_context(endpoint.credentials, address)
        headers = request_headers(target, tls is not None, endpoint.metadata)
        # Held while the state of the connection is changed, and while a TLS socket is used,
        # which only one thread at a time may do.
        self._lock = threading.Lock()
        # Held by the thread that receives.
        self._receiving = threading.Lock()
        self._is_tls = tls is not None
        self._is_closed = self._is_aborted = False
        attempts = Attempts(address, timeout)
        while True:
            try:
                self._open(
                    connect_socket(target, tls, attempts.deadline, endpoint.stays_on_loopback),
                    headers,
                )
                self._wait_until_accepted(attempts.deadline)
                return
            except ConnectionLostError as error:
                attempts.failed(HandshakeError(error) if tls is not None else error)
            except OSError as error:
                attempts.failed(error)
            time.sleep(RETRY_SECONDS)

    def fileno(self) -> int:
        """See `Stream.fileno`."""
        descriptor: int = -1 if self._is_closed else self._socket.fileno()
        return descriptor

    def write(self, *messages: bytes) -> None:
        """See `Stream.write`."""
        with self._lock:
            for message in messages:
                self._call.send(message)
            self._flush()

    def has_unsent(self) -> bool:
        """See `Stream.has_unsent`."""
        return self._sending.has_unsent

    def send_rest(self, timeout: float) -> None:
        """See `Stream.send_rest`."""
        if not self._sending.outbound:
            time.sleep(timeout)  # The window is closed; the reading thread notices when it opens.
        elif _poll(self._socket, select.POLLOUT)(timeout):
            with self._lock:
                self._flush()

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        """See `Stream.read`."""
        call = self._call
        messages = call.messages
        deadline = None if timeout is None else time.monotonic() + timeout
        while not messages:
            if call.failure is not None:
                raise call.failure
            if until_sent and not self._sending.has_unsent:
                return None
            if not self._advance(deadline):
                return None
        return messages.popleft()

    def has_unread(self) -> bool:
        """See `Stream.has_unread`."""
        if self._call.messages or self._call.failure is not None or self._is_closed:
            return True
        with self._lock:  # One at a time; any thread may ask.
            waiting = self._is_tls and self._socket.pending()
            return bool(waiting) or self._look(0)

    def close(self, timeout: float) -> None:
        """See `Stream.close`."""
        deadline = time.monotonic() + timeout
        try:
            with self._lock:
                self._call.end()
                self._flush()
            while True:  # Answers that still arrive are dropped.
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self.read(remaining)
        except (DmEnvRpcClientError, OSError, ValueError):
            pass
        self.abort()

    def abandon(self) -> None:
        """See `Stream.abandon`."""
        self._lock = threading.Lock()
        self._receiving = threading.Lock()
        self._is_closed = self._is_aborted = True
        self._socket.close()  # Not shut down: that would end the connection of the parent.

    def abort(self) -> None:
        """See `Stream.abort`."""
        if self._is_aborted:
            return
        # Only if no other thread is in the middle of sending.
        if not self._is_closed and self._lock.acquire(blocking=False):
            try:
                self._half.shut_down()
                self._flush()
            finally:
                self._lock.release()
        self._is_closed = True
        try:
            # Wakes a thread that waits for the socket, which closing it would not.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass  # The other end was faster.
        # A thread that is still receiving closes the socket on its way out: the number of a
        # closed one may be that of another file at once.
        self._dispose_unless_receiving()
        self._is_aborted = True  # Not before: an interrupt may have come, and this is called again.

    def _dispose_unless_receiving(self) -> None:
        """Closes the socket, unless a thread receives: that one calls this when it is done."""
        if self._receiving.acquire(blocking=False):
            try:
                self._dispose()
            finally:
                self._receiving.release()

    def _dispose(self) -> None:
        """Closes the socket; called with the right to receive."""
        if self._lock.acquire(timeout=_DISPOSE_SECONDS):
            try:
                self._socket.close()
            finally:
                self._lock.release()

    def _open(self, connected: Any, headers: list[Header]) -> None:
        self._socket = connected
        self._half = ClientHalf(self.address, MAX_MESSAGE_BYTES, self._allocate)
        self._framing = self._half.framing
        self._sending = self._framing.sending
        self._call = self._half.open(headers)
        self._keepalive = Keepalive(self._framing)
        # Three, because two threads cannot use one at the same time.
        self._readable = _poll(connected, select.POLLIN)
        self._either = _poll(connected, select.POLLIN | select.POLLOUT)
        self._look = _poll(connected, select.POLLIN)

    def _wait_until_accepted(self, deadline: float | None) -> None:
        """Returns when the server has shown itself; otherwise closes the socket."""
        framing = self._framing
        try:
            with self._lock:
                self._flush()
            while not framing.is_ready:
                if self._call.failure is not None:
                    raise self._call.failure
                if not self._advance(deadline):
                    raise TimeoutError
        except BaseException:
            self._socket.close()
            raise

    def _flush(self) -> None:
        """Sends what the socket takes; called with the lock."""
        sending = self._sending
        outbound = sending.outbound
        try:
            while outbound:
                if self._is_tls or len(outbound) == 1:
                    # What did not fit is tried again with the same bytes, as TLS demands.
                    sending.sent(self._socket.send(outbound[0]))
                else:
                    buffers = itertools.islice(outbound, _BUFFERS_AT_ONCE)
                    sending.sent(self._socket.sendmsg(buffers))
        except _WOULD_BLOCK:
            pass
        except OSError:
            # What the server said before it went is still to be read, and the reason with it.
            outbound.clear()

    def _advance(self, deadline: float | None) -> bool:
        """Waits until the socket is ready, and then sends and receives what there is.

        Returns:
          False if the deadline has passed and no message was received.
        """
        try:
            with self._receiving:
                if self._is_closed:
                    raise ConnectionClosedError(f"the connection to {self.address} was closed")
                return self._advance_alone(deadline)
        finally:
            # After the lock was released: `abort` may have failed to get it just before.
            if self._is_closed:
                self._dispose_unless_receiving()

    def _advance_alone(self, deadline: float | None) -> bool:
        framing = self._framing
        if not (self._is_tls and self._pending()):
            wait = LOOK_SECONDS
            if deadline is not None:
                wait = min(wait, deadline - time.monotonic())
            unsent = bool(self._sending.outbound)
            if not (self._either if unsent else self._readable)(wait):
                self._judge()
                return deadline is None or time.monotonic() < deadline
            if unsent:
                with self._lock:
                    self._flush()
        buffers = framing.buffers()
        try:
            if self._is_tls:
                with self._lock:
                    count = self._socket.recv_into(buffers[0])
            elif len(buffers) == 1:
                count = self._socket.recv_into(buffers[0])
            else:
                count = self._socket.recvmsg_into(buffers)[0]
        except _WOULD_BLOCK:
            return deadline is None or time.monotonic() < deadline
        except (OSError, ValueError):
            count = 0
        with self._lock:
            framing.received(count)
            if self._sending.outbound:
                self._flush()
        # A peer may go on sending for ever without a message being among it.
        return bool(self._call.messages) or deadline is None or time.monotonic() < deadline

    def _judge(self) -> None:
        verdict = self._keepalive.judge()
        if verdict is Verdict.PROBE:
            with self._lock:
                self._framing.probe()
                self._flush()
        elif verdict is Verdict.GIVE_UP:
            raise silent(self.address)

    def _pending(self) -> int:
        with self._lock:
            pending: int = self._socket.pending()
        return pending


def _poll(polled: Any, events: int) -> Callable[[float], bool]:
    """Returns what waits up to so many seconds for the socket, and says whether it is ready."""
    poll = select.poll()
    poll.register(polled, events)

    def is_ready(seconds: float) -> bool:
        return bool(poll.poll(seconds * 1000 if seconds > 0 else 0))

    return is_ready
