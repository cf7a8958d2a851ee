"""Assemble the messages of one stream from the content of its DATA frames.

Each message has a prefix of five bytes: a compression flag and the length of the message
("gRPC over HTTP/2"). The boundaries of frames and messages are independent.
"""

from __future__ import annotations

from typing import Any, Protocol

from dm_env_rpc_client.transports.http2.protocol.frames import MESSAGE_PREFIX, RefusedMessageError
from dm_env_rpc_client.transports.streams import Allocate

_PREFIX_BYTES = 5

EXPECTED_BYTES = 1 << 16
"""The minimum size, in bytes, of a message after which the next one is expected to have the same
size. Receiving a smaller one in place takes longer than copying it."""


_SHORTEST_REST, _LONGEST_REST = 16, 1 << 12
"""The minimum and maximum number of messages for which none is expected after something else has
come. Each rest is twice as long as the one before, unless an expected message has come since."""


class Inbox(Protocol):
    """The consumer of a stream's messages."""

    def append(self, message: bytearray | memoryview, /) -> None:
        """Accept a message."""


class MessageAssembler:
    """An assembler of the messages of one stream.

    Args:
      max_message_bytes: the size limit of a message, in bytes.
      allocate: a function that returns memory for a message that is only partly in the receive
        buffer. The decoder of the messages determines how their contents should be aligned.
      window: the number of bytes of content that the peer can send before the window is opened
        again.
      messages: the inbox that receives complete messages, oldest first, each in separate memory.

    Attributes:
      messages: the inbox that receives complete messages.
      window: the number of bytes of content that the peer can send before the window is opened
        again.
      unacknowledged: the number of bytes of content since the window was last opened.
      partial: the memory of a partly received message, or None between two messages.
      prefix: the received part of an incomplete prefix.
      expected: the size of the last message if it was large and in a single frame, like the next
        one in all likelihood; otherwise 0.
      frame_bytes: the size of the frame that began the message, or 0 if it continues in others.
      is_held: whether the window stays closed because messages wait to be answered.
    """

    __slots__ = (
        "_allocate",
        "_filled",
        "_max_message_bytes",
        "_next_rest",
        "_rest",
        "expected",
        "frame_bytes",
        "is_held",
        "messages",
        "partial",
        "prefix",
        "unacknowledged",
        "window",
    )

    def __init__(
        self,
        max_message_bytes: int,
        allocate: Allocate,
        window: int,
        messages: Inbox,
    ):
        self.messages = messages
        self.window = window
        self.unacknowledged = self.expected = self.frame_bytes = 0
        self._rest, self._next_rest = 0, _SHORTEST_REST
        self.is_held = False
        self._max_message_bytes = max_message_bytes
        self._allocate = allocate
        self.prefix = b""
        self.partial: memoryview | None = None
        self._filled = 0

    @property
    def is_in_message(self) -> bool:
        """Whether a message has begun but is not complete."""
        return self.partial is not None or bool(self.prefix)

    def fits(self, size: int) -> bool:
        """Return whether a message of the given size, in bytes, is allowed."""
        return size <= self._max_message_bytes

    def take_whole(self, memory: memoryview, start: int, size: int) -> bool:
        """Accept the content of a frame if, as usual, it is exactly one message.

        Args:
          memory: the memory that contains the content.
          start: the index at which the content begins.
          size: the length of the content, at least that of a prefix.

        Returns:
          Whether the content was accepted. If it was not, nothing has changed.
        """
        compressed, length = MESSAGE_PREFIX.unpack_from(memory, start)
        if (
            # All other cases are left to `take`, which raises the errors.
            length != size - _PREFIX_BYTES
            or compressed
            or self.partial is not None
            or self.prefix
            or length > self._max_message_bytes
        ):
            return False
        self.messages.append(bytearray(memory[start + _PREFIX_BYTES : start + size]))
        if length >= EXPECTED_BYTES:
            self.expect(length)
        return True

    def take(self, memory: memoryview, start: int, stop: int) -> None:
        """Accept the content in `memory` from `start` to `stop`.

        Raises:
          RefusedMessageError: a message is compressed or too large.
        """
        while start < stop:
            if self.partial is not None:
                count = min(stop - start, len(self.partial) - self._filled)
                self.partial[self._filled : self._filled + count] = memory[start : start + count]
                self.filled(count)
                start += count
                continue
            # Five bytes may come in five frames: the parts are collected.
            if self.prefix or stop - start < _PREFIX_BYTES:
                taken = bytes(memory[start : min(stop, start + _PREFIX_BYTES - len(self.prefix))])
                start += len(taken)
                self.prefix += taken
                if len(self.prefix) < _PREFIX_BYTES:
                    return
                compressed, size = MESSAGE_PREFIX.unpack(self.prefix)
                self.prefix = b""
            else:
                compressed, size = MESSAGE_PREFIX.unpack_from(memory, start)
                start += _PREFIX_BYTES
            # Before memory is allocated: the size is the peer's claim.
            self._check(compressed, size)
            if stop - start >= size:
                self.messages.append(bytearray(memory[start : start + size]))
                start += size
            else:
                # In separate memory, so that the rest is received in place.
                self.partial = self._allocate(size)
                self._filled = 0

    def direct(self, most: int) -> memoryview | None:
        """Return memory into which the next content can be received without a copy.

        Args:
          most: the number of bytes of content that come next.

        Returns:
          The memory of the partly received message, or None if no message has begun. The caller
          reports the bytes put into this memory to `filled`.
        """
        if self.partial is None:
            return None
        return self.partial[self._filled : self._filled + most]

    def filled(self, count: int) -> None:
        """Report that `count` bytes of content were put into the memory returned by `direct`."""
        message = self.partial
        assert message is not None
        self._filled += count
        # Complete messages are handed on at once; `partial` is for one message.
        if self._filled == len(message):
            self.messages.append(message)
            self.partial = None
            is_single = self.frame_bytes == len(message) + _PREFIX_BYTES
            self.expect(len(message) if is_single else 0)

    def expect(self, size: int) -> None:
        """Expect a message of `size` bytes, unless it is small or this stream rests."""
        self.expected = size if size >= EXPECTED_BYTES and not self._rest else 0
        if self._rest:
            self._rest -= 1

    def surprised(self) -> None:
        """Expect nothing for a while, because something else came than expected.

        What comes instead is copied. Some servers send a WINDOW_UPDATE before each answer.
        """
        self.expected, self._rest = 0, self._next_rest
        self._next_rest = min(2 * self._next_rest, _LONGEST_REST)

    def confirmed(self) -> None:
        """Record that the expected message has come."""
        self._next_rest = _SHORTEST_REST

    def memory(self) -> memoryview:
        """Return memory for the message that is expected."""
        return self._allocate(self.expected)

    def continue_in(self, memory: memoryview, count: int) -> None:
        """Continue a message whose first `count` bytes are in `memory`, which has its size."""
        self.partial, self._filled = memory, count
        self.frame_bytes = len(memory) + _PREFIX_BYTES
        self.filled(0)

    def _check(self, compressed: int, size: int) -> None:
        # No compression was offered (grpc-accept-encoding), and a decompressor is a memory bomb.
        if compressed:
            raise RefusedMessageError(
                "UNIMPLEMENTED",
                "sent a compressed message, although compression is not supported; turn off "
                "compression in the sender",
            )
        if size > self._max_message_bytes:
            raise RefusedMessageError(
                "RESOURCE_EXHAUSTED",
                f"sent a message of {size} bytes; at most {self._max_message_bytes} are allowed",
            )


class CountedAssembler(MessageAssembler):
    """An assembler for requests that, unlike gRPC requests, announce their length."""

    def __init__(self, length: int, *arguments: Any):
        super().__init__(*arguments)
        self.missing = length

    def fits(self, size: int) -> bool:
        return False

    def take_whole(self, memory: memoryview, start: int, size: int) -> bool:
        return False

    def take(self, memory: memoryview, start: int, stop: int) -> None:
        self.missing -= stop - start
        super().take(memory, start, stop)

    def direct(self, most: int) -> memoryview | None:
        return None
