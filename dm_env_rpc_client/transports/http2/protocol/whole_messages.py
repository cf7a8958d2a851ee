"""Messages that arrive alone, which the framing of a connection accepts without parsing frames.

A step sends one request and receives one answer, usually in one DATA frame and with nothing else.
Such a message is recognized by its headers, and a large one is received where it belongs. Whatever
else arrives is parsed as usual. `python -m tests.benchmarks --only one-core` shows what this saves.
"""

from __future__ import annotations

from dm_env_rpc_client.transports.http2.protocol.frames import (
    DATA,
    FRAME_HEADER,
    MESSAGE_PREFIX,
    ViolationError,
    frame_header,
)
from dm_env_rpc_client.transports.http2.protocol.framing import Framing
from dm_env_rpc_client.transports.http2.protocol.message_assembler import (
    EXPECTED_BYTES,
    MessageAssembler,
)

_FRAME_HEADER_BYTES = FRAME_HEADER.size
_HEAD_BYTES = _FRAME_HEADER_BYTES + MESSAGE_PREFIX.size

_KIND_AT = 3
"""The position of a frame's type in its header (section 4.1)."""


class WholeMessageFraming(Framing):
    """A framing that, between two frames, also accepts a message that was received alone."""

    # The headers of a message in a single frame, cached: most messages have one size.
    _head = b""
    _head_count = -1

    # The stream's assembler, the bytes of content that `whole` may still accept before it looks at
    # the windows, and those that it has accepted but not counted in the windows yet.
    _whole: MessageAssembler | None = None
    _whole_left = 0
    _whole_bytes = 0

    _expected: tuple[memoryview, int, MessageAssembler] | None = None

    @property
    def receptions(self) -> int:
        return self._receptions + self._whole_bytes

    def drop_content(self, stream: int) -> None:
        self._count_whole()
        super().drop_content(stream)

    def acknowledge(self, stream: int, assembler: MessageAssembler) -> None:
        self._count_whole()
        super().acknowledge(stream, assembler)

    def received(self, count: int) -> None:
        if self._expected is not None:
            self._received_expected(count)
            return
        if self._whole is not None:
            self._count_whole()
        super().received(count)

    def whole(self, count: int, stream: int, assembler: MessageAssembler) -> memoryview | None:
        """Accept the received bytes if, as usual, they are one message in one frame.

        Args:
          count: the number of bytes that were put into `memory` while `is_between_frames`.
          stream: the number of the only stream that is likely to have received a message.
          assembler: the assembler of the stream.

        Returns:
          The message, to be copied before more bytes are received, or None if `received` must
          process the bytes.
        """
        memory = self._buffer.memory
        bytes_so_far = self._whole_bytes + count
        if (
            count != self._head_count
            or bytes_so_far > self._whole_left
            or memory[:_HEAD_BYTES] != self._head
        ):
            if not self._prepare_whole(count, stream, assembler):
                return None
            bytes_so_far = count
        self._whole_bytes = bytes_so_far - _FRAME_HEADER_BYTES
        return memory[_HEAD_BYTES:count]

    def expect(self, stream: int, assembler: MessageAssembler) -> list[memoryview]:
        """Return memory areas for a message of a stream whose size is `assembler.expected`.

        Call this only while `is_between_frames`. If the message comes, it is received where it
        belongs. Whatever comes instead is copied by `received`.
        """
        self._expected = memory, _, _ = assembler.memory(), stream, assembler
        own = self._buffer.memory
        return [own[:_HEAD_BYTES], memory, own[_HEAD_BYTES:]]

    def expected(self, count: int) -> memoryview | None:
        """Return the expected message if it has been received, and nothing else.

        Args:
          count: the number of bytes that were put into the result of `expect`. If the result is
            None, `received` must process the bytes.
        """
        assert self._expected is not None
        memory, stream, assembler = self._expected
        if count != _HEAD_BYTES + len(memory) or not self._prepare_whole(count, stream, assembler):
            return None
        self._expected = None
        self._whole_bytes = count - _FRAME_HEADER_BYTES
        assembler.confirmed()
        return memory

    def _received_expected(self, count: int) -> None:
        """Parse bytes that were put into the result of `expect`."""
        assert self._expected is not None
        self.is_between_frames = False
        (memory, stream, assembler), self._expected = self._expected, None
        size, own = len(memory), self._buffer
        head, content = min(count, _HEAD_BYTES), min(max(0, count - _HEAD_BYTES), size)
        rest = count - head - content
        if head == _HEAD_BYTES and self._is_whole(_HEAD_BYTES + size, stream, assembler):
            # The beginning, or the whole, of the message; from here on as in `_begin_content`.
            self._count_whole()
            assembler.unacknowledged += size + MESSAGE_PREFIX.size
            self._unacknowledged += size + MESSAGE_PREFIX.size
            self._content, self._content_stream = assembler, stream
            self._content_left = size - content
            assembler.continue_in(memory, content)
            own.start, own.end = _HEAD_BYTES, _HEAD_BYTES + rest
            self._receptions += 1
            self._frames_without_content = 0
            try:
                self._open_windows(stream, assembler)
            except ViolationError as error:
                self._end_by(error)
            self.go_on()
            return
        assembler.surprised()
        other = bytes(own.memory[:head]) + bytes(memory[:content])
        other += bytes(own.memory[_HEAD_BYTES : _HEAD_BYTES + rest])
        if not other:
            self.received(0)
        while other and self.failure is None:
            taken = 0
            for area in self.buffers():
                part = other[taken : taken + len(area)]
                area[: len(part)] = part
                taken += len(part)
            other = other[taken:]
            self.received(taken)

    def _prepare_whole(self, count: int, stream: int, assembler: MessageAssembler) -> bool:
        """Prepare `whole` for messages of this size, and return whether the windows permit one."""
        if self._buffer.memory[_KIND_AT] != DATA:
            return False  # As with servers that send a WINDOW_UPDATE before each answer.
        self._count_whole()
        size = count - _FRAME_HEADER_BYTES
        # The windows are opened by `received`, which has the errors of that, too.
        left = min(
            self._window - 2 * self._unacknowledged,
            assembler.window - 2 * assembler.unacknowledged,
        )
        if 2 * size >= left or not self._is_whole(count, stream, assembler):
            return False
        self._whole, self._whole_left = assembler, (left - 1) // 2
        return True

    def _is_whole(self, count: int, stream: int, assembler: MessageAssembler) -> bool:
        """Return whether a message in one frame begins, and remember its headers if it is small."""
        if self.receiving.get(stream) is not assembler or assembler.is_in_message:
            return False  # The stream has ended, or continues a message.
        memory, size = self._buffer.memory, count - _HEAD_BYTES
        if size < 0 or not assembler.fits(size):
            return False
        total = size + MESSAGE_PREFIX.size
        head = frame_header(total, DATA, 0, stream) + MESSAGE_PREFIX.pack(0, size)
        if memory[:_HEAD_BYTES] != head:
            return False
        if size >= EXPECTED_BYTES:
            assembler.expect(size)
        else:
            self._head, self._head_count = head, count
        return True

    def _count_whole(self) -> None:
        """Count the content that `whole` has accepted, before the windows are looked at."""
        size, self._whole_bytes, self._whole_left = self._whole_bytes, 0, 0
        if self._whole is not None:
            self._receptions += size
            self._unacknowledged += size
            self._whole.unacknowledged += size
            self._whole = None
