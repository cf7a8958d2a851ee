"""Connections to dm_env_rpc servers, for asyncio."""

from __future__ import annotations

import dataclasses
import functools
import logging
import warnings
import weakref
from collections.abc import Awaitable, Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client.async_pipeline import AsyncPipeline
from dm_env_rpc_client.client.base_connection import CLOSE_SECONDS, BaseConnection, checked_timeouts
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.system.keywords import check_keywords, takes
from dm_env_rpc_client.system.waiting import in_thread
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.grpc.async_stream import AsyncGrpcStream
from dm_env_rpc_client.transports.grpc.channel import local_credentials
from dm_env_rpc_client.transports.net.metadata import Metadata
from dm_env_rpc_client.transports.opening import open_stream_async
from dm_env_rpc_client.transports.streams import AsyncStream

if TYPE_CHECKING:
    import grpc
    import grpc.aio
    from typing_extensions import Unpack

    from dm_env_rpc_client.client.connect_options import ConnectKeywords
    from dm_env_rpc_client.tensors.memory_limits import Limits


_log = logging.getLogger(__name__)


class AsyncConnection(BaseConnection):
    """A stream to a server, shared by the coroutines of one event loop.

    Any number of coroutines may have pending requests. Every answer is matched with its request,
    in whatever order they are awaited. Cancelling a wait for an answer makes the connection
    unusable, like a missed deadline, because the state of the server is then unknown. The
    arguments and errors are the same as for `Connection`.

    Args:
      channel: a grpc.aio.Channel to the server, which stays open when the connection is
        closed; or an `AsyncStream` of a transport, which is closed with the connection.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      request_timeout: time limit for each answer, in seconds; None for no limit.
      keepalive_timeout: as for `connect`. A grpc.aio.Channel has options of its own for this.
      limits: limits for answers; None for the defaults.

    Raises:
      SpecError: an argument is of another type or out of range, or the metadata is invalid.
    """

    _pipeline: AsyncPipeline

    def __init__(
        self,
        channel: grpc.aio.Channel | AsyncStream,
        metadata: Metadata | None = None,
        *,
        request_timeout: float | None = None,
        keepalive_timeout: float | None = None,
        limits: Limits | None = None,
    ):
        request_timeout, keepalive_timeout = checked_timeouts(
            channel, request_timeout, keepalive_timeout, limits
        )
        # By its method: grpc is imported only by users of its channels.
        is_grpc = hasattr(channel, "stream_stream")
        stream: Any = (
            AsyncGrpcStream(cast("grpc.aio.Channel", channel), metadata) if is_grpc else channel
        )
        super().__init__(AsyncPipeline(stream, keepalive_timeout), request_timeout, limits)

        async def reopen(_: float | None) -> AsyncConnection:
            return AsyncConnection(
                channel,
                metadata,
                request_timeout=request_timeout,
                keepalive_timeout=keepalive_timeout,
                limits=limits,
            )

        self._reopen: Callable[[float | None], Awaitable[AsyncConnection]] = reopen
        # Runs when the connection is garbage collected.
        self._finalizer = weakref.finalize(self, functools.partial(_forget, self._pipeline))
        # At the exit there may be no event loop left to use.
        self._finalizer.atexit = False
        try:
            self._pipeline.begin()
        except RuntimeError:
            pass  # There is no event loop yet; the first request begins to read.

    async def send(
        self, request: envelopes.Request, timeout: float | None = None
    ) -> envelopes.Response:
        """Send a request and wait for its answer; see `Connection.send`."""
        return await self.send_with(request, None, timeout)

    async def send_with(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None,
        timeout: float | None = None,
    ) -> Any:
        """Send a request, wait for its answer, and return a result made from the answer.

        Args:
          request: as for `send`.
          interpret: a function that makes the result from the answer, called in the order of the
            answers; None to return the answer itself.
          timeout: as for `send`.

        Returns:
          The result of `interpret`. Raises like `send`.
        """
        return await self.wait(await self.start(request, interpret, timeout))

    async def start(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
        timeout: float | None = None,
    ) -> Pending:
        """Send a request, waiting first if too many requests are pending.

        Args:
          request: as for `send`, or already encoded.
          interpret: a function that makes the result from the answer, called in the order of the
            answers.
          timeout: time limit for the answer, in seconds; None for `request_timeout`.

        Returns:
          The pending request, to be passed to `wait`. Its answer is read even if `wait` is never
          called.

        Raises:
          As `send`, if the connection is unusable.
        """
        if timeout is None:
            timeout = self._request_timeout
        else:
            timeout = arguments.seconds("timeout", timeout)
        # Encoded here, before the wait for room: a bad request fails at once.
        pending = Pending.of(request, interpret, self._lifecycle, limits=self._limits)
        await self._pipeline.start(pending, timeout)
        return pending

    async def wait(self, pending: Pending) -> Any:
        """Wait for the answer to a request that `start` has sent.

        Args:
          pending: the result of `start`.

        Returns:
          The answer, or the result of `interpret`. Raises like `send`. Cancelling the wait makes
          the connection unusable.
        """
        return await self._pipeline.wait(pending)

    def interrupted(self, error: BaseException, pendings: Iterable[Pending] | None = None) -> None:
        self._pipeline.interrupted(error, pendings)

    async def reopen(self, timeout: float | None = 10.0) -> AsyncConnection:
        """Open another connection to the same server; see `Connection.reopen`."""
        return await self._reopen(arguments.seconds("timeout", timeout, none=arguments.NO_LIMIT))

    def if_not_closed(self, end: Callable[[bool, type[BaseException] | None], None]) -> None:
        """Register a function to call when the connection is garbage-collected before it is closed.

        Args:
          end: called with False, in any thread, when the connection is garbage-collected; or with
            True at the exit of the interpreter. By then the stream has ended, or it will end when
            its event loop runs. The second argument is the type of the error that made the
            connection unusable before, if any. The function must not refer to the connection.
        """
        self._finalizer.detach()
        run = functools.partial(_end_unclosed, end, weakref.ref(self), self._pipeline)
        self._finalizer = weakref.finalize(self, run)

    async def close(self) -> None:
        """Close the connection. A second call does nothing.

        Pending requests fail with ConnectionClosedError. The server has up to a second to end
        the stream. Never raises.
        """
        self._finalizer.detach()
        await self._pipeline.close(CLOSE_SECONDS)
        # Waiting for the disk would block the event loop.
        if self._tap is not None:
            await in_thread(self._tap.settle)

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


@takes(ConnectOptions)
async def connect_async(address: str, **connecting: Unpack[ConnectKeywords]) -> AsyncConnection:
    """Open an AsyncConnection to the server at an address; see `connect` for the errors."""
    check_keywords(connect_async, connecting)
    options = ConnectOptions(**connecting)
    return await open_connection_async(options.endpoint(address), options)


async def open_connection_async(endpoint: Endpoint, options: ConnectOptions) -> AsyncConnection:
    """Do what `connect_async` does, but take an Endpoint and a ConnectOptions as arguments."""
    return (await connect_with_async(None, endpoint, options))[0]


async def connect_with_async(
    first: envelopes.Request | None, endpoint: Endpoint, options: ConnectOptions
) -> tuple[AsyncConnection, Pending | None]:
    """Open an AsyncConnection and send a first request, as `connecting.connect_with` does."""
    message = None if first is None else envelopes.encode_request(first).message
    stream = await open_stream_async(endpoint, options.timeout, answer_memory, message)
    connection = AsyncConnection(
        stream,
        request_timeout=options.request_timeout,
        keepalive_timeout=options.keepalive_timeout,
        limits=options.limits,
    )
    _log.debug("connected to %s", endpoint.address)
    connection._reopen = lambda timeout: open_connection_async(
        endpoint, dataclasses.replace(options, timeout=timeout)
    )
    connection._tap = endpoint.tap
    if first is None:
        return connection, None
    pending = Pending.of(first, None, connection.lifecycle, limits=options.limits)
    await connection._pipeline.start(pending, options.request_timeout, is_written=True)
    return connection, pending


async def create_secure_async_channel_and_connect(
    server_address: str,
    credentials: grpc.ChannelCredentials | None = None,
    metadata: Metadata | None = None,
    *,
    timeout: float | None = None,
) -> AsyncConnection:
    """Connect over a secure channel; the reference package's function has the same signature.

    The arguments and errors are the same, too. Unlike the reference's connection, this one is
    closed with `await connection.close()` or `async with`.
    """
    if credentials is None:
        credentials = local_credentials(server_address)
    return await connect_async(
        server_address, timeout=timeout, credentials=credentials, metadata=metadata
    )


def _end_unclosed(
    end: Callable[[bool, type[BaseException] | None], None],
    connection: weakref.ref[AsyncConnection],
    pipeline: AsyncPipeline,
) -> None:
    # In a forked child the connection is the parent's.
    if not pipeline.is_own:
        return
    error = pipeline.poisoned_by
    is_exit = connection() is not None
    try:
        if is_exit:
            pipeline.end_at_exit()
        else:
            _forget(pipeline)
    finally:  # The warning may be an error.
        end(is_exit, None if error is None else type(error))


def _forget(pipeline: AsyncPipeline) -> None:
    warnings.warn(
        f"the AsyncConnection to {pipeline.address} was not closed",
        ResourceWarning,
        source=pipeline,
        stacklevel=2,
    )
    pipeline.forget()
