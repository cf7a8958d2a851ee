"""A stream over HTTP/2, which carries one call on its own connection or on a shared one.

The stream serves threads, which read and wait, and event loops, which watch the socket.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.http2.client.connection import ClientConnection
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientStream
from dm_env_rpc_client.transports.net.keepalive import KeepaliveSeconds, opening_seconds
from dm_env_rpc_client.transports.net.sockets import BLOCKING, IN_LOOP, Waits, run
from dm_env_rpc_client.transports.streams import AsyncStream, Buffer, Exchange, Stream

_log = logging.getLogger(__name__)

_TIMES = 3
"""The maximum number of times that a stream can be reopened on another connection."""

Reopen: TypeAlias = Callable[[Waits], Coroutine[Any, Any, ClientConnection]]
"""A function that opens another connection."""


class Http2Stream(Stream, AsyncStream):
    """A stream over HTTP/2 that is both a `Stream` and an `AsyncStream`.

    A server can end a connection and report streams that it has not processed (GOAWAY, RFC 9113,
    section 6.8), as proxies do after a number of streams. Each unprocessed stream is opened again
    on a separate connection.

    Args:
      connection: the connection, which is closed with the last of its streams.
      call: an open call on the connection, or None for the connection's first call.
      reopen: a function that opens another connection, or None if reopening is not possible.
      sent: the message that was sent on the call with the greeting, or None.
    """

    exchange: Exchange | None = None

    def __init__(
        self,
        connection: ClientConnection,
        call: ClientStream | None = None,
        reopen: Reopen | None = None,
        sent: bytes | None = None,
    ):
        self.address = connection.address
        self._reopen = reopen
        self._times_left = _TIMES
        # Messages that may have to be sent again: all, until the first answer.
        self._unanswered: list[bytes] = [] if sent is None else [sent]
        self._reopening = make_lock()
        self._is_closed = self._is_aborted = False
        self._keepalive: KeepaliveSeconds = opening_seconds
        self._use(connection, call)

    def _use(self, connection: ClientConnection, call: ClientStream | None) -> None:
        if call is None:
            call = connection.open_call()
            assert call is not None, "the first call is opened with the connection"
        self._connection = connection
        self._call = call
        call.keepalive = self._keepalive
        self._advance = connection.advance
        self.has_unread: Callable[[], bool] = functools.partial(connection.has_unread, call)

    def write(self, *messages: bytes) -> bool:
        with self._reopening:
            connection, call = self._connection, self._call
            if call.has_headers or self._reopen is None:
                self._unanswered.clear()
                # Shadows the method from here on, which saves a Python frame per message.
                vars(self)["write"] = functools.partial(connection.send, call)
                if not connection.is_tls:
                    self.exchange = functools.partial(connection.exchange, call)
            else:
                self._unanswered += messages
            return connection.send(call, *messages)

    def keep_alive(self, seconds: KeepaliveSeconds) -> None:
        self._keepalive = self._call.keepalive = seconds

    def has_unsent(self) -> bool:
        return self._connection.has_unsent()

    def fileno(self) -> int:
        return -1 if self._is_closed else self._connection.fileno()

    def send_rest(self, timeout: float) -> None:
        self._connection.wait_to_send(timeout)

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        call = self._call
        messages = call.messages
        if messages:
            return messages.popleft()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not messages:
            if call.failure is not None:
                call = self._opened_again(call, call.failure)
                messages = call.messages
                continue
            if until_sent and not self.has_unsent():
                return None
            if not self._advance(call, deadline):
                return None
        return messages.popleft()

    def receive(self) -> bool:
        connection = self._connection
        if connection.sending.outbound:
            connection.uncork()
        return connection.receive_ready()

    def take(self) -> Buffer | None:
        call = self._call
        if call.messages:
            return call.messages.popleft()
        if call.failure is not None:
            raise call.failure
        return None

    def events(self) -> int:
        return self._connection.events()

    def look(self) -> None:
        self._connection.judge(self._keepalive)

    def opening_again(self) -> Callable[[], Awaitable[None]] | None:
        return self._open_again if self._may_open_again() else None

    def _may_open_again(self) -> bool:
        call = self._call
        return (
            call.is_unprocessed
            and not call.has_headers
            and not self._is_closed
            and self._times_left > 0
            and self._reopen is not None
        )

    async def _open_again(self, waits: Waits = IN_LOOP) -> None:
        """Replace an unprocessed call with a new call, or raise the error that prevents this."""
        former, call = self._connection, self._call
        assert self._reopen is not None
        assert call.failure is not None
        self._times_left -= 1
        _log.info("%s; opening the stream again on another connection", call.failure)
        try:
            connection = await self._reopen(waits)
        except (DmEnvRpcClientError, OSError) as error:
            raise call.failure from error
        self._use(connection, None)
        if not former.release(call):
            former.shut_down()
        if self._is_closed:  # Meanwhile, by another thread.
            connection.shut_down()
            raise call.failure
        if self._unanswered:
            connection.send(self._call, *self._unanswered)

    def _opened_again(self, call: ClientStream, failure: DmEnvRpcClientError) -> ClientStream:
        with self._reopening:
            if call is self._call:  # Otherwise another thread has already reopened it.
                if not self._may_open_again():
                    raise failure
                run(self._open_again(BLOCKING))
            return self._call

    def shared_socket(self) -> tuple[ClientConnection, int] | None:
        connection = self._connection
        return (connection, self._call.number) if connection.stream_count > 1 else None

    def finish(self) -> None:
        self._connection.end(self._call)

    def close(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        try:
            self.finish()
            while True:  # Answers that still arrive are dropped.
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    break
                self.read(remaining)
        except (DmEnvRpcClientError, OSError, ValueError):
            pass
        self.abort()

    def abandon(self) -> None:
        self._is_closed = self._is_aborted = True
        self._connection.abandon()

    def abort(self) -> None:
        if self._is_aborted:
            return
        self._is_closed = True
        if not self._connection.release(self._call):
            self._connection.shut_down()
        self._is_aborted = True  # Not before: an interrupt may have come, and this is called again.
