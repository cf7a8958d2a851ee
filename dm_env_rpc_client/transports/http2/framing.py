"""One gRPC stream on one HTTP/2 connection, the client's half, without I/O.

A shell puts bytes that it has received where `buffers` says and tells `received` how many
they are; whole messages come out in `messages`. It sends what is in `outbound` and tells
`sent`. Section numbers are those of RFC 9113 (HTTP/2); the rest is gRPC over HTTP/2.

Bytes are not moved. A message that is still arriving has memory of its own, which
`buffers` hands out first, so what is large goes from the kernel to where the caller will
use it (a step with a 1080p frame: 0.9 to 1.1x a plain TCP transfer of as many bytes, by
`python -m tests.benchmarks --only waiting`). The memory for all that is small is used from its
beginning again whenever everything in it has been looked at.

The windows for what is received are as large as they can be: what bounds the memory is that
nobody reads from the socket while nobody waits for an answer.
"""

from __future__ import annotations

import collections
import urllib.parse
from collections.abc import Callable, Sequence
from typing import TypeAlias

import hpack
import numpy as np

from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcClientError, ProtocolError
from dm_env_rpc_client.transports.http2.frames import (
    ACK,
    CANCEL,
    CONTINUATION,
    DATA,
    ENABLE_PUSH,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    FRAME_HEADER,
    GOAWAY,
    GOAWAY_HEAD,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LARGEST_FRAME,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_WINDOW,
    MESSAGE_PREFIX,
    NO_ERROR,
    NUMBER,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PROTOCOL_ERROR,
    PUSH_PROMISE,
    RST_STREAM,
    SETTING,
    SETTINGS,
    SMALLEST_MAX_FRAME,
    STREAM,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    header_frames,
)
from dm_env_rpc_client.transports.http2.sending import SendingHalf
from dm_env_rpc_client.transports.status import HTTP2_ERRORS, code_of_http_status, stream_error

__all__ = ["Framing"]

Header: TypeAlias = tuple[str, str | bytes]

_WINDOW_STEP = 1 << 29
"""Bytes after which a window for what is received is opened again."""
_MAX_HEADER_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 18
_MAX_CONTROL_FRAME = (1 << 16) - 1024
"""What frames other than DATA may hold; they are looked at whole."""
_LARGE_BYTES = 1 << 14
"""Messages above this lie in memory that is not cleared first."""
_ALIGNMENT = 16


class Framing(SendingHalf):
    """The state of the connection and of its one stream.

    Args:
      headers: of the request, pseudo-headers first.
      address: what error messages call the server.
      max_message_bytes: the largest message taken.

    Attributes:
      messages: what was received whole, oldest first, each in memory of its own.
      failure: why nothing more will be received; None while something may be.
      is_ready: whether the other end has shown itself to be an HTTP/2 server.
      receptions: how often something was received.
      data_frames: how many frames of content were among it.
    """

    def __init__(self, headers: Sequence[Header], address: str, max_message_bytes: int):
        super().__init__(address)
        self.messages: collections.deque[bytearray | memoryview] = collections.deque()
        self.failure: DmEnvRpcClientError | None = None
        self.is_ready = False
        self.receptions = 0
        self.data_frames = 0
        self._max_message_bytes = max_message_bytes
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._start = self._end = 0
        self._direct = 0
        self._data_left = 0
        self._padding_left = 0
        self._frame_ends_stream = False
        self._prefix = b""
        self._message: memoryview | None = None
        self._filled = 0
        self._unacknowledged = 0
        self._header_block: bytearray | None = None
        self._block_ends_stream = False
        self._has_headers = False
        self._going_away = ""
        self._decoder = hpack.Decoder(_MAX_HEADER_BYTES)
        self._handlers: dict[int, Callable[[int, int, memoryview], None]] = {
            HEADERS: self._on_headers,
            PRIORITY: self._on_nothing,
            RST_STREAM: self._on_rst_stream,
            SETTINGS: self._on_settings,
            PUSH_PROMISE: self._on_push_promise,
            PING: self._on_ping,
            GOAWAY: self._on_goaway,
            WINDOW_UPDATE: self._on_window_update,
            CONTINUATION: self._on_continuation,
        }
        settings = {
            ENABLE_PUSH: 0,
            INITIAL_WINDOW_SIZE: MAX_WINDOW,
            MAX_FRAME_SIZE: LARGEST_FRAME,
            MAX_HEADER_LIST_SIZE: _MAX_HEADER_BYTES,
        }
        block = hpack.Encoder().encode(headers)
        self.outbound.append(
            b"".join(
                (
                    PREFACE,
                    frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*s) for s in settings.items())),
                    frame(WINDOW_UPDATE, 0, 0, NUMBER.pack(MAX_WINDOW - FIRST_WINDOW)),
                    *header_frames(block),
                )
            )
        )

    def cancel(self) -> None:
        """Queues the end of everything."""
        self._unframed.clear()
        if self.failure is None:
            self.outbound.append(frame(RST_STREAM, 0, STREAM, NUMBER.pack(CANCEL)))
        self.outbound.append(frame(GOAWAY, 0, 0, NUMBER.pack(0) + NUMBER.pack(NO_ERROR)))

    # Receiving.

    def buffers(self) -> list[memoryview]:
        """Returns where the next bytes belong, to be filled in this order."""
        rest = self._buffer[self._end :]
        self._direct = 0
        if self._message is not None and self._data_left and self._start == self._end:
            direct = self._message[self._filled : self._filled + self._data_left]
            self._direct = len(direct)
            return [direct, rest]
        return [rest]

    def received(self, count: int) -> None:
        """Takes note of `count` bytes put into `buffers`; 0 is the end of the connection."""
        if self.failure is not None:
            return
        if count == 0:
            self._closed()
            return
        self.receptions += 1
        direct = self._direct
        if direct:
            self._direct = 0
            taken = direct if count > direct else count
            self._filled += taken
            self._data_left -= taken
            self._end += count - taken
            assert self._message is not None
            if self._filled == len(self._message):
                self.messages.append(self._message)
                self._message = None
        else:
            self._end += count
        try:
            self._parse()
        except DmEnvRpcClientError as error:
            self._fail(error)
            self.outbound.append(frame(GOAWAY, 0, 0, NUMBER.pack(0) + NUMBER.pack(PROTOCOL_ERROR)))

    def _parse(self) -> None:
        buffer = self._buffer
        while self.failure is None:
            start, end = self._start, self._end
            if self._data_left:
                stop = min(end, start + self._data_left)
                if start == stop:
                    break
                self._data_left -= stop - start
                self._start = stop
                self._take_data(start, stop)
            elif self._padding_left:
                stop = min(end, start + self._padding_left)
                if start == stop:
                    break
                self._padding_left -= stop - start
                self._start = stop
            elif self._frame_ends_stream:
                raise self._broken("ended the stream without trailers")
            else:
                if end - start < 9:
                    break
                high, low, kind, flags, stream = FRAME_HEADER.unpack_from(buffer, start)
                size = high << 8 | low
                if not self.is_ready and kind != SETTINGS:
                    raise self._no_http2()
                if self._header_block is not None and kind != CONTINUATION:
                    raise self._broken(f"sent frame type {kind} inside a header block")
                if kind == DATA:
                    # Most frames are one message that is there whole, and nothing else.
                    stop = start + 9 + size
                    if 5 <= size <= end - start - 9 and not flags and stream == STREAM:
                        compressed, length = MESSAGE_PREFIX.unpack_from(buffer, start + 9)
                        if (
                            length == size - 5
                            and not compressed
                            and self._message is None
                            and not self._prefix
                            and self._has_headers
                        ):
                            self.messages.append(bytearray(buffer[start + 14 : stop]))
                            self._start = stop
                            self._received_data(size)
                            continue
                    if not self._begin_data(start, size, flags, stream & 0x7FFFFFFF):
                        break
                elif kind == WINDOW_UPDATE and size == 4 and end - start >= 13:
                    # Many servers send two with each answer.
                    (increment,) = NUMBER.unpack_from(buffer, start + 9)
                    self._start = start + 13
                    self._open_window(stream & 0x7FFFFFFF, increment & 0x7FFFFFFF)
                elif kind not in self._handlers:
                    # Types that are not known are skipped (section 5.5).
                    self._start += 9
                    self._padding_left = size
                else:
                    if size > _MAX_CONTROL_FRAME:
                        raise self._broken(f"sent {size} bytes in a frame of type {kind}")
                    if end - start < 9 + size:
                        break
                    self._start = start + 9 + size
                    self._handlers[kind](
                        flags, stream & 0x7FFFFFFF, buffer[start + 9 : self._start]
                    )
        if self._start == self._end:
            self._start = self._end = 0
        elif _BUFFER_BYTES - self._start < 9 + _MAX_CONTROL_FRAME or self._end == _BUFFER_BYTES:
            # The beginning of a frame, which has to be in one piece.
            rest = bytes(buffer[self._start : self._end])
            buffer[: len(rest)] = rest
            self._start, self._end = 0, len(rest)

    def _begin_data(self, start: int, size: int, flags: int, stream: int) -> bool:
        """Begins a DATA frame (section 6.1); False where its beginning is not there yet."""
        if stream != STREAM:
            raise self._broken(f"sent DATA on stream {stream}")
        if not self._has_headers:
            raise self._broken("sent DATA before the headers")
        body = start + 9
        padding = 0
        if flags & PADDED:
            if size and self._end == body:
                return False
            padding = 1 + self._buffer[body] if size else 1
            if padding > size:
                raise self._broken(f"sent {size} bytes of DATA with {padding - 1} of padding")
            body += 1
            self._padding_left = padding - 1
        self._start = body
        self._data_left = size - padding
        self._frame_ends_stream = bool(flags & END_STREAM)
        self._received_data(size)
        return True

    def _received_data(self, size: int) -> None:
        """Takes note of a DATA frame, and opens the windows again in time (section 5.2)."""
        self.data_frames += 1
        self._unacknowledged += size
        if self._unacknowledged >= _WINDOW_STEP:
            step = NUMBER.pack(self._unacknowledged)
            self._unacknowledged = 0
            self.outbound.append(
                frame(WINDOW_UPDATE, 0, 0, step) + frame(WINDOW_UPDATE, 0, STREAM, step)
            )

    def _take_data(self, start: int, stop: int) -> None:
        """Takes content of the stream from the buffer: messages behind five bytes each."""
        buffer = self._buffer
        while start < stop:
            message = self._message
            if message is not None:
                count = min(stop - start, len(message) - self._filled)
                message[self._filled : self._filled + count] = buffer[start : start + count]
                self._filled += count
                start += count
                if self._filled == len(message):
                    self.messages.append(message)
                    self._message = None
                continue
            if self._prefix or stop - start < 5:
                taken = bytes(buffer[start : min(stop, start + 5 - len(self._prefix))])
                start += len(taken)
                self._prefix += taken
                if len(self._prefix) < 5:
                    return
                compressed, size = MESSAGE_PREFIX.unpack(self._prefix)
                self._prefix = b""
            else:
                compressed, size = MESSAGE_PREFIX.unpack_from(buffer, start)
                start += 5
            if compressed:
                raise self._broken(
                    "sent a compressed message, though the client takes none; turn off "
                    "compression in the server"
                )
            if size > self._max_message_bytes:
                raise self._too_large(size)
            if stop - start >= size:
                self.messages.append(bytearray(buffer[start : start + size]))
                start += size
            else:
                # Not cleared: all of it will be filled. NumPy asks for large pages.
                self._message = _memory(size)
                self._filled = 0

    def _on_nothing(self, flags: int, stream: int, payload: memoryview) -> None:
        """Priorities are not for clients with one stream (section 5.3.2)."""

    def _on_headers(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream != STREAM:
            raise self._broken(f"sent HEADERS on stream {stream}")
        body = bytes(payload)
        if flags & PADDED:
            if not body or body[0] >= len(body):
                raise self._broken("sent HEADERS with more padding than there is")
            body = body[1 : len(body) - body[0]]
        if flags & WITH_PRIORITY:
            body = body[5:]
        self._header_block = bytearray(body)
        self._block_ends_stream = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._end_block()

    def _on_continuation(self, flags: int, stream: int, payload: memoryview) -> None:
        if self._header_block is None or stream != STREAM:
            raise self._broken("sent CONTINUATION outside a header block")
        self._header_block += payload
        if len(self._header_block) > _MAX_HEADER_BYTES:
            raise self._broken(f"sent more than {_MAX_HEADER_BYTES} bytes of headers")
        if flags & END_HEADERS:
            self._end_block()

    def _end_block(self) -> None:
        block, self._header_block = bytes(self._header_block or b""), None
        try:
            headers: dict[str, str] = {}
            for name, value in self._decoder.decode(block, raw=True):
                headers.setdefault(
                    name.decode("ascii", "replace"), value.decode("utf-8", "replace")
                )
        except hpack.HPACKError as error:
            raise self._broken(f"sent headers that cannot be decoded: {error!r}") from error
        status = headers.get(":status", "")
        if not self._has_headers and status.startswith("1"):
            return  # An interim response (section 8.1).
        if not self._has_headers:
            self._has_headers = True
            if "grpc-status" not in headers:
                self._check_response(status, headers)
        elif not self._block_ends_stream:
            raise self._broken("sent headers in the middle of the stream")
        if self._block_ends_stream:
            self._on_end(headers)

    def _check_response(self, status: str, headers: dict[str, str]) -> None:
        content_type = headers.get("content-type", "")
        if status != "200":
            text = f"HTTP status {status or 'missing'}"
            self._fail(stream_error(self._address, code_of_http_status(status), text))
        elif not content_type.startswith("application/grpc"):
            raise ProtocolError(
                f"what listens at {self._address} is no gRPC server: it answers with content "
                f"type {content_type!r}; expected application/grpc"
            )
        elif self._block_ends_stream:
            raise self._broken("ended the stream without a grpc-status")

    def _on_end(self, trailers: dict[str, str]) -> None:
        if self.failure is not None:
            return
        number = trailers.get("grpc-status", "")
        details = urllib.parse.unquote(trailers.get("grpc-message", ""))
        if self._message is not None or self._prefix:
            details = f"in the middle of a message; {details}"
        self._fail(stream_error(self._address, number, details))

    def _on_rst_stream(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream != STREAM or len(payload) != 4:
            raise self._broken(f"sent a broken RST_STREAM on stream {stream}")
        (number,) = NUMBER.unpack(payload)
        name, code = HTTP2_ERRORS.get(number, (f"error {number}", "INTERNAL"))
        text = f"the server reset the stream with {name}{self._going_away}"
        self._fail(stream_error(self._address, code, text))

    def _on_settings(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream or len(payload) % 6 or (flags & ACK and len(payload)):
            raise self._no_http2() if not self.is_ready else self._broken("sent broken SETTINGS")
        if flags & ACK:
            return
        for name, value in SETTING.iter_unpack(payload):
            if name == INITIAL_WINDOW_SIZE:
                if value > MAX_WINDOW:
                    raise self._broken(f"set an initial window of {value}")
                # It changes the window of the stream that there is (section 6.9.2), which
                # may become negative.
                self._stream_window += value - self._initial_window
                self._initial_window = value
            elif name == MAX_FRAME_SIZE:
                if not SMALLEST_MAX_FRAME <= value <= LARGEST_FRAME:
                    raise self._broken(f"set a maximum frame size of {value}")
                self._max_frame = value
        self.is_ready = True
        self.outbound.append(frame(SETTINGS, ACK, 0))
        self._frame_data()

    def _on_push_promise(self, flags: int, stream: int, payload: memoryview) -> None:
        raise self._broken("sent PUSH_PROMISE, which the client has turned off")

    def _on_ping(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream or len(payload) != 8:
            raise self._broken("sent a broken PING")
        if not flags & ACK:
            self.outbound.append(frame(PING, ACK, 0, bytes(payload)))

    def _on_goaway(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream or len(payload) < 8:
            raise self._broken("sent a broken GOAWAY")
        last, number = GOAWAY_HEAD.unpack_from(payload)
        name, code = HTTP2_ERRORS.get(number, (f"error {number}", "INTERNAL"))
        said = bytes(payload[8:200]).decode("utf-8", "replace")
        self._going_away = f"; it said GOAWAY with {name}" + (f" ({said})" if said else "")
        if last & 0x7FFFFFFF < STREAM or number != NO_ERROR:
            # Otherwise the server means to finish this stream (section 6.8).
            if number == NO_ERROR:
                code = "UNAVAILABLE"
            self._fail(stream_error(self._address, code, self._going_away.strip("; ")))

    def _on_window_update(self, flags: int, stream: int, payload: memoryview) -> None:
        raise self._broken("sent a broken WINDOW_UPDATE")

    # Failing.

    def _closed(self) -> None:
        if not self.is_ready:
            self._fail(
                self._no_http2()
                if self._end
                else ConnectionLostError(
                    f"the server at {self._address} closed the connection before it said "
                    "anything; check that both ends use matching credentials",
                    "UNAVAILABLE",
                )
            )
        else:
            text = f"the server closed the connection{self._going_away}"
            self._fail(stream_error(self._address, "UNAVAILABLE", text))

    def _fail(self, error: DmEnvRpcClientError) -> None:
        if self.failure is None:
            self.failure = error
            self._unframed.clear()

    def _no_http2(self) -> DmEnvRpcClientError:
        said = bytes(self._buffer[self._start : min(self._end, self._start + 60)])
        hint = "it speaks HTTP/1" if said.startswith(b"HTTP/") else f"it began with {said!r}"
        return ProtocolError(f"what listens at {self._address} is no gRPC server: {hint}")

    def _too_large(self, size: int) -> DmEnvRpcClientError:
        text = f"the server sends a message of {size} bytes; at most {self._max_message_bytes}"
        return stream_error(self._address, "RESOURCE_EXHAUSTED", f"{text} are allowed")


def _memory(size: int) -> memoryview:
    """Returns memory for a message, in which a single large observation would be aligned."""
    if size <= _LARGE_BYTES:
        return memoryview(bytearray(size))
    # NumPy's memory is aligned, not cleared, and of large pages. Before the elements stand
    # five lengths, each behind its tag, a state and a UID of one byte.
    start = -(5 * (1 + (size.bit_length() + 6) // 7) + 4) % _ALIGNMENT
    return np.empty(size + start, np.uint8)[start:].data
