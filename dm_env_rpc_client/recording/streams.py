"""Streams that record what passes another stream.

A pipeline does not see a difference. Without `record` none of this is there, so that it costs
nothing.
"""

from __future__ import annotations

import asyncio
import time

from dm_env_rpc_client.recording.connection_recording import ConnectionRecording
from dm_env_rpc_client.transports.streams import AsyncStream, Buffer, Stream

_FULL_SECONDS = 0.01
"""How often a coroutine looks whether the disk has caught up."""


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

    Args:
      stream: the other.
      recording: the recording.
    """

    def __init__(self, stream: AsyncStream, recording: ConnectionRecording):
        super().__init__(stream, recording)
        self._stream = stream

    async def write(self, message: bytes) -> None:
        """Records a message and sends it."""
        await self._wait_for_room()
        self._recording.request(message, may_block=False)
        await self._stream.write(message)

    async def read(self) -> Buffer:
        """Returns the next message, recorded."""
        message = await self._stream.read()
        await self._wait_for_room()
        self._recording.answer(message, may_block=False)
        return message

    async def close(self, timeout: float) -> None:
        """Closes the stream and ends its recording."""
        try:
            await self._stream.close(timeout)
        finally:
            self._recording.end()

    async def _wait_for_room(self) -> None:
        since = time.monotonic()
        while self._recording.must_wait(since):
            await asyncio.sleep(_FULL_SECONDS)
