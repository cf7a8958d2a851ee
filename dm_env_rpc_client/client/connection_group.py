"""Connections that share sockets to one server, for environments stepped by one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dm_env_rpc_client.client.base_connection import Pipelines
from dm_env_rpc_client.client.connect_options import DEFAULT, ConnectOptions
from dm_env_rpc_client.client.connecting import connect_with, connection_on
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.errors import ConnectionLostError, ProtocolError
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.opening import StreamGroup


class ConnectionGroup:
    """Connections to a server, each with its own stream, on as few sockets as the server allows.

    Over grpcio each connection has its own socket.

    Args:
      address: as for `connect`.
      options: connection options.

    Raises:
      SpecError, RecordingError: as `connect`.
    """

    def __init__(self, address: str, options: ConnectOptions = DEFAULT):
        self._endpoint = options.endpoint(address)
        self._options = options
        self._lock = make_lock()
        self._spare: Connection | None = None
        self._pipelines = Pipelines()
        self._streams = StreamGroup(self._endpoint, answer_memory)

    def open(self) -> Connection:
        """Open another connection, in any thread; see `connect` for the errors."""
        return self.open_with(None)[0]

    def open_with(
        self, first: envelopes.Request | None, first_timeout: float | None = None
    ) -> tuple[Connection, Pending | None]:
        """Open a connection and send a first request with its own timeout; see `connect_with`."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare.is_usable:
            # The server may have ended it because of an earlier request.
            with contextlib.suppress(ConnectionLostError, ProtocolError):
                return spare, None if first is None else spare.start(first, None, first_timeout)
        if not self._streams.is_possible:
            connection, pending = connect_with(first, self._endpoint, self._options)
            connection._keep_alive_with(self._pipelines)
            return connection, pending
        message = None if first is None else envelopes.encode_request(first).message
        with self._lock:
            stream = self._streams.open(self._options.timeout, message)
        connection = connection_on(stream, self._endpoint, self._options)
        connection._keep_alive_with(self._pipelines)
        return connection, None if first is None else connection._has_sent(first, first_timeout)

    def give_back(self, connection: Connection) -> None:
        """Keep a connection returned by `open_with` as a spare for the next `open_with`."""
        with self._lock:
            self._spare = connection

    def close(self) -> None:
        """Close the spare connection, if any, leaving other connections open."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Return a context manager that buffers one thread's requests until the context ends."""
        try:
            self.cork()
            yield
        finally:
            self.uncork()

    def cork(self) -> None:
        """Begin buffering for `together`, which calls `uncork` even if this method fails."""
        self._streams.cork()

    def uncork(self) -> None:
        """End buffering for `together` and send the buffered requests."""
        self._streams.uncork()
