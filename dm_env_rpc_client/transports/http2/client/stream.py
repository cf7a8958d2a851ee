"""The stream over HTTP/2, for threads: one call on a connection of its own or on a shared one."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.transports.http2.client.connection import ClientConnection
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientStream
from dm_env_rpc_client.transports.streams import Buffer, Stream


class Http2Stream(Stream):
    """A `Stream` on a connection.

    Args:
      connection: the connection. It is closed with the last of its streams.
      call: an open call on it; None for its first one.
    """

    def __init__(self, connection: ClientConnection, call: ClientStream | None = None):
        if call is None:
            call = connection.open_call()
            assert call is not None, "the first call is opened with the connection"
        self.address = connection.address
        self._connection = connection
        self._call = call
        self._advance = connection.advance
        # Without a frame of Python in between.
        self.write: Callable[..., bool] = functools.partial(connection.send, call)
        self.has_unread: Callable[[], bool] = functools.partial(connection.has_unread, call)
        self._is_closed = self._is_aborted = False

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
                raise call.failure
            if until_sent and not self.has_unsent():
                return None
            if not self._advance(call, deadline):
                return None
        return messages.popleft()

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
