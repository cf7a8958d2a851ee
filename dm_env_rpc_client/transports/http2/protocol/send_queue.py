"""The send queue of a connection, which obeys the peer's flow-control windows (section 5.2).

The functions of this module never wait. Content that exceeds the windows is kept until the peer
opens them.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import TypeAlias

from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.frames import (
    DATA,
    MAX_WINDOW,
    MESSAGE_PREFIX,
    ViolationError,
    frame_header,
)

COPIED_BYTES = 1 << 13
"""The maximum size, in bytes, of a message copied into one buffer with its frame header."""

Outbound: TypeAlias = bytes | memoryview


class SendQueue:
    """The send queue of a connection, and the windows opened by the peer.

    Attributes:
      outbound: the bytes to send, in order. The caller reports the number of sent bytes to `sent`.
      max_frame: the maximum payload of a frame that the peer accepts, in bytes; see `limit_frames`.
      max_streams: the maximum number of concurrent streams that the peer accepts.
      window: the number of bytes of content that the peer still accepts on the connection.
      initial_window: the number of bytes of content that the peer accepts on a new stream.
      unframed: the number of bytes of content queued until a window opens.
    """

    def __init__(self) -> None:
        self.outbound: collections.deque[Outbound] = collections.deque()
        self.max_frame = frames.SMALLEST_MAX_FRAME
        self.max_streams = MAX_WINDOW
        self.window = frames.FIRST_WINDOW
        self.initial_window = frames.FIRST_WINDOW
        # All that the peer has allowed on the connection, and the content queued in `blocked`.
        self._granted = frames.FIRST_WINDOW
        self.unframed = 0
        self.blocked: dict[int, SendingStream] = {}
        self._streams: dict[int, SendingStream] = {}

    @property
    def has_unsent(self) -> bool:
        """Whether any bytes are unsent because the socket or a window does not accept them."""
        return bool(self.outbound or self.blocked)

    @property
    def submitted(self) -> int:
        """The number of bytes of messages, including prefixes, queued so far."""
        # Derived, because a counter of its own would cost every message an addition.
        return self._granted - self.window + self.unframed

    def limit_frames(self, size: int) -> None:
        """Set `max_frame`, for the next message of each stream, too."""
        self.max_frame = size
        for stream in self._streams.values():
            stream.forget_head()

    def open(self, stream: int) -> SendingStream:
        """Open a stream for sending."""
        opened = self._streams[stream] = SendingStream(self, stream)
        return opened

    def drop(self, stream: int) -> None:
        """Remove a stream and its unsent content."""
        dropped = self._streams.pop(stream, None)
        if dropped is not None:
            dropped.drop()

    def sent(self, count: int) -> None:
        """Remove the first `count` bytes of `outbound`, which have been sent."""
        outbound = self.outbound
        while count:
            first = outbound[0]
            size = len(first)
            if count < size:
                outbound[0] = memoryview(first)[count:]
                return
            outbound.popleft()
            count -= size

    def open_window(self, stream: int, increment: int) -> None:
        """Process a WINDOW_UPDATE frame, which allows more content to be sent (section 6.9).

        Args:
          stream: the number of the stream, or 0 for the connection. Dropped streams are ignored.
          increment: the number of additional bytes.
        """
        own = None if stream == 0 else self._streams.get(stream)
        if not increment:
            raise ViolationError("sent WINDOW_UPDATE with an increment of 0", stream=stream)
        if stream == 0:
            self.window += increment
            self._granted += increment
            is_too_large = self.window > MAX_WINDOW
        elif own is None:
            return
        else:
            own.window += increment
            is_too_large = own.window > MAX_WINDOW
        if is_too_large:
            raise ViolationError(
                f"sent WINDOW_UPDATE with an increment of {increment}, which makes the window too "
                "large",
                frames.FLOW_CONTROL_ERROR,
                stream,
            )
        if stream == 0:
            # Otherwise no stream waits for the window of the connection.
            if self.blocked and self.window - increment <= 0:
                self.frame_content()
        elif own is not None and stream in self.blocked:
            own.advance()

    def set_initial_window(self, size: int) -> None:
        """Change the windows of all streams; a window can become negative (section 6.9.2)."""
        change = size - self.initial_window
        self.initial_window = size
        for stream in self._streams.values():
            stream.window += change
            if stream.window > MAX_WINDOW:
                raise ViolationError(
                    f"set an invalid initial window size of {size}", frames.FLOW_CONTROL_ERROR
                )

    def frame_content(self) -> None:
        """Put content into frames, stream by stream, as the windows and the frame size permit."""
        # One frame for each stream in turn, so that a large message delays no other stream.
        while True:
            has_advanced = False
            for stream in list(self.blocked.values()):
                has_advanced |= stream.frame_some()
                if self.window <= 0 and has_advanced:
                    break
            if not has_advanced or self.window <= 0:
                return


class SendingStream:
    """One stream of a `SendQueue`.

    Attributes:
      window: the number of bytes of content that the peer still accepts on the stream.
    """

    __slots__ = (
        "_end",
        "_has_ended",
        "_head",
        "_head_size",
        "_number",
        "_queue",
        "_unframed",
        "window",
    )

    def __init__(self, queue: SendQueue, number: int):
        self.window = queue.initial_window
        self._queue = queue
        self._number = number
        self._unframed: collections.deque[memoryview] = collections.deque()
        self._end: Callable[[], bytes] | None = None
        self._has_ended = False
        # The headers of a message in a single frame, cached: most messages have one size.
        self._head = b""
        self._head_size = -1

    def send(self, *messages: bytes) -> None:
        """Queue messages to be sent on the stream."""
        outbound = self._queue.outbound
        for message in messages:
            size = len(message)
            head = self.head(size)
            if head is not None:
                if size > COPIED_BYTES:
                    outbound.append(head)
                    outbound.append(message)
                else:
                    outbound.append(head + message)
            elif not self._has_ended:
                self._queue.unframed += size + 5
                self._unframed.append(memoryview(MESSAGE_PREFIX.pack(0, size)))
                self._unframed.append(memoryview(message))
                self.advance()

    def head(self, size: int) -> bytes | None:
        """Return the bytes that precede a single-frame message, and reduce the windows.

        Args:
          size: the size of the message, in bytes.

        Returns:
          The bytes, or None if the windows, the frame size or earlier messages do not permit the
          message to be sent.
        """
        queue = self._queue
        total = size + 5
        if total > queue.window or total > self.window or self._unframed:
            return None
        if size != self._head_size:
            if total > queue.max_frame:
                return None
            prefix = MESSAGE_PREFIX.pack(0, size)
            self._head = frame_header(total, DATA, 0, self._number) + prefix
            self._head_size = size
        queue.window -= total
        self.window -= total
        return self._head

    def forget_head(self) -> None:
        """Forget the cached headers, because the peer has changed its maximum frame size."""
        self._head_size = -1

    def end(self, last: Callable[[], bytes] | None = None) -> None:
        """Queue the frames that end this side's half of the stream, after the queued messages.

        Args:
          last: a function that returns the final frames, or None for an empty DATA frame with
            END_STREAM. It is called once all content is in frames, because header blocks must be
            encoded in the order in which they are sent.
        """
        if self._end is None and not self._has_ended:
            self._end = last or (lambda: frames.frame(DATA, frames.END_STREAM, self._number))
            self.advance()

    def drop(self) -> None:
        """Discard content that is not yet in frames, and any content queued later."""
        self._has_ended = True
        self._unframed.clear()
        self._queue.blocked.pop(self._number, None)
        # So that `send` needs no look at `_has_ended` while the windows are open.
        self.window = -MAX_WINDOW

    def advance(self) -> None:
        """Put as much content into frames as the windows and the frame size permit."""
        self._queue.blocked[self._number] = self
        # The other streams wait for their own windows, or for the same one.
        while self.frame_some():
            pass

    def frame_some(self) -> bool:
        """Put content into one frame if the windows permit it; return whether they did."""
        queue, unframed = self._queue, self._unframed
        has_advanced = False
        room = min(queue.max_frame, queue.window, self.window)
        if unframed and room > 0:
            has_advanced = True
            parts: list[memoryview] = []
            size = 0
            while unframed and size < room:
                first = unframed[0]
                part = first[: room - size]
                size += len(part)
                parts.append(part)
                if len(part) == len(first):
                    unframed.popleft()
                else:
                    unframed[0] = first[len(part) :]
            queue.window -= size
            queue.unframed -= size
            self.window -= size
            queue.outbound.append(frame_header(size, DATA, 0, self._number))
            queue.outbound.extend(parts)
        if not unframed:
            queue.blocked.pop(self._number, None)
            if self._end is not None and not self._has_ended:
                self._has_ended = True
                queue.outbound.append(self._end())
                self._end = None  # It may refer to what refers to this.
        return has_advanced
