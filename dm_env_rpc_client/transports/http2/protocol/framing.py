"""The HTTP/2 framing of a connection, for the client's or the server's half, without I/O.

The caller, which does the I/O, receives bytes into `buffers` and reports their number to
`received`. Each stream's assembler delivers its messages. The caller sends the contents of
`outbound` and reports the number of sent bytes to `sent`. A `Role` implements what differs between
clients and servers. Section numbers refer to RFC 9113 (HTTP/2).

Received bytes are not copied. A partly received message has its own memory, which `buffers`
returns first. A large message therefore goes directly from the kernel to the memory that the
application uses. A step with a 1080p frame takes 0.9 to 1.1x the time of a plain TCP transfer of
the same number of bytes (`python -m tests.benchmarks --only waiting`).

The client's windows for received content have the maximum size. The client's memory stays bounded
because the client does not read the socket while no thread waits for an answer. A server reads for
all streams of a connection, so each stream has its own window. A stream's window stays closed
while messages of the stream wait to be answered.
"""

from __future__ import annotations

import mmap
import sys
import weakref

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.control_frames import (
    HANDLERS,
    MAX_HEADER_BYTES,
    STREAM,
    ControlFrames,
)
from dm_env_rpc_client.transports.http2.protocol.frames import (
    CONTINUATION,
    DATA,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_HEADER,
    FRAME_SIZE_ERROR,
    NUMBER,
    WINDOW_UPDATE,
    RefusedMessageError,
    Role,
    ViolationError,
)
from dm_env_rpc_client.transports.http2.protocol.message_assembler import MessageAssembler
from dm_env_rpc_client.transports.http2.protocol.send_queue import SendingStream, SendQueue

_MAX_FRAMES_WITHOUT_CONTENT = 100_000
"""The maximum number of frames without content between two frames with content. Each KiB of a
skipped frame counts as one more frame. A peer that receives a 64 MiB request sends up to 8,192
WINDOW_UPDATE frames and an occasional PING."""

_SUSPICIOUS = 256
_MODEST = 1 << 12
"""The number of bytes received at a time after 256 frames without content. Parsing such frames
costs far more than parsing content, and a server's other connections have to wait."""

_MAX_CONTROL_FRAME = (1 << 16) - 1024
"""The maximum payload, in bytes, of a frame other than DATA. Such a frame is parsed as a whole."""

_BUFFER_BYTES = 1 << 18
"""The size of the receive buffer, in bytes, which is large enough for many answers at once."""


class ReceiveBuffer:
    """A receive buffer; its bytes from `start` to `end` have been received but not parsed.

    Once all received bytes have been parsed, the buffer is filled from its beginning again.
    Therefore, bytes are moved only when the end of the buffer cuts a frame.

    Args:
      size: the size of the buffer, in bytes. Pages that were never used take up no memory.

    Attributes:
      memory: the whole buffer.
      start: the index of the next byte to parse.
      end: the index at which the next received byte is stored.
    """

    __slots__ = ("end", "memory", "start")

    def __init__(self, size: int):
        self.memory = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        self.start = self.end = 0

    def compact(self, room: int) -> None:
        """Make room for `room` bytes after `start`, and for at least one byte after `end`."""
        if self.start == self.end:
            self.start = self.end = 0
        elif len(self.memory) - self.start < room or self.end == len(self.memory):
            # A copy first: the two ranges may overlap.
            rest = bytes(self.memory[self.start : self.end])
            self.memory[: len(rest)] = rest
            self.start, self.end = 0, len(rest)


class Framing:
    """The state of an HTTP/2 connection.

    Args:
      role: the client's or the server's half.
      greeting: the first bytes that this end sends.
      window: the number of bytes of content that the peer can send on the connection before the
        window is opened again. The window is opened again when half of it is used.
      preface: the bytes that the peer sends before its first frame.
      max_header_bytes: the size limit of a header block.
      buffer_bytes: the number of bytes received at a time, except for large messages.
      frames_at_once: the number of frames parsed before other connections are served.

    Attributes:
      sending: the send queue.
      receiving: the assemblers of the streams that can receive content, by stream number.
      failure: the error that ended the connection, or None while it can still receive.
      control: the handlers for all of the peer's frames except DATA.
      is_behind: whether received bytes are left unparsed after `frames_at_once` frames. The caller
        must call `go_on` before it receives more.
      is_between_frames: whether all received bytes are parsed, no frame has begun, and the
        connection is in its usual state.
      has_timed_out: whether the kernel has ended the connection because the machine of the peer is
        unreachable.
      memory: the memory for received bytes while `is_between_frames`, equal to that of `buffers`.
    """

    def __init__(
        self,
        role: Role,
        greeting: bytes,
        window: int = frames.MAX_WINDOW,
        preface: bytes = b"",
        max_header_bytes: int = MAX_HEADER_BYTES,
        buffer_bytes: int = _BUFFER_BYTES,
        frames_at_once: int = sys.maxsize,
    ):
        self.sending = SendQueue()
        self.sending.outbound.append(greeting)
        self.receiving: dict[int, MessageAssembler] = {}
        self.failure: DmEnvRpcClientError | None = None
        self.is_behind = False
        self._receptions = 0
        self.has_timed_out = False
        # The role holds this. Without a circle, what is left of a connection is freed at once, and
        # clients that come and go fill no memory until the garbage collector looks.
        self._role: Role = weakref.proxy(role)
        self.control = ControlFrames(
            self._role, self.sending, self.receiving, max_header_bytes, frames_at_once
        )
        self._headers = self.control.headers
        self._frames_at_once = frames_at_once
        self._buffer = ReceiveBuffer(buffer_bytes)
        # The DATA frame that is being received: its stream, None if the content is dropped.
        self._content: MessageAssembler | None = None
        self._content_stream = 0
        self._content_left = 0
        self._content_ends_stream = False
        self._skipped_left = 0
        self._direct = 0
        self._window = window
        self._unacknowledged = 0
        self._preface = preface
        self._frames_without_content = 0
        self.is_between_frames = False
        self.memory = [self._buffer.memory]

    @property
    def receptions(self) -> int:
        """A number that grows whenever bytes are received."""
        return self._receptions

    def open(self, stream: int, assembler: MessageAssembler | None) -> SendingStream:
        """Open a stream for sending, and also for receiving if an assembler is given."""
        if assembler is not None:
            self.receiving[stream] = assembler
        return self.sending.open(stream)

    def drop(self, stream: int) -> None:
        """Remove a stream: send nothing more on the stream, and discard its received content."""
        self.sending.drop(stream)
        self.drop_content(stream)

    def drop_content(self, stream: int) -> None:
        """Discard further messages received on a stream; it can still be used for sending."""
        assembler = self.receiving.pop(stream, None)
        if assembler is not None and assembler is self._content:
            self._content = None

    def replenish(self, frames: int) -> None:
        """Reduce the count of frames without content by `frames`, as time passes."""
        self._frames_without_content = max(0, self._frames_without_content - frames)

    def probe(self) -> None:
        """Queue a frame that the peer, if it is alive, acknowledges immediately.

        The frame is an empty SETTINGS frame, which changes nothing. A gRPC server that sends no
        data ends the connection with ENHANCE_YOUR_CALM after the third PING, but does not count
        SETTINGS frames.
        """
        self.sending.outbound.append(frames.settings_frame({}))

    def buffers(self) -> list[memoryview]:
        """Return the memory areas to fill, in order, with the next received bytes."""
        buffer = self._buffer
        rest = buffer.memory[buffer.end :]
        self._direct = 0
        # See `_MODEST`.
        if self._frames_without_content > _SUSPICIOUS:
            return [rest[:_MODEST]]
        # The rest of a large message is received where it belongs, without a copy; what follows
        # goes to the buffer.
        if self._content_left and self._content is not None and buffer.start == buffer.end:
            direct = self._content.direct(self._content_left)
            if direct is not None:
                self._direct = len(direct)
                return [direct, rest]
        return [rest]

    def received(self, count: int) -> None:
        """Parse `count` bytes that were put into `buffers`; 0 means the end of the connection."""
        self.is_between_frames = False
        if self.failure is not None:
            return
        buffer = self._buffer
        if count == 0:
            self.fail(self._role.close(bytes(buffer.memory[buffer.start : buffer.end])))
            return
        self._receptions += 1
        direct = self._direct
        if direct:
            self._direct = 0
            taken = direct if count > direct else count
            # Another thread may have ended the stream in between.
            if self._content is not None:
                self._content.filled(taken)
            self._content_left -= taken
            buffer.end += count - taken
        else:
            buffer.end += count
        self.go_on()

    def go_on(self) -> None:
        """Parse the received bytes."""
        self.is_behind = False
        self.control.left_at_once = self._frames_at_once
        while self.failure is None:
            try:
                self._parse()
                return
            except (ViolationError, DmEnvRpcClientError) as error:
                self._end_by(error)

    def _end_by(self, error: ViolationError | DmEnvRpcClientError) -> None:
        """End the stream or the connection to which an error applies."""
        if not isinstance(error, ViolationError):
            self.fail(error)
        # Section 5.4.2: a stream error leaves the other streams alone.
        elif error.stream:
            self.sending.outbound.append(frames.rst_stream(error.stream, error.code))
            self._role.break_stream(error)
            # So that the same frame again does not keep `go_on` going.
            self._frames_without_content += 1
        else:
            self.fail(self._role.violated(error))
            self.sending.outbound.append(frames.goaway(self._role.last_stream, error.code))

    def fail(self, error: DmEnvRpcClientError) -> None:
        """End the connection with an error, after which nothing more is received."""
        self.failure = error
        self.is_between_frames = False
        self._role.fail(error)

    # Frames.

    def _parse(self) -> None:
        buffer, control = self._buffer, self.control
        if self._frames_without_content > _MAX_FRAMES_WITHOUT_CONTENT:
            raise ViolationError(
                f"sent more than {_MAX_FRAMES_WITHOUT_CONTENT} frames without content",
                ENHANCE_YOUR_CALM,
            )
        if self._preface and not self._take_preface():
            return
        memory = buffer.memory
        unpack_header = FRAME_HEADER.unpack_from
        left_at_once = control.left_at_once
        while True:
            left_at_once -= 1
            if left_at_once < 0:
                self.is_behind = True
                return
            if self._content_left or self._skipped_left or self._content_ends_stream:
                if not self._continue_content():
                    break
                continue
            start = buffer.start
            left = buffer.end - start - 9
            if left < 0:
                break
            high, low, kind, flags, stream = unpack_header(memory, start)
            size = high << 8 | low
            if kind == DATA and not flags and 5 <= size <= left and not self._headers.is_open:
                # Most frames are one message, which is there as a whole.
                assembler = self.receiving.get(stream)
                if assembler is not None and assembler.take_whole(memory, start + 9, size):
                    buffer.start = start + 9 + size
                    self._frames_without_content = 0
                    self._unacknowledged += size
                    assembler.unacknowledged += size
                    if (
                        self._unacknowledged << 1 >= self._window
                        or assembler.unacknowledged << 1 >= assembler.window
                    ):
                        self._open_windows(stream, assembler)
                    continue
            elif kind == WINDOW_UPDATE and size == 4 <= left and not self._headers.is_open:
                # Many servers send two with each answer.
                number = stream & STREAM
                if number in self.receiving or (number == 0 and control.is_ready):
                    buffer.start = start + 13
                    (increment,) = NUMBER.unpack_from(memory, start + 9)
                    self._frames_without_content += 1
                    self.sending.open_window(number, increment & STREAM)
                    continue
            # What costs more counts more; also if the frame ends its stream, by an exception.
            control.left_at_once = left_at_once
            if not self._begin_frame(size, kind, flags, stream & STREAM):
                break
            left_at_once = control.left_at_once
        if buffer.start == buffer.end:
            buffer.start = buffer.end = 0  # `compact`, without the call.
            self.is_between_frames = (
                not (self._content_left or self._skipped_left or self._content_ends_stream)
                and not self._headers.is_open
                and self.failure is None
                and control.is_ready
                and self._frames_without_content <= _SUSPICIOUS
            )
        else:
            buffer.compact(9 + _MAX_CONTROL_FRAME)

    def _take_preface(self) -> bool:
        """Parse the connection preface (section 3.4), or return False if it is incomplete."""
        buffer = self._buffer
        first = bytes(buffer.memory[buffer.start : buffer.end])
        size = len(self._preface)
        if not first.startswith(self._preface[: len(first)]) and first[:size] != self._preface:
            self._role.begin(first[:60])
        if len(first) < size:
            return False
        buffer.start += size
        self._preface = b""
        return True

    def _begin_frame(self, size: int, kind: int, flags: int, stream: int) -> bool:
        """Parse a frame or its beginning, or return False if more bytes are needed."""
        buffer = self._buffer
        start, end = buffer.start, buffer.end
        if not self.control.is_ready and kind != frames.SETTINGS:
            self._role.begin(bytes(buffer.memory[start : min(end, start + 60)]))
        if self._headers.is_open and kind != CONTINUATION:
            raise ViolationError(f"sent a frame of type {kind} inside a header block")
        if size > frames.LARGEST_FRAME:
            raise ViolationError(
                f"sent a frame of {size} bytes; the limit is {frames.LARGEST_FRAME}",
                FRAME_SIZE_ERROR,
            )
        if kind == DATA:
            return self._begin_content(size, flags, stream)
        handler = HANDLERS.get(kind)
        if handler is None:
            # Types that are not known are skipped (section 5.5).
            self._frames_without_content += 1 + (size >> 10)
            buffer.start = start + 9
            self._skipped_left = size
            return True
        if size > _MAX_CONTROL_FRAME:
            if kind in (frames.HEADERS, CONTINUATION):
                raise ViolationError(
                    f"sent {size} bytes of headers in one frame; the limit is {_MAX_CONTROL_FRAME}",
                    ENHANCE_YOUR_CALM,
                )
            raise ViolationError(
                f"sent a frame of type {kind} with {size} bytes; the limit is {_MAX_CONTROL_FRAME}",
                FRAME_SIZE_ERROR,
            )
        if end - start < 9 + size:
            return False
        self._frames_without_content += 1
        buffer.start = start + 9 + size
        handler(self.control, flags, stream, buffer.memory[start + 9 : buffer.start])
        return True

    def _begin_content(self, size: int, flags: int, stream: int) -> bool:
        """Begin a DATA frame (section 6.1)."""
        buffer = self._buffer
        body = buffer.start + 9
        padding = 0
        if flags & frames.PADDED:
            if size and buffer.end == body:
                return False
            padding = 1 + buffer.memory[body] if size else 1
            if padding > size:
                raise ViolationError(
                    f"sent {size} bytes of DATA, too few for {padding - 1} bytes of padding"
                )
            body += 1
        assembler = self.receiving.get(stream)
        if assembler is None:
            self._role.check_stream(stream, "DATA")
        if size > padding and assembler is not None:
            self._frames_without_content = 0
        else:
            self._frames_without_content += 1 + (size >> 10)
        buffer.start = body
        self._content = assembler
        self._content_stream = stream
        self._content_left = size - padding
        self._content_ends_stream = bool(flags & frames.END_STREAM)
        self._skipped_left = max(0, padding - 1)
        self._unacknowledged += size
        if assembler is not None:
            assembler.unacknowledged += size
            assembler.frame_bytes = 0 if assembler.partial is not None else size
        self._open_windows(stream, assembler)
        return True

    def _continue_content(self) -> bool:
        """Continue to parse a DATA frame or to skip a frame."""
        buffer = self._buffer
        start = buffer.start
        if self._content_left:
            stop = min(buffer.end, start + self._content_left)
            if start == stop:
                return False
            self._content_left -= stop - start
            buffer.start = stop
            if self._content is not None:
                try:
                    self._content.take(buffer.memory, start, stop)
                except RefusedMessageError as error:
                    self._role.refuse_message(self._content_stream, error)
        elif self._skipped_left:
            stop = min(buffer.end, start + self._skipped_left)
            if start == stop:
                return False
            self._skipped_left -= stop - start
            buffer.start = stop
        else:
            self._content_ends_stream = False
            if self._content is not None:
                self._role.end_content(self._content_stream)
        return True

    def _open_windows(self, stream: int, assembler: MessageAssembler | None) -> None:
        """Reopen the windows for content before they are used up (section 5.2)."""
        if self._unacknowledged << 1 >= self._window:
            if self._unacknowledged > self._window:
                raise ViolationError(
                    "sent more content than the connection's window allows", FLOW_CONTROL_ERROR
                )
            self.sending.outbound.append(frames.window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        if assembler is not None and assembler.unacknowledged << 1 >= assembler.window:
            if assembler.unacknowledged > assembler.window:
                raise ViolationError(
                    "sent more content than the stream's window allows", FLOW_CONTROL_ERROR, stream
                )
            if not assembler.is_held:
                self.acknowledge(stream, assembler)

    def acknowledge(self, stream: int, assembler: MessageAssembler) -> None:
        """Reopen the window of a stream if at least half of the window has been used."""
        if assembler.unacknowledged << 1 >= assembler.window:
            self.sending.outbound.append(frames.window_update(stream, assembler.unacknowledged))
            assembler.unacknowledged = 0
