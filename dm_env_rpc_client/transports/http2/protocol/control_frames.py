"""Process frames other than DATA, each of which is parsed as a whole.

A header block is one HEADERS frame and its CONTINUATION frames (sections 4.3, 6.2 and 6.10).
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.frames import (
    ACK,
    ENHANCE_YOUR_CALM,
    NUMBER,
    Header,
    Role,
    ViolationError,
)
from dm_env_rpc_client.transports.http2.protocol.headers import HeaderDecoder
from dm_env_rpc_client.transports.http2.protocol.send_queue import SendQueue

STREAM = 0x7FFFFFFF
"""The mask for a stream's number, whose first bit is reserved (section 4.1)."""

_SETTINGS_COST = _HEADERS_COST = 8
"""The number of cheaper frames that a SETTINGS or HEADERS frame counts as. A SETTINGS frame can
change the windows of all streams."""

_HEADER_BYTES = 64
"""The number of bytes of uncompressed headers that count as one more frame."""

_MAX_UNSENT_ACKNOWLEDGEMENTS = 1_000
"""The maximum number of acknowledgements that can remain unsent because the peer is not
reading."""

_MAX_SETTINGS = 100
"""The maximum number of settings in one SETTINGS frame. HTTP/2 defines fewer than ten, and parsing
each one delays other clients."""

MAX_HEADER_BYTES = 1 << 16
"""The size, in bytes, of the largest header block that a client accepts."""

_MAX_CONTINUATIONS = 64
"""The maximum number of CONTINUATION frames in one header block."""


class HeaderBlock:
    """A header block that is received frame by frame and then decoded.

    Args:
      max_bytes: the size limit of the block, both compressed and uncompressed.

    Attributes:
      stream: the number of the block's stream.
      is_open: whether a CONTINUATION frame must come next; otherwise the block is complete.
      ends_stream: whether the HEADERS frame had END_STREAM.
    """

    def __init__(self, max_bytes: int = MAX_HEADER_BYTES):
        self.stream = 0
        self.is_open = False
        self.ends_stream = False
        self._max_bytes = max_bytes
        self.decoder = HeaderDecoder(max_bytes)
        self._block = bytearray()
        self._continuations = 0

    def begin(self, flags: int, stream: int, payload: memoryview) -> None:
        """Process a HEADERS frame.

        Args:
          flags: the flags of the frame.
          stream: the number of the frame's stream.
          payload: the payload of the frame.
        """
        body = bytes(payload)
        if flags & frames.PADDED:
            if not body or body[0] >= len(body):
                raise ViolationError("sent HEADERS with more padding than payload")
            body = body[1 : len(body) - body[0]]
        if flags & frames.WITH_PRIORITY:
            if len(body) < 5:
                raise ViolationError(
                    "sent HEADERS with the PRIORITY flag but without a priority",
                    frames.FRAME_SIZE_ERROR,
                )
            body = body[5:]
        self.stream = stream
        self.ends_stream = bool(flags & frames.END_STREAM)
        self._block = bytearray(body)
        self._continuations = 0
        self._check_size()
        self.is_open = not flags & frames.END_HEADERS

    def add(self, flags: int, stream: int, payload: memoryview) -> None:
        """Process a CONTINUATION frame. The arguments are the same as for `begin`."""
        if not self.is_open or stream != self.stream:
            raise ViolationError("sent CONTINUATION outside a header block")
        self._block += payload
        # CONTINUATION flood (CVE-2024-27316 and its kind): frames without end in one block.
        self._continuations += 1
        self._check_size()
        if self._continuations > _MAX_CONTINUATIONS:
            raise ViolationError(
                f"sent more than {_MAX_CONTINUATIONS} CONTINUATION frames in one header block",
                frames.ENHANCE_YOUR_CALM,
            )
        self.is_open = not flags & frames.END_HEADERS

    def decode(self) -> list[Header]:
        """Return the headers of a complete block, in order.

        Every block must be decoded, even for a closed stream, because each block can change the
        decoder's table (section 4.3).
        """
        block, self._block = bytes(self._block), bytearray()
        return self.decoder.decode(block)

    def _check_size(self) -> None:
        if len(self._block) > self._max_bytes:
            raise ViolationError(
                f"sent more than {self._max_bytes} bytes of headers", frames.ENHANCE_YOUR_CALM
            )


class ControlFrames:
    """The handlers for all of the peer's frames except DATA.

    Args:
      role: the client's or the server's half.
      sending: the send queue.
      receiving: the streams that can receive content.
      max_header_bytes: the size limit of a header block.
      frames_at_once: the number of frames parsed before other connections are served.

    Attributes:
      headers: the header block that is being received.
      is_ready: whether the peer has shown that it speaks HTTP/2.
      has_table_size: whether the peer has set the size of its HPACK table.
      left_at_once: the number of frames that can still be parsed before other connections are
        served. Costly frames count as several.
    """

    def __init__(
        self,
        role: Role,
        sending: SendQueue,
        receiving: Collection[int],
        max_header_bytes: int,
        frames_at_once: int,
    ):
        self.headers = HeaderBlock(max_header_bytes)
        self.is_ready = self.has_table_size = False
        self.left_at_once = frames_at_once
        self._role = role
        self._sending = sending
        self._receiving = receiving
        self._unsent_acknowledgements = 0

    def _on_priority(self, flags: int, stream: int, payload: memoryview) -> None:
        """Check and ignore a PRIORITY frame, which is deprecated (section 5.3.2)."""
        if not stream:
            raise ViolationError("sent PRIORITY on stream 0")
        if len(payload) != 5:
            # A stream that is not open cannot be reset.
            known = stream if stream in self._receiving else 0
            raise ViolationError("sent a malformed PRIORITY", frames.FRAME_SIZE_ERROR, known)

    def _on_headers(self, flags: int, stream: int, payload: memoryview) -> None:
        self.headers.begin(flags, stream, payload)
        self._end_headers()

    def _on_continuation(self, flags: int, stream: int, payload: memoryview) -> None:
        self.headers.add(flags, stream, payload)
        self._end_headers()

    def _end_headers(self) -> None:
        block = self.headers
        if not block.is_open:
            headers = block.decode()
            # Costly frames use up more of the turn, so that one client cannot hold up the others.
            self.left_at_once -= _HEADERS_COST + block.decoder.list_bytes // _HEADER_BYTES
            self._role.take_headers(block.stream, headers, block.ends_stream)

    def _on_rst_stream(self, flags: int, stream: int, payload: memoryview) -> None:
        _check_size(payload, 4, "RST_STREAM")
        if not stream:
            raise ViolationError("sent RST_STREAM on stream 0")
        (code,) = NUMBER.unpack(payload)
        self._role.end_stream(stream, code)

    def _on_settings(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream or len(payload) % 6 or (flags & ACK and len(payload)):
            # Before SETTINGS the peer may not speak HTTP/2 at all, which is the better error.
            if not self.is_ready:
                self._role.begin(b"")
            code = frames.PROTOCOL_ERROR if stream else frames.FRAME_SIZE_ERROR
            raise ViolationError("sent malformed SETTINGS", code)
        if flags & ACK:
            return
        # Each setting may change the window of every stream.
        if len(payload) > 6 * _MAX_SETTINGS:
            raise ViolationError(
                f"sent {len(payload) // 6} settings in one frame; the limit is {_MAX_SETTINGS}",
                ENHANCE_YOUR_CALM,
            )
        windows: list[int] = []
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ViolationError(
                        f"set an invalid initial window size of {value}", frames.FLOW_CONTROL_ERROR
                    )
                windows.append(value)
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.SMALLEST_MAX_FRAME <= value <= frames.LARGEST_FRAME:
                    raise ViolationError(f"set an invalid maximum frame size of {value}")
                self._sending.limit_frames(value)
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self._sending.max_streams = value
            elif name == frames.ENABLE_PUSH and value > 1:
                raise ViolationError(f"set ENABLE_PUSH to {value}")
            # This end uses no dynamic table, and only has to announce that; see `NO_TABLE`.
            elif name == frames.HEADER_TABLE_SIZE:
                self.has_table_size = True
        if windows:
            # Each in turn has no other effect (section 6.5.3).
            self._sending.set_initial_window(max(windows))
            self._sending.set_initial_window(windows[-1])
        self.is_ready = True
        self.left_at_once -= _SETTINGS_COST
        self._acknowledge(frames.frame(frames.SETTINGS, ACK, 0))
        # A larger window or frame size may release content that waits.
        self._sending.frame_content()

    def _on_push_promise(self, flags: int, stream: int, payload: memoryview) -> None:
        raise ViolationError("sent PUSH_PROMISE, although server push is disabled")

    def _on_ping(self, flags: int, stream: int, payload: memoryview) -> None:
        _check_size(payload, 8, "PING")
        if stream:
            raise ViolationError("sent a malformed PING")
        if not flags & ACK:
            self._acknowledge(frames.frame(frames.PING, ACK, 0, bytes(payload)))

    def _acknowledge(self, answer: bytes) -> None:
        outbound = self._sending.outbound
        # Everything was sent, so the peer reads.
        if not outbound:
            self._unsent_acknowledgements = 0
        self._unsent_acknowledgements += 1
        # PING and SETTINGS floods (CVE-2019-9512, 9515): a peer that does not read would fill the
        # memory with answers.
        if self._unsent_acknowledgements > _MAX_UNSENT_ACKNOWLEDGEMENTS:
            raise ViolationError(
                f"sent more than {_MAX_UNSENT_ACKNOWLEDGEMENTS} frames without reading their "
                "acknowledgements",
                ENHANCE_YOUR_CALM,
            )
        outbound.append(answer)

    def _on_goaway(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream or len(payload) < 8:
            code = frames.PROTOCOL_ERROR if stream else frames.FRAME_SIZE_ERROR
            raise ViolationError("sent a malformed GOAWAY", code)
        last, code = frames.GOAWAY_HEAD.unpack_from(payload)
        # At most 192 bytes of text: it goes into an error message.
        self._role.go_away(last & STREAM, code, bytes(payload[8:200]).decode("utf-8", "replace"))

    def _on_window_update(self, flags: int, stream: int, payload: memoryview) -> None:
        _check_size(payload, 4, "WINDOW_UPDATE")
        # Of a stream that is over it is legal, and of one never opened a violation (section 5.1).
        if stream and stream not in self._receiving:
            self._role.check_stream(stream, "WINDOW_UPDATE")
        (increment,) = NUMBER.unpack(payload)
        self._sending.open_window(stream, increment & STREAM)


HANDLERS: dict[int, Callable[[ControlFrames, int, int, memoryview], None]] = {
    frames.HEADERS: ControlFrames._on_headers,
    frames.PRIORITY: ControlFrames._on_priority,
    frames.RST_STREAM: ControlFrames._on_rst_stream,
    frames.SETTINGS: ControlFrames._on_settings,
    frames.PUSH_PROMISE: ControlFrames._on_push_promise,
    frames.PING: ControlFrames._on_ping,
    frames.GOAWAY: ControlFrames._on_goaway,
    frames.WINDOW_UPDATE: ControlFrames._on_window_update,
    frames.CONTINUATION: ControlFrames._on_continuation,
}


def _check_size(payload: memoryview, size: int, kind: str) -> None:
    if len(payload) != size:
        raise ViolationError(
            f"sent a malformed {kind} of {len(payload)} bytes", frames.FRAME_SIZE_ERROR
        )
