"""Connections to dm_env_rpc servers, for asyncio."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    DmEnvRpcClientError,
)
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.lifecycle import Lifecycle
from dm_env_rpc_client.protocol.pipeline import Pending, Pipeline
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.transports import conditions
from dm_env_rpc_client.transports.grpc.async_stream import GrpcAioStream
from dm_env_rpc_client.transports.opening import Transport, open_aio_stream
from dm_env_rpc_client.transports.streams import AsyncStream

if TYPE_CHECKING:
    import grpc
    import grpc.aio

__all__ = ["AsyncConnection", "connect_async"]

CLOSE_SECONDS = 1.0
"""How long the server may take to end a stream that was closed."""


class AsyncConnection:
    """One stream to a server, for the coroutines of one event loop.

    Any number of coroutines may have requests in flight; every answer goes to the request
    it belongs to, whatever the order of awaiting. Cancelling a wait for an answer leaves
    in doubt what the server did, so it ends the connection, as a missed deadline does:
    see `Connection`, whose arguments and errors these are.

    Args:
      channel: a grpc.aio.Channel to the server, which stays open when the connection is
        closed; or an `AsyncStream` of a transport, which does not.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      request_timeout: seconds that each answer may take; None for any time.

    Raises:
      SpecError: gRPC does not take the metadata.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel | AsyncStream,
        metadata: conditions.Metadata | None = None,
        *,
        request_timeout: float | None = None,
    ):
        is_grpc = hasattr(channel, "stream_stream")
        stream: Any = (
            GrpcAioStream(cast("grpc.aio.Channel", channel), metadata) if is_grpc else channel
        )
        self._stream: AsyncStream = stream
        self._pipeline = Pipeline(self._stream.address)
        self._request_timeout = request_timeout
        self._lifecycle = Lifecycle()
        self._outbound: collections.deque[bytes] = collections.deque()
        self._line: collections.deque[asyncio.Future[None]] = collections.deque()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def address(self) -> str:
        """What error messages call the server."""
        return self._pipeline.address

    @property
    def lifecycle(self) -> Lifecycle:
        """What the connection is doing, as of the last answer; for reading."""
        return self._lifecycle

    @property
    def in_flight(self) -> int:
        """The number of requests that have no answer yet."""
        return len(self._pipeline)

    @property
    def poisoned_by(self) -> BaseException | None:
        """The first thing that made the connection unusable; None while it is usable."""
        return self._pipeline.poisoned_by

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and nothing has gone wrong with it so far."""
        return self.poisoned_by is None

    def __repr__(self) -> str:
        state = "" if self.is_usable else f", unusable: {self.poisoned_by!r}"
        return f"<{type(self).__name__} to {self.address}{state}>"

    def _repr_html_(self) -> str:
        from dm_env_rpc_client.displays.connections import show_connection

        return show_connection(self)

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
        """`send`, with the answer passed through `interpret` in the order of answers.

        Args:
          request: as for `send`.
          interpret: makes the result of the answer; None for the answer itself.
          timeout: as for `send`.

        Returns:
          What `interpret` makes. Raises as `send` does.
        """
        return await self.wait(await self.start(request, interpret, timeout))

    async def start(
        self,
        request: envelopes.Outgoing,
        interpret: Callable[[Any], Any] | None = None,
        timeout: float | None = None,
    ) -> Pending:
        """Puts a request in flight; waits only while very much is in flight already.

        Args:
          request: as for `send`, or already encoded.
          interpret: makes the result of the answer. Called in the order of the answers.
          timeout: seconds that the answer may take; None for `request_timeout`.

        Returns:
          What `wait` takes. A request that nobody waits for is answered all the same.

        Raises:
          As `send`, where nothing can be sent.
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
          What `send` returns, or what `interpret` made of it. Raises as `send` does; a wait
          that is cancelled ends the connection.
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

    async def close(self) -> None:
        """Closes the connection; a second time does nothing.

        Requests in flight fail with ConnectionClosedError. The server gets up to a
        second to end the stream. Raises nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        # Answers that are under way are nobody's any more.
        is_idle = self.is_usable and not len(self._pipeline)
        self._poison(ConnectionClosedError(f"the connection to {self.address} was closed"), is_idle)
        tasks = [task for task in (self._writer, self._reader) if task is not None]
        # A cancelled task holds its frames, and they this connection and its socket.
        self._writer = self._reader = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._stream.close(CLOSE_SECONDS if is_idle else 0.0)

    def _push(self, pending: Pending) -> None:
        """Puts a request in flight; no coroutine comes between the order and the writing."""
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
        # Nothing was awaited since the queue was seen empty, so the next push starts anew.
        self._writer = None

    async def _read(self) -> None:
        """Gives answers to their requests for as long as there is a stream."""
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
        """Wakes the first in line, who wakes the next once it is through."""
        while self._line and self._pipeline.has_room(0):
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _expire(self, pending: Pending) -> None:
        late = DeadlineExceededError(
            f"the server at {self.address} did not answer a {pending.field} request in time"
        )
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
    credentials: conditions.Credentials | None = None,
    insecure: bool = False,
    metadata: conditions.Metadata | None = None,
    transport: Transport = "auto",
) -> AsyncConnection:
    """`connect` for asyncio; arguments and errors are the same."""
    stream = await open_aio_stream(
        address, timeout, credentials, insecure, metadata, transport, answer_memory
    )
    return AsyncConnection(stream, request_timeout=request_timeout)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
