"""The stream over HTTP/2, for an event loop, which calls when the socket is ready.

It drives the stream of threads and has no HTTP/2 of its own. It does not look for answers before it
waits, as threads do: the loop has others to run. It also reads while no request is pending, so that
the server is never kept from reading requests by answers that nobody waits for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable

from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvRpcClientError,
)
from dm_env_rpc_client.transports.http2.client.keepalive import LOOK_SECONDS
from dm_env_rpc_client.transports.http2.client.stream import Http2Stream
from dm_env_rpc_client.transports.net.waits import IN_LOOP
from dm_env_rpc_client.transports.streams import AsyncStream, Buffer

_MOST_BYTES = 1 << 20
"""How much of a large message is received before the loop goes on with others."""

_PAUSE_BYTES = 64 << 20
"""Answers that wait to be taken; above this the socket is not read until some are."""


class AsyncHttp2Stream(AsyncStream):
    """An `AsyncStream` on a stream of threads; made in the event loop that it belongs to.

    Args:
      stream: an open stream, on a connection of its own.
    """

    def __init__(self, stream: Http2Stream):
        self.address = stream.address
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._readable: Callable[[], object] = _nothing
        self._is_awaited: Callable[[], bool] = bool
        self._is_closed = False
        # Why the stream is not opened again.
        self._failure: DmEnvRpcClientError | None = None
        self._opening: asyncio.Task[None] | None = None
        self._soon: asyncio.Handle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._use()

    def _use(self) -> None:
        """Takes the connection of the stream, which may be another one."""
        self._connection = self._stream.connection
        self._connection.limit_receiving(_MOST_BYTES)
        self._messages = self._stream.call.messages
        self._descriptor = self._connection.fileno()
        self._is_reading = self._is_writing = False
        # Answers that were left after a callback, and their bytes.
        self._left = self._left_bytes = 0

    def begin(self, readable: Callable[[], object], is_awaited: Callable[[], bool]) -> None:
        self._readable = readable
        self._is_awaited = is_awaited
        # The socket does not show what was received with the greeting.
        self._soon = self._loop.call_soon(self._on_readable)

    def write(self, message: bytes) -> None:
        if self._stream.write(message):
            self._follow()
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def take_arrived(self) -> None:
        if self._stream.has_unread():
            self._on_readable()

    def read(self) -> Buffer | None:
        if self._messages:
            message = self._messages.popleft()
            if self._left:
                self._left -= 1
                self._left_bytes -= len(message)
                if not self._is_reading:
                    self._follow()
            return message
        if self._is_closed:
            raise ConnectionClosedError(f"the connection to {self.address} was closed")
        if self._failure is not None:
            raise self._failure
        if self._stream.call.failure is not None and self._opening is None:
            if not self._stream.may_open_again():
                raise self._stream.call.failure
            self._stop_following()
            self._opening = self._loop.create_task(self._open_again())
        return None

    async def close(self, timeout: float) -> None:
        call = self._stream.call
        try:
            if timeout > 0 and not self._is_closed and call.failure is None:
                over = self._loop.create_future()

                def drop() -> None:
                    call.messages.clear()
                    self._left = self._left_bytes = 0
                    if call.failure is not None and not over.done():
                        over.set_result(None)

                self._readable = drop
                self._stream.finish()
                self._on_readable()
                await asyncio.wait((over,), timeout=timeout)
        finally:
            self.abort()

    def abandon(self) -> None:
        self._is_closed = True
        # The selector is shared with the parent. A socket that is closed here is not removed there.
        self._stream.abandon()
        with contextlib.suppress(OSError):
            self._stop_following()

    def abort(self) -> None:
        if self._is_closed:
            return
        self._stop_following()
        self._stream.abort()
        self._is_closed = True
        self._readable = _nothing  # It may refer to what refers to this.
        if not self._loop.is_closed():
            for waiting in (self._soon, self._timer, self._opening):
                if waiting is not None:
                    waiting.cancel()

    def _on_readable(self) -> None:
        """Receives what there is, or a part of it, and has it taken."""
        self._soon = None
        if self._is_closed or self._opening is not None:
            return
        try:
            if self._connection.receive_ready():
                self._soon = self._loop.call_soon(self._on_readable)
            self._readable()
            self._follow()
        except BaseException:
            # An interrupt. The socket does not show again what was received.
            self._soon = self._loop.call_soon(self._on_readable)
            raise

    def _on_writable(self) -> None:
        if self._connection.read_waits_to_write:
            self._on_readable()
        self._connection.uncork()
        self._follow()

    def _follow(self) -> None:
        """Has the loop watch for what the connection waits for, and for nothing else."""
        if self._is_closed or self._opening is not None:
            return
        new = len(self._messages) - self._left
        if new:
            self._left += new
            self._left_bytes += sum(map(len, itertools.islice(reversed(self._messages), new)))
        is_open = self._stream.call.failure is None
        self._watch(
            is_open
            and self._left_bytes <= _PAUSE_BYTES
            and not self._connection.read_waits_to_write,
            is_open and self._connection.wants_to_write,
        )

    def _watch(self, reading: bool, writing: bool) -> None:
        loop, descriptor = self._loop, self._descriptor
        if reading is not self._is_reading:
            if reading:
                loop.add_reader(descriptor, self._on_readable)
            else:
                loop.remove_reader(descriptor)
            self._is_reading = reading
        if writing is not self._is_writing:
            if writing:
                loop.add_writer(descriptor, self._on_writable)
            else:
                loop.remove_writer(descriptor)
            self._is_writing = writing

    def _stop_following(self) -> None:
        if not self._loop.is_closed():
            self._watch(reading=False, writing=False)

    def _look(self) -> None:
        """Sees to it that silence is noticed while an answer is awaited."""
        self._timer = None
        if self._is_closed or not self._is_awaited():
            return
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
        if self._opening is None:
            try:
                self._connection.judge()
            except ConnectionLostError:
                self._readable()  # It reads this error.
            self._follow()

    async def _open_again(self) -> None:
        try:
            await self._stream.open_again(IN_LOOP)
            self._use()
        except DmEnvRpcClientError as error:
            self._failure = error
        self._opening = None
        self._on_readable()


def _nothing() -> None:
    pass
