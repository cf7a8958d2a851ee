"""Connections to one server that share sockets, for environments that one thread steps together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from dm_env_rpc_client.client.connect_options import DEFAULT, ConnectOptions
from dm_env_rpc_client.client.connection import Connection, connect_with, connection_on
from dm_env_rpc_client.errors import ConnectionLostError, ProtocolError
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.transports.endpoint import Incoming
from dm_env_rpc_client.transports.opening import StreamGroup

__all__ = ["ConnectionGroup"]


class ConnectionGroup:
    """Opens connections to a server, each a stream, on as few sockets as the server allows.

    Over grpcio each connection has a socket of its own.

    Args:
      address: as for `connect`; or where servers dial in.
      options: how to connect.
      connections: how many are to be open. Servers that dial in share them.

    Raises:
      SpecError, RecordingError: as `connect`.
    """

    def __init__(
        self,
        address: str | Incoming,
        options: ConnectOptions = DEFAULT,
        connections: int = 1,
    ):
        self._endpoint = options.endpoint(address)
        self._options = options
        self._lock = make_lock()
        self._spare: Connection | None = None
        self._streams = StreamGroup(self._endpoint, answer_memory, connections)

    @property
    def is_dialed(self) -> bool:
        """Whether servers dial in, and share the connections among them."""
        return self._endpoint.incoming is not None

    @property
    def processes(self) -> int:
        """How many processes serve, as far as a connection has told."""
        return self._streams.processes

    def open(self) -> Connection:
        """Opens another connection; errors are those of `connect`. Any thread may call this."""
        return self.open_with(None)[0]

    def open_with(
        self, first: envelopes.Request | None, first_timeout: float | None = None
    ) -> tuple[Connection, Pending | None]:
        """`open` with a first request, whose answer may take some seconds; see `connect_with`."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None and spare.is_usable:
            # A server may end it for what was asked before.
            with contextlib.suppress(ConnectionLostError, ProtocolError):
                return spare, None if first is None else spare.start(first, None, first_timeout)
        if not self._streams.is_possible:
            return connect_with(first, self._endpoint, self._options)
        message = None if first is None else envelopes.encode_request(first).message
        begun, timeout = time.monotonic(), self._options.timeout
        with self._lock:
            if timeout is not None and self._endpoint.incoming is not None:
                # Other threads may have waited before this one until a server dialed in.
                timeout = max(0.0, timeout - (time.monotonic() - begun))
            stream = self._streams.open(timeout, message)
        connection = connection_on(stream, self._endpoint, self._options)
        return connection, None if first is None else connection._has_sent(first, first_timeout)

    def give_back(self, connection: Connection) -> None:
        """Takes a connection that `open_with` has returned, and returns it there once more."""
        with self._lock:
            self._spare = connection

    def close(self) -> None:
        """Closes a connection that was given back and not asked for since; others stay open."""
        with self._lock:
            spare, self._spare = self._spare, None
        if spare is not None:
            spare.close()

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A context in which one thread sends on several connections: all is sent at its end."""
        try:
            self.cork()
            yield
        finally:
            self.uncork()

    def cork(self) -> None:
        """Begins `together`; if it fails, too, `uncork` follows."""
        self._streams.cork()

    def uncork(self) -> None:
        """Ends `together`: all is sent."""
        self._streams.uncork()
