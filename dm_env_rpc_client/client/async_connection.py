"""Connections to dm_env_rpc servers, for asyncio."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from dm_env_rpc_client.client.base_connection import CLOSE_SECONDS, BaseConnection
from dm_env_rpc_client.errors import ConnectionClosedError, DmEnvRpcClientError
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending, Pipeline
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.transports.credentials import Credentials
from dm_env_rpc_client.transports.endpoint import Endpoint, Transport
from dm_env_rpc_client.transports.grpc.async_stream import AsyncGrpcStream
from dm_env_rpc_client.transports.metadata import Metadata
from dm_env_rpc_client.transports.opening import open_stream_async
from dm_env_rpc_client.transports.streams import AsyncStream

if TYPE_CHECKING:
    import grpc
    import grpc.aio

__all__ = ["AsyncConnection", "connect_async", "open_connection_async"]


class AsyncConnection(BaseConnection):
    """One stream to a server, for the coroutines of one event loop.

    Any number of coroutines may have pending requests; every answer is given to the request
    that it belongs to, in whatever order they are awaited. If a wait for an answer is
    cancelled, it is unknown what the server did, so the connection becomes unusable, as
    after a missed deadline: see `Connection`, whose arguments and errors these are.

    Args:
      channel: a grpc.aio.Channel to the server, which stays open when the connection is
        closed; or an `AsyncStream` of a transport, which is closed with the connection.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      request_timeout: seconds that each answer may take; None for no limit.

    Raises:
      SpecError: the metadata is invalid.
    """

    _pipeline: Pipeline

    def __init__(
        self,
        channel: grpc.aio.Channel | AsyncStream,
        metadata: Metadata | None = None,
        *,
        request_timeout: float | None = None,
    ):
        is_grpc = hasattr(channel, "stream_stream")
        stream: Any = (
            AsyncGrpcStream(cast("grpc.aio.Channel", channel), metadata) if is_grpc else channel
        )
        self._stream: AsyncStream = stream
        super().__init__(Pipeline(self._stream.address), request_timeout)

        async def reopen(_: float | None) -> AsyncConnection:
            return AsyncConnection(channel, metadata, request_timeout=request_timeout)

        self._reopen: Callable[[float | None], Awaitable[AsyncConnection]] = reopen
        self._outbound: collections.deque[bytes] = collections.deque()
        self._line: collections.deque[asyncio.Future[None]] = collections.deque()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._is_closed = False

    async def send(
        self, request: envelopes.Request, timeout: float | None = None
    ) -> envelopes.Response:
        """Sends a request and waits for its answer; see `Connection.send`."""
        return await self.send_with(request, None, timeout)

    async def send_with(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None,
        timeout: float | None = None,
    ) -> Any:
        """`send`, with a function that makes the result from the answer.

        Args:
          request: as for `send`.
          interpret: makes the result from the answer. Called in the order of the answers; None
            for the answer itself.
          timeout: as for `send`.

        Returns:
          What `interpret` returns. Raises as `send` does.
        """
        return await self.wait(await self.start(request, interpret, timeout))

    async def start(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
        timeout: float | None = None,
    ) -> Pending:
        """Sends a request; waits only while pending requests are at their limit.

        Args:
          request: as for `send`, or already encoded.
          interpret: makes the result from the answer. Called in the order of the answers.
          timeout: seconds that the answer may take; None for `request_timeout`.

        Returns:
          What `wait` takes. The answer is read even if `wait` is never called.

        Raises:
          As `send`, if the connection is unusable.
        """
        pending = Pending.of(request, interpret, self._lifecycle)
        if timeout is None:
            timeout = self._request_timeout
        if timeout is not None:
            timer = asyncio.get_running_loop().call_later(timeout, self._expire, pending)
            pending.waiters.append(timer.cancel)
        try:
            await self._wait_for_room(pending)
            if not pending.is_done:
                self._push(pending)
                self._admit_next()
        except BaseException:
            if timeout is not None:
                timer.cancel()
            raise
        return pending

    async def wait(self, pending: Pending) -> Any:
        """Waits for the answer to a request that was started.

        Args:
          pending: what `start` returned.

        Returns:
          What `send` returns, or what `interpret` made from it. Raises as `send` does. If the
          wait is cancelled, the connection becomes unusable.
        """
        try:
            if not pending.is_done:
                answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                pending.waiters.append(lambda: _set(answered))
                await answered
        except asyncio.CancelledError as error:
            if not pending.is_done:
                self._poison(error)
            raise
        return pending.result()

    async def reopen(self, timeout: float | None = 10.0) -> AsyncConnection:
        """Opens another connection to the same server; see `Connection.reopen`."""
        return await self._reopen(timeout)

    async def close(self) -> None:
        """Closes the connection; a second call does nothing.

        Pending requests fail with ConnectionClosedError. The server gets up to a
        second to end the stream. Raises nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # With pending requests the stream is cancelled: their answers are not used any more.
        is_idle = self.is_usable and not len(self._pipeline)
        self._poison(ConnectionClosedError(f"the connection to {self.address} was closed"), is_idle)
        tasks = [task for task in (self._writer, self._reader) if task is not None]
        # A cancelled task refers to its frames, and these to the connection and its socket.
        self._writer = self._reader = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stream.close(CLOSE_SECONDS if is_idle else 0.0)

    def _push(self, pending: Pending) -> None:
        """Queues a request for writing; nothing is awaited, so both queues have one order."""
        self._pipeline.push(pending)
        self._outbound.append(pending.message)
        pending.message = b""
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._outbound:
            await self._stream.write(self._outbound.popleft())
        # Nothing was awaited since the queue was found empty, so the next push starts a new task.
        self._writer = None

    async def _read(self) -> None:
        """Reads answers and gives them to their requests until the stream ends."""
        try:
            while True:
                pending = self._pipeline.answer(await self._stream.read())
                self._pipeline.retire(pending)
                pending.wake()
                self._admit_next()
        except DmEnvRpcClientError as error:
            self._poison(error)

    async def _wait_for_room(self, pending: Pending) -> None:
        """Returns when `pending` may be pushed or is done; first come, first served."""
        is_woken = False
        while not pending.is_done and (
            (self._line and not is_woken) or not self._pipeline.has_room(pending.size)
        ):
            self._pipeline.check_usable()
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            (self._line.appendleft if is_woken else self._line.append)(turn)
            pending.waiters.append(lambda turn=turn: _set(turn))  # type: ignore[misc]
            try:
                await turn
            except BaseException:
                self._admit_next()
                raise
            is_woken = True

    def _admit_next(self) -> None:
        """Wakes the first request in line, which wakes the next one when it was pushed."""
        while self._line and self._pipeline.has_room(0):
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _expire(self, pending: Pending) -> None:
        late = self._pipeline.late(pending)
        pending.finish(None, late)
        if pending.is_sent:
            self._poison(late)
        pending.wake()

    def _poison(self, cause: BaseException, keep_stream: bool = False) -> None:
        for pending in self._pipeline.poison(cause):
            pending.wake()
        while self._line:
            _set(self._line.popleft())
        if not keep_stream:
            self._stream.abort()

    async def __aenter__(self) -> AsyncConnection:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def connect_async(
    address: str,
    *,
    timeout: float | None = 10.0,
    request_timeout: float | None = None,
    credentials: Credentials | None = None,
    insecure: bool = False,
    metadata: Metadata | None = None,
    transport: Transport = "auto",
) -> AsyncConnection:
    """`connect` for asyncio; arguments and errors are the same."""
    endpoint = Endpoint(address, credentials, insecure, metadata, transport)
    return await open_connection_async(endpoint, timeout, request_timeout)


async def open_connection_async(
    endpoint: Endpoint, timeout: float | None, request_timeout: float | None
) -> AsyncConnection:
    """`connect_async` with the server and how to connect to it as one value."""
    stream = await open_stream_async(endpoint, timeout, answer_memory)
    connection = AsyncConnection(stream, request_timeout=request_timeout)
    connection._reopen = lambda timeout: open_connection_async(endpoint, timeout, request_timeout)
    return connection


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
