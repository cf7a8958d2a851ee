"""Connections to dm_env_rpc servers, for threads.

with dm_env_rpc_client.connect("localhost:50051") as connection:
    response = connection.send(dm_env_rpc_pb2.CreateWorldRequest())
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import logging
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client.base_connection import CLOSE_SECONDS, BaseConnection, checked_timeout
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.remains import Remains
from dm_env_rpc_client.client.threaded_pipeline import ThreadedPipeline
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.system.keywords import check_keywords, takes
from dm_env_rpc_client.transports.credentials import Tls
from dm_env_rpc_client.transports.endpoint import Endpoint, Transport
from dm_env_rpc_client.transports.grpc.channel import local_credentials
from dm_env_rpc_client.transports.grpc.stream import GrpcStream
from dm_env_rpc_client.transports.metadata import Metadata
from dm_env_rpc_client.transports.opening import open_stream
from dm_env_rpc_client.transports.streams import SharedSocket, Stream

if TYPE_CHECKING:
    import grpc
    from typing_extensions import Unpack

    from dm_env_rpc_client.client.connect_options import ConnectKeywords
    from dm_env_rpc_client.tensors.limits import Limits

__all__ = [
    "Connection",
    "EndUnclosed",
    "Reopen",
    "Tls",
    "Transport",
    "connect",
    "connect_with",
    "connection_on",
    "create_secure_channel_and_connect",
    "open_again",
    "open_connection",
]


_log = logging.getLogger(__name__)

Reopen: TypeAlias = "Callable[[float | None], Connection]"
"""Opens another connection to the same server; takes a timeout in seconds."""

EndUnclosed: TypeAlias = "Callable[[Connection | None, Remains, Reopen], None]"
"""Ends a connection that nobody closed.

It is called when the connection was garbage-collected, with None, in any thread; or at the exit of
the interpreter, with the connection. It must not refer to the connection.
"""


class Connection(BaseConnection):
    """One stream to a server: at most one agent of one world at a time.

    Any number of threads may use a connection, with any number of pending requests; every
    answer is given to the request that it belongs to. Coroutines may await
    `asyncio.wrap_future(connection.submit(request))`, or use `AsyncConnection`.

    If an answer is late, wrong or missing, or a wait for one is interrupted, the connection
    becomes unusable: all pending and later requests fail with ConnectionLostError, chained to
    the first cause. A connection that is garbage collected without `close` is closed then.

    Args:
      channel: a grpc.Channel to the server, which stays open when the connection is
        closed; or a `Stream` of a transport, which is closed with the connection.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      request_timeout: seconds that each answer may take; None for no limit.
      limits: what an answer may contain; None for the defaults. The transport's limit of the size
        of a message is the channel's or stream's.

    Raises:
      SpecError: an argument is of another type or out of range, or the metadata is invalid.
    """

    _pipeline: ThreadedPipeline

    def __init__(
        self,
        channel: grpc.Channel | Stream,
        metadata: Metadata | None = None,
        *,
        request_timeout: float | None = None,
        limits: Limits | None = None,
    ):
        request_timeout = checked_timeout(channel, request_timeout, limits)
        is_grpc = hasattr(channel, "stream_stream")
        stream: Any = GrpcStream(cast("grpc.Channel", channel), metadata) if is_grpc else channel
        super().__init__(ThreadedPipeline(stream), request_timeout, limits)
        self._reopen: Callable[[float | None], Connection] = lambda _: Connection(
            channel, metadata, request_timeout=request_timeout, limits=limits
        )
        # Runs when the connection is garbage collected, and at the exit of the interpreter.
        self._finalizer = weakref.finalize(self, self._pipeline.remains.abort)

    def send(self, request: envelopes.Request, timeout: float | None = None) -> envelopes.Response:
        """Sends a request and waits for its answer.

        A program may replace this method on a connection, for example to map errors. The functions
        that create, join, reset and leave worlds and the properties call it with the request
        alone. Steps and resets of environments, and what cleans up, bypass it.

        Args:
          request: a request message such as `StepRequest`, or an extension in an `Any`.
          timeout: seconds that the answer may take; None for the connection's
            `request_timeout`.

        Returns:
          The response message of the same name, such as `StepResponse`; an `Any` for an
          `Any`.

        Raises:
          DmEnvRpcError: the server answered with an error; the connection stays usable.
          DeadlineExceededError: no answer in time; the connection is unusable now.
          ConnectionLostError, ConnectionClosedError: it was unusable, or became so.
          ProtocolError: the answer was not for this request; the connection is unusable now.
          SpecError: this is not a request message; nothing was sent.
        """
        return self._pipeline.call(self._pending(request, None, timeout))

    def submit(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
    ) -> concurrent.futures.Future[Any]:
        """Sends a request without waiting for its answer.

        Blocks only while the number or the total size of pending requests is at its limit (see
        `protocol.pipeline`).

        Args:
          request: as for `send`, or already encoded.
          interpret: makes the result from the answer. Called in the order of the answers,
            before the next answer is processed.

        Returns:
          A future of what `send` returns or raises. It cannot be cancelled.

        Raises:
          ConnectionLostError, ConnectionClosedError: the connection is unusable.
          SpecError: this is not a request message; nothing was sent.
        """
        return self._pipeline.submit(self._pending(request, interpret))

    def start(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
        timeout: float | None = None,
    ) -> Pending:
        """Sends a request; the caller waits for the answer with `wait`, in the same thread.

        Cheaper than `submit`, which needs a second thread that reads the answers; here `wait`
        reads them.

        Args:
          request: as for `submit`.
          interpret: as for `submit`.
          timeout: seconds that the answer may take; None for the connection's
            `request_timeout`.

        Returns:
          What `wait` takes.

        Raises:
          As `submit`.
        """
        pending = self._pending(request, interpret, timeout)
        self._pipeline.start(pending)
        return pending

    def _has_sent(self, request: envelopes.Request, timeout: float | None = None) -> Pending:
        """Takes a request that was sent when the stream was opened; otherwise as `start`."""
        pending = self._pending(request, None, timeout)
        self._pipeline.has_sent(pending)
        return pending

    def start_all(
        self,
        requests: Iterable[envelopes.Outgoing],
        interpret: Callable[[Any], Any] | None = None,
    ) -> list[Pending]:
        """`start` for many requests, which are written together: cheaper than one by one.

        Args:
          requests: as for `start`, in the order in which the server shall process them.
          interpret: makes the result from each answer; None for the answers themselves.

        Returns:
          For each request, what `wait` takes.
        """
        pendings = [self._pending(request, interpret) for request in requests]
        if pendings:
            try:
                self._pipeline.start(*pendings)
            except BaseException as error:
                self._pipeline.interrupted(error, pendings)  # After it has returned.
                raise
        return pendings

    def _finish(self) -> None:
        """Tells the server that no more requests follow; none may be started after this.

        Closing the connection then costs no round trip after the last answer.
        """
        self._pipeline.finish()

    def wait(self, pending: Pending) -> Any:
        """Waits for the answer to a request that was started.

        Args:
          pending: what `start` returned.

        Returns:
          What `send` returns, or what `interpret` made from it. Raises as `send` does.
        """
        return self._pipeline.wait(pending)

    def poll(self, pending: Pending) -> bool:
        """Reads the answers that have arrived, without waiting for more.

        Args:
          pending: what `start` returned.

        Returns:
          Whether `wait` would return or raise at once.
        """
        return self._pipeline.poll(pending)

    def has_unread(self) -> bool:
        """Whether an answer, or the end of the connection, has arrived and was not read yet.

        Returns:
          True if reading would return or raise at once.
        """
        return self._pipeline.has_unread()

    def shared_socket(self) -> tuple[SharedSocket, int] | None:
        """Returns the socket that this connection shares with others, and its number there.

        The socket says which of many connections have something to read, without asking each; see
        `SharedSocket`. None if the connection has a socket of its own.
        """
        return self._pipeline.shared_socket()

    def fileno(self) -> int:
        """Returns a file descriptor that is readable when `has_unread` may have become true.

        For waiting on several connections at once, with `selectors`, if `has_unread` is false
        for all of them. -1 if the connection was closed on this side.
        """
        return self._pipeline.fileno()

    def reopen(self, timeout: float | None = 10.0) -> Connection:
        """Opens another connection to the same server in the same way.

        Args:
          timeout: seconds until there must be a connection; None for no limit.

        Returns:
          A new Connection, not joined to a world. This one is left as it is.

        Raises:
          As `connect`.
        """
        return self._reopen(arguments.seconds("timeout", timeout, none=arguments.NO_LIMIT))

    def if_not_closed(self, end: EndUnclosed) -> None:
        """Has a function end the connection if nobody calls `close`.

        Args:
          end: see `EndUnclosed`.
        """
        self._finalizer.detach()
        run = functools.partial(
            _end_unclosed, end, weakref.ref(self), self._pipeline.remains, self._reopen
        )
        self._finalizer = weakref.finalize(self, run)

    def close(self) -> None:
        """Closes the connection; a second call does nothing.

        Pending requests fail with ConnectionClosedError. The server gets up to a
        second to end the stream. Raises nothing.
        """
        self._finalizer.detach()
        self._pipeline.close(CLOSE_SECONDS)
        if self._tap is not None:
            self._tap.settle()

    def _pending(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None,
        timeout: float | None = None,
    ) -> Pending:
        if timeout is None:
            timeout = self._request_timeout
        else:
            timeout = arguments.seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        if isinstance(request, envelopes.EncodedRequest):
            return Pending(request, interpret, deadline, self._lifecycle)
        return Pending.of(request, interpret, self._lifecycle, deadline, self._limits)

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _end_unclosed(
    end: EndUnclosed, connection: weakref.ref[Connection], remains: Remains, reopen: Reopen
) -> None:
    if remains.is_own:
        end(connection(), remains, reopen)


@takes(ConnectOptions)
def connect(address: str, **connecting: Unpack[ConnectKeywords]) -> Connection:
    """Connects to a dm_env_rpc server.

    If the server does not listen yet, the attempt is repeated until `timeout`.

    Args:
      address: `host:port`, `unix:path` or another gRPC target.
      timeout: seconds until there must be a connection, more than 0; None for no limit.
      request_timeout: seconds that each answer may take, more than 0; None for no limit. Keepalive
        detects
        a server machine that is frozen or unreachable within 20 s; over the transport "grpc" within
        80 s if that happens after the first 20 s of a step.
      credentials: TLS credentials: a `Tls`, which both transports take (`Tls()` trusts the
        authorities that this machine trusts); an ssl.SSLContext for the transport "http2",
        whose ALPN protocol is set to h2; or grpcio's for the transport "grpc"; None for
        plaintext.
      insecure: allow plaintext to an address other than loopback.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      token: a secret that the server requires, sent with the call as the metadata
        `authorization: Bearer <token>`. If it is refused, the first request fails with
        ConnectionLostError, which says UNAUTHENTICATED.
      transport: "http2" is this package's own transport over a socket, the fastest; "grpc" is
        grpcio, with all its features; "auto" selects http2 for `host:port` and `unix:path`,
        unless the credentials or a proxy require grpcio.
      limits: what an answer may contain, so that a small message cannot take much memory; None
        for the defaults of `Limits`.
      record: a file that does not exist yet, to which all requests and answers are recorded, or
        a `recording.Recorder`; None for none. See the guide of `recording`.

    Returns:
      The Connection, which closes its channel with itself.

    Raises:
      ConnectionLostError: no connection within `timeout`; says why.
      DeadlineExceededError: nothing was received within `timeout`.
      SpecError: an argument is of another type or out of range; plaintext to another machine
        without `insecure`; local credentials for another machine; an unknown transport; invalid
        metadata or an invalid token; a file of `credentials` that cannot be read. Nothing was sent.
      RecordingError: the file of `record` cannot be written, or exists.
    """
    check_keywords(connect, connecting)
    options = ConnectOptions(**connecting)
    return open_connection(options.endpoint(address), options)


def open_connection(endpoint: Endpoint, options: ConnectOptions) -> Connection:
    """`connect` with the server and how to connect to it as values."""
    return connect_with(None, endpoint, options)[0]


def connect_with(
    first: envelopes.Request | None, endpoint: Endpoint, options: ConnectOptions
) -> tuple[Connection, Pending | None]:
    """`open_connection`, with a first request that need not wait for the server's greeting.

    Returns:
      The connection, and what its `wait` takes for the answer to the request, if there is one.
    """
    message = None if first is None else envelopes.encode_request(first).message
    stream = open_stream(endpoint, options.timeout, answer_memory, message)
    connection = connection_on(stream, endpoint, options)
    _log.debug("connected to %s", endpoint.address)
    return connection, None if first is None else connection._has_sent(first)


def connection_on(stream: Stream, endpoint: Endpoint, options: ConnectOptions) -> Connection:
    """Returns a connection on a stream to an endpoint, which can be opened again."""
    connection = Connection(stream, request_timeout=options.request_timeout, limits=options.limits)
    connection._reopen = functools.partial(open_again, endpoint, options)
    connection._tap = endpoint.tap
    return connection


def open_again(endpoint: Endpoint, options: ConnectOptions, timeout: float | None) -> Connection:
    """`open_connection`, to the server of a connection that was open before."""
    return open_connection(endpoint, dataclasses.replace(options, timeout=timeout))


def create_secure_channel_and_connect(
    server_address: str,
    credentials: grpc.ChannelCredentials | None = None,
    timeout: float | None = None,
    metadata: Metadata | None = None,
) -> Connection:
    """`connect` over a secure channel, with the signature of the reference package.

    Args:
      server_address: `host:port`, `unix:path` or another gRPC target.
      credentials: channel credentials; None for gRPC's local ones, which only servers on
        this machine accept.
      timeout: seconds until there must be a connection; None for no limit.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.

    Raises:
      As `connect`.
    """
    if credentials is None:
        credentials = local_credentials(server_address)
    return connect(server_address, timeout=timeout, credentials=credentials, metadata=metadata)
