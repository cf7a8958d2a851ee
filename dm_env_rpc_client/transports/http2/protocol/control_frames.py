"""Frames other than DATA, each parsed as a whole: what they change, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Collection

from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.frames import ACK, ENHANCE_YOUR_CALM, NUMBER
from dm_env_rpc_client.transports.http2.protocol.header_block import HeaderBlock
from dm_env_rpc_client.transports.http2.protocol.role import Role
from dm_env_rpc_client.transports.http2.protocol.send_queue import SendQueue
from dm_env_rpc_client.transports.http2.protocol.violations import ViolationError

STREAM = 0x7FFFFFFF
"""The bits of a stream's number; the first bit is reserved (section 4.1)."""

_SETTINGS_COST = _HEADERS_COST = 8
"""How many other frames take as much time. SETTINGS may change all streams' windows."""

_HEADER_BYTES = 64
"""How many bytes of headers, uncompressed, take as much time as another frame."""

_MAX_UNSENT_ACKNOWLEDGEMENTS = 1_000
"""Acknowledgements that wait because the peer reads nothing."""

_MAX_SETTINGS = 100
"""Settings in a frame. There are less than ten; each of them takes time, and others wait."""


class ControlFrames:
    """What the peer has said with frames other than DATA.

    Args:
      role: what distinguishes a client from a server.
      sending: what waits to be sent.
      receiving: the streams that may receive content.
      max_header_bytes: the largest header block that is accepted.
      frames_at_once: how many frames are parsed before others have their turn.

    Attributes:
      headers: the header block that is being received.
      is_ready: whether the peer has proved to speak HTTP/2.
      has_table_size: whether the peer has set the size of its HPACK table.
      serving_processes: how many processes serve the connections of the peer, a server.
      left_at_once: how many frames may still be parsed; the costly ones count as several.
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
        self.serving_processes = 1
        self.left_at_once = frames_at_once
        self._role = role
        self._sending = sending
        self._receiving = receiving
        self._unsent_acknowledgements = 0

    def _on_priority(self, flags: int, stream: int, payload: memoryview) -> None:
        """Priorities mean nothing any more (section 5.3.2)."""
        if not stream:
            raise ViolationError("sent PRIORITY on stream 0")
        if len(payload) != 5:
            # A stream that is not open cannot be reset.
            known = stream if stream in self._receiving else 0
            raise ViolationError("sent a broken PRIORITY", frames.FRAME_SIZE_ERROR, known)

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
            self.left_at_once -= _HEADERS_COST + block.decoder.list_bytes // _HEADER_BYTES
            self._role.take_headers(block.stream, headers, block.ends_stream)

    def _on_rst_stream(self, flags: int, stream: int, payload: memoryview) -> None:
        _check_size(payload, 4, "RST_STREAM")
        if not stream:
            raise ViolationError("sent a broken RST_STREAM on stream 0")
        (code,) = NUMBER.unpack(payload)
        self._role.end_stream(stream, code)

    def _on_settings(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream or len(payload) % 6 or (flags & ACK and len(payload)):
            if not self.is_ready:
                self._role.begin(b"")
            code = frames.PROTOCOL_ERROR if stream else frames.FRAME_SIZE_ERROR
            raise ViolationError("sent broken SETTINGS", code)
        if flags & ACK:
            return
        if len(payload) > 6 * _MAX_SETTINGS:
            raise ViolationError(
                f"sent {len(payload) // 6} settings in a frame; {_MAX_SETTINGS} are allowed",
                ENHANCE_YOUR_CALM,
            )
        windows: list[int] = []
        for name, value in frames.SETTING.iter_unpack(payload):
            if name == frames.INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ViolationError(
                        f"set an initial window of {value}", frames.FLOW_CONTROL_ERROR
                    )
                windows.append(value)
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.SMALLEST_MAX_FRAME <= value <= frames.LARGEST_FRAME:
                    raise ViolationError(f"set a maximum frame size of {value}")
                self._sending.max_frame = value
            elif name == frames.MAX_CONCURRENT_STREAMS:
                self._sending.max_streams = value
            elif name == frames.ENABLE_PUSH and value > 1:
                raise ViolationError(f"set ENABLE_PUSH to {value}")
            elif name == frames.HEADER_TABLE_SIZE:
                self.has_table_size = True
            elif name == frames.SERVING_PROCESSES:
                self.serving_processes = value
        if windows:
            # Each in turn has no other effect (section 6.5.3).
            self._sending.set_initial_window(max(windows))
            self._sending.set_initial_window(windows[-1])
        self.is_ready = True
        self.left_at_once -= _SETTINGS_COST
        self._acknowledge(frames.frame(frames.SETTINGS, ACK, 0))
        self._sending.frame_content()

    def _on_push_promise(self, flags: int, stream: int, payload: memoryview) -> None:
        raise ViolationError("sent PUSH_PROMISE, which is turned off")

    def _on_ping(self, flags: int, stream: int, payload: memoryview) -> None:
        _check_size(payload, 8, "PING")
        if stream:
            raise ViolationError("sent a broken PING")
        if not flags & ACK:
            self._acknowledge(frames.frame(frames.PING, ACK, 0, bytes(payload)))

    def _acknowledge(self, answer: bytes) -> None:
        outbound = self._sending.outbound
        if not outbound:
            self._unsent_acknowledgements = 0
        self._unsent_acknowledgements += 1
        if self._unsent_acknowledgements > _MAX_UNSENT_ACKNOWLEDGEMENTS:
            raise ViolationError(
                f"sent more than {_MAX_UNSENT_ACKNOWLEDGEMENTS} frames to be acknowledged without "
                "reading the acknowledgements",
                ENHANCE_YOUR_CALM,
            )
        outbound.append(answer)

    def _on_goaway(self, flags: int, stream: int, payload: memoryview) -> None:
        if stream or len(payload) < 8:
            code = frames.PROTOCOL_ERROR if stream else frames.FRAME_SIZE_ERROR
            raise ViolationError("sent a broken GOAWAY", code)
        last, code = frames.GOAWAY_HEAD.unpack_from(payload)
        self._role.go_away(last & STREAM, code, bytes(payload[8:200]).decode("utf-8", "replace"))

    def _on_window_update(self, flags: int, stream: int, payload: memoryview) -> None:
        _check_size(payload, 4, "WINDOW_UPDATE")
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
            f"sent a broken {kind} of {len(payload)} bytes", frames.FRAME_SIZE_ERROR
        )
