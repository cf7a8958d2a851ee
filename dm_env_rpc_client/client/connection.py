"""Connections to dm_env_rpc servers, for threads.

with dm_env_rpc_client.connect("localhost:50051") as connection:
    response = connection.send(dm_env_rpc_pb2.CreateWorldRequest())
"""

from __future__ import annotations

import concurrent.futures
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from dm_env_rpc_client.client.threaded_pipeline import Exchange
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.lifecycle import Lifecycle
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.transports import conditions
from dm_env_rpc_client.transports.grpc import channel as grpc_channel
from dm_env_rpc_client.transports.grpc.stream import GrpcStream
from dm_env_rpc_client.transports.opening import Transport, open_stream
from dm_env_rpc_client.transports.streams import Stream

if TYPE_CHECKING:
    import grpc

__all__ = ["Connection", "Transport", "connect", "create_secure_channel_and_connect"]

CLOSE_SECONDS = 1.0
"""How long the server may take to end a stream that was closed."""


class Connection:
    """One stream to a server: at most one agent of one world at a time.

    Any number of threads may use a connection, with any number of requests in flight;
    every answer goes to the request it belongs to. Coroutines may await
    `asyncio.wrap_future(connection.submit(request))`, or use `AsyncConnection`.

    When an answer is late, wrong or missing, or a wait for one is interrupted, the
    connection is dead: what is in flight and everything later fails with
    ConnectionLostError, chained to the first cause. Forgetting to close is harmless.

    Args:
      channel: a grpc.Channel to the server, which stays open when the connection is
        closed; or a `Stream` of a transport, which does not.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      request_timeout: seconds that each answer may take; None for any time.

    Raises:
      SpecError: gRPC does not take the metadata.
    """

    def __init__(
        self,
        channel: grpc.Channel | Stream,
        metadata: conditions.Metadata | None = None,
        *,
        request_timeout: float | None = None,
    ):
        is_grpc = hasattr(channel, "stream_stream")
        stream: Any = GrpcStream(cast("grpc.Channel", channel), metadata) if is_grpc else channel
        self._exchange = Exchange(stream)
        self._request_timeout = request_timeout
        self._lifecycle = Lifecycle()
        self._reopen: Callable[[float | None], Connection] = lambda _: Connection(
            channel, metadata, request_timeout=request_timeout
        )
        # Runs when the connection is forgotten, and at the exit of the interpreter.
        self._finalizer = weakref.finalize(self, self._exchange.finalizer())

    @property
    def address(self) -> str:
        """What error messages call the server."""
        return self._exchange.address

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and nothing has gone wrong with it so far."""
        return self.poisoned_by is None

    @property
    def lifecycle(self) -> Lifecycle:
        """What the connection is doing, as of the last answer; for reading."""
        return self._lifecycle

    @property
    def in_flight(self) -> int:
        """The number of requests that have no answer yet."""
        return self._exchange.in_flight

    @property
    def poisoned_by(self) -> BaseException | None:
        """The first thing that made the connection unusable; None while it is usable."""
        return self._exchange.poisoned_by

    def __repr__(self) -> str:
        state = "" if self.is_usable else f", unusable: {self.poisoned_by!r}"
        return f"<{type(self).__name__} to {self.address}{state}>"

    def _repr_html_(self) -> str:
        from dm_env_rpc_client.displays.connections import show_connection

        return show_connection(self)

    def send(self, request: envelopes.Request, timeout: float | None = None) -> envelopes.Response:
        """Sends a request and waits for its answer.

        Args:
          request: a request message such as `StepRequest`, or an extension in an `Any`.
          timeout: seconds that the answer may take; None for the connection's
            `request_timeout`.

        Returns:
          The response message of the same name, such as `StepResponse`; an `Any` for an
          `Any`.

        Raises:
          DmEnvRpcError: the server answered with an error; the connection is fine.
          DeadlineExceededError: no answer in time; the connection is dead.
          ConnectionLostError, ConnectionClosedError: it was dead, or died.
          ProtocolError: the answer was not for this request; the connection is dead.
          SpecError: this is no request; nothing was sent.
        """
        return self._exchange.call(self._pending(request, None, timeout))

    def submit(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
    ) -> concurrent.futures.Future[Any]:
        """Sends a request without waiting for its answer.

        Blocks only while very much is in flight (see `pipeline`).

        Args:
          request: as for `send`, or already encoded.
          interpret: makes the result of the answer. Called in the order of the answers,
            before the next of them is looked at.

        Returns:
          A future of what `send` returns or raises. It cannot be cancelled.

        Raises:
          ConnectionLostError, ConnectionClosedError: nothing can be sent any more.
          SpecError: this is no request; nothing was sent.
        """
        return self._exchange.submit(self._pending(request, interpret))

    def start(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
    ) -> Pending:
        """Sends a request that the caller waits for with `wait`, in the same thread.

        Cheaper than `submit`, whose futures somebody has to read for; here the caller
        does, in `wait`. The arguments and errors are those of `submit`.
        """
        pending = self._pending(request, interpret)
        self._exchange.start(pending)
        return pending

    def start_all(
        self,
        requests: Iterable[envelopes.Outgoing],
        interpret: Callable[[Any], Any] | None = None,
    ) -> list[Pending]:
        """`start` for many requests, which go out together: cheaper than one by one.

        Args:
          requests: as for `start`, in the order in which they are to be carried out.
          interpret: makes the result of each answer; None for the answers themselves.

        Returns:
          What `wait` takes, for each.
        """
        pendings = [self._pending(request, interpret) for request in requests]
        if pendings:
            self._exchange.start(*pendings)
        return pendings

    def wait(self, pending: Pending) -> Any:
        """Waits for the answer to a request that was started.

        Args:
          pending: what `start` returned.

        Returns:
          What `send` returns, or what was made of it. Raises as `send` does.
        """
        return self._exchange.wait(pending)

    def poll(self, pending: Pending) -> bool:
        """Reads what has arrived without waiting for more.

        Args:
          pending: what `start` returned.

        Returns:
          Whether `wait` would return or raise at once.
        """
        return self._exchange.poll(pending)

    def has_unread(self) -> bool:
        """Whether an answer, or the end of the connection, is there to be read."""
        return self._exchange.has_unread()

    def fileno(self) -> int:
        """Returns a file descriptor that is readable when `has_unread` may have become true.

        For waiting on several connections at once, with `selectors`, when none of them has
        anything unread. -1 where the connection has ended on this side.
        """
        return self._exchange.fileno()

    def reopen(self, timeout: float | None = 10.0) -> Connection:
        """Opens another connection to the same server in the same way.

        Args:
          timeout: seconds until there must be a connection; None for any time.

        Returns:
          A new Connection, joined to nothing. This one is left as it is.

        Raises:
          As `connect`.
        """
        return self._reopen(timeout)

    def close(self) -> None:
        """Closes the connection; a second time does nothing.

        Requests in flight fail with ConnectionClosedError. The server gets up to a
        second to end the stream. Raises nothing.
        """
        self._finalizer.detach()
        self._exchange.close(CLOSE_SECONDS)

    def _pending(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None,
        timeout: float | None = None,
    ) -> Pending:
        if timeout is None:
            timeout = self._request_timeout
        deadline = None if timeout is None else time.monotonic() + timeout
        return Pending.of(request, interpret, self._lifecycle, deadline)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def connect(
    address: str,
    *,
    timeout: float | None = 10.0,
    request_timeout: float | None = None,
    credentials: conditions.Credentials | None = None,
    insecure: bool = False,
    metadata: conditions.Metadata | None = None,
    transport: Transport = "auto",
) -> Connection:
    """Connects to a dm_env_rpc server.

    A server that is not there yet is tried again until `timeout`.

    Args:
      address: `host:port`, `unix:path` or another gRPC target.
      timeout: seconds until there must be a connection; None for any time.
      request_timeout: seconds that each answer may take; None for any time. A frozen or
        vanished machine is noticed by keepalive within 20 s in any case.
      credentials: an ssl.SSLContext (`ssl.create_default_context()`, with own roots or a
        client certificate as need be), whose ALPN protocol is set to h2; or credentials of
        grpcio's, which the transport "grpc" takes; None for plaintext.
      insecure: allow plaintext to an address that is not on this machine.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      transport: "http2" is this package's own way over a socket, the fastest; "grpc" is
        grpcio, with all that it can; "auto" picks http2 for `host:port` and `unix:path`,
        unless the credentials or a proxy take grpcio.

    Returns:
      The Connection, which closes its channel with itself.

    Raises:
      ConnectionLostError: no connection within `timeout`; says why.
      DeadlineExceededError: nothing at all came back within `timeout`.
      SpecError: plaintext to another machine without `insecure`; local credentials for
        another machine; no such transport; gRPC does not take the metadata.
    """

    def open_connection(timeout: float | None) -> Connection:
        stream = open_stream(
            address, timeout, credentials, insecure, metadata, transport, answer_memory
        )
        connection = Connection(stream, request_timeout=request_timeout)
        connection._reopen = open_connection
        return connection

    return open_connection(timeout)


def create_secure_channel_and_connect(
    server_address: str,
    credentials: grpc.ChannelCredentials | None = None,
    timeout: float | None = None,
    metadata: conditions.Metadata | None = None,
) -> Connection:
    """`connect` over a secure channel, with the signature of the reference package.

    Args:
      server_address: `host:port`, `unix:path` or another gRPC target.
      credentials: channel credentials; None for gRPC's local ones, which only servers on
        this machine take.
      timeout: seconds until there must be a connection; None for any time.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.

    Raises:
      As `connect`.
    """
    if credentials is None:
        credentials = grpc_channel.local_credentials(server_address)
    return connect(server_address, timeout=timeout, credentials=credentials, metadata=metadata)
