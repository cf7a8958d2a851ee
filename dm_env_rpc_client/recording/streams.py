"""Streams that record what passes another stream.

A pipeline does not see a difference. Without `record` none of this is there, so that it costs
nothing.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Callable

from dm_env_rpc_client.recording.connection_recording import ConnectionRecording
from dm_env_rpc_client.transports.streams import AsyncStream, Buffer, Stream

_FULL_SECONDS = 0.01
"""How often the event loop looks whether the disk has caught up."""


class _Recorded:
    """What both have in common: their ends.

    Args:
      stream: the other stream.
      recording: the recording.
    """

    def __init__(self, stream: Stream | AsyncStream, recording: ConnectionRecording):
        self.address = stream.address
        self._recording = recording
        self._abandon = stream.abandon
        self._abort = stream.abort

    def abandon(self) -> None:
        """Abandons the stream and the recording, in a forked child."""
        self._recording.abandon()
        self._abandon()

    def abort(self) -> None:
        """Ends the stream and its recording at once."""
        try:
            self._abort()
        finally:
            self._recording.end()


class RecordedStream(_Recorded):
    """A `Stream` that records what passes another one.

    Args:
      stream: the other.
      recording: the recording.
    """

    def __init__(self, stream: Stream, recording: ConnectionRecording):
        super().__init__(stream, recording)
        self._stream = stream
        self.fileno = stream.fileno
        self.has_unread = stream.has_unread
        self.shared_socket = stream.shared_socket
        self.has_unsent = stream.has_unsent
        self.send_rest = stream.send_rest
        self.finish = stream.finish

    def write(self, *messages: bytes) -> bool:
        """Records messages and sends them together."""
        for message in messages:
            self._recording.request(message)
        return self._stream.write(*messages)

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        """Returns the next message, recorded; None if none came in time."""
        message = self._stream.read(timeout, until_sent)
        if message is not None:
            self._recording.answer(message)
        return message

    def close(self, timeout: float) -> None:
        """Closes the stream and ends its recording."""
        try:
            self._stream.close(timeout)
        finally:
            self._recording.end()


class AsyncRecordedStream(_Recorded):
    """An `AsyncStream` that records what passes another one.

    While the disk is behind, messages wait here and there, and the event loop goes on.

    Args:
      stream: the other.
      recording: the recording.
    """

    def __init__(self, stream: AsyncStream, recording: ConnectionRecording):
        super().__init__(stream, recording)
        self._stream = stream
        self._unwritten: collections.deque[bytes] = collections.deque()
        self._readable: Callable[[], object] | None = None
        self._behind_since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.take_arrived = stream.take_arrived

    def begin(self, readable: Callable[[], object], is_awaited: Callable[[], bool]) -> None:
        """Has the event loop read; see `AsyncStream.begin`."""
        self._readable = readable
        self._stream.begin(readable, is_awaited)

    def write(self, message: bytes) -> None:
        """Records a message and sends it."""
        self._unwritten.append(message)
        self._write_waiting()

    def read(self) -> Buffer | None:
        """Returns the next message, recorded; None if there is none, or the disk is behind."""
        if self._is_behind():
            return None
        message = self._stream.read()
        if message is not None:
            self._recording.answer(message, may_block=False)
        return message

    async def close(self, timeout: float) -> None:
        """Closes the stream and ends its recording."""
        self._stop_looking()
        try:
            await self._stream.close(timeout)
        finally:
            self._recording.end()

    def abort(self) -> None:
        """Ends the stream and its recording at once."""
        self._stop_looking()
        super().abort()

    def _write_waiting(self) -> None:
        while self._unwritten and not self._is_behind():
            message = self._unwritten.popleft()
            self._recording.request(message, may_block=False)
            self._stream.write(message)

    def _is_behind(self) -> bool:
        """Whether the disk is behind; has this looked at again in a moment."""
        if self._timer is not None:
            return True
        now = time.monotonic()
        if not self._recording.must_wait(self._behind_since or now):
            self._behind_since = 0.0
            return False
        self._behind_since = self._behind_since or now
        self._timer = asyncio.get_running_loop().call_later(_FULL_SECONDS, self._look)
        return True

    def _look(self) -> None:
        self._timer = None
        self._write_waiting()
        if self._readable is not None:
            self._readable()

    def _stop_looking(self) -> None:
        self._readable = None
        self._unwritten.clear()
        if self._timer is not None:
            self._timer.cancel()
