"""Build HTTP/2 frames (RFC 9113, sections 4 and 6), and define the errors for violations."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Protocol, TypeAlias

from dm_env_rpc_client.errors import DmEnvRpcClientError

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes that a client sends (section 3.4)."""

# Frame types (section 6).
DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

# Flags.
ACK = 0x1
END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20

# Settings.
HEADER_TABLE_SIZE = 0x1
ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6
# Error codes (section 7).
NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
FLOW_CONTROL_ERROR = 0x3
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

MAX_WINDOW = (1 << 31) - 1
FIRST_WINDOW = 65_535
LARGEST_FRAME = (1 << 24) - 1
SMALLEST_MAX_FRAME = 1 << 14

FRAME_HEADER = struct.Struct(">HBBBI")
MESSAGE_PREFIX = struct.Struct(">BI")
SETTING = struct.Struct(">HI")
NUMBER = struct.Struct(">I")
GOAWAY_HEAD = struct.Struct(">II")


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return the bytes of a complete frame."""
    return frame_header(len(payload), kind, flags, stream) + payload


def frame_header(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Return the nine-byte header of a frame whose payload has `size` bytes."""
    return FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream)


def header_frames(block: bytes, stream: int, flags: int = 0) -> bytes:
    """Return the frames of a header block, each small enough for every peer (section 6.2).

    Args:
      block: the encoded headers.
      stream: the number of the stream.
      flags: the flags of the first frame. END_HEADERS is added to the last frame.
    """
    size = SMALLEST_MAX_FRAME
    parts = [block[i : i + size] for i in range(0, len(block), size)] or [b""]
    last = len(parts) - 1
    return b"".join(
        frame(
            CONTINUATION if index else HEADERS,
            (0 if index else flags) | (END_HEADERS if index == last else 0),
            stream,
            part,
        )
        for index, part in enumerate(parts)
    )


def settings_frame(settings: Mapping[int, int]) -> bytes:
    """Return a SETTINGS frame (section 6.5)."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in settings.items()))


def window_update(stream: int, increment: int) -> bytes:
    """Return a WINDOW_UPDATE frame (section 6.9)."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    """Return an RST_STREAM frame (section 6.4)."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last_stream: int, code: int) -> bytes:
    """Return a GOAWAY frame (section 6.8)."""
    return frame(GOAWAY, 0, 0, GOAWAY_HEAD.pack(last_stream, code))


Header: TypeAlias = tuple[bytes, bytes]

_SPOKEN = {
    "TLS": re.compile(rb"[\x14-\x17]\x03"),
    "HTTP/1": re.compile(rb"HTTP/1|[A-Z]{3,7} [/h]"),
    "SSH": re.compile(rb"SSH-"),
}


class ViolationError(Exception):
    """The peer violated HTTP/2, so `Framing` ends the stream or the connection.

    Args:
      what: the peer's action, as the end of a sentence that begins with "it".
      code: the error code to send to the peer (RFC 9113, section 7).
      stream: the number of the stream to end, or 0 to end the connection.
    """

    def __init__(self, what: str, code: int = PROTOCOL_ERROR, stream: int = 0):
        super().__init__(what)
        self.what = what
        self.code = code
        self.stream = stream


class RefusedMessageError(Exception):
    """A message that is valid HTTP/2 was not accepted, so its stream ends.

    Args:
      code: the name of the gRPC status, such as "RESOURCE_EXHAUSTED".
      what: the peer's action, as the end of a sentence that begins with "it".
    """

    def __init__(self, code: str, what: str):
        super().__init__(what)
        self.code = code
        self.what = what


class Role(Protocol):
    """The interface of a client's or server's half, whose methods `Framing.received` calls."""

    last_stream: int
    """The number of the peer's last stream, or 0 if it has opened none, for a GOAWAY frame."""

    def take_headers(self, stream: int, headers: list[Header], ends_stream: bool) -> None:
        """Process a complete header block."""

    def end_content(self, stream: int) -> None:
        """Process a DATA frame that ends the peer's half of a stream."""

    def check_stream(self, stream: int, kind: str) -> None:
        """Raise ViolationError if `kind` frames are forbidden on a stream without content."""

    def end_stream(self, stream: int, code: int) -> None:
        """Process an RST_STREAM frame, in which the peer ends a stream with an error code."""

    def refuse_message(self, stream: int, error: RefusedMessageError) -> None:
        """Process a message that was not accepted."""

    def go_away(self, last_stream: int, code: int, text: str) -> None:
        """Process a GOAWAY frame from the peer."""

    def begin(self, first: bytes) -> None:
        """Raise an error that describes the first bytes sent by a peer instead of SETTINGS."""

    def break_stream(self, violation: ViolationError) -> None:
        """End a stream that was reset because of the peer's violation; never raise an error."""

    def violated(self, violation: ViolationError) -> DmEnvRpcClientError:
        """Return the error for a violation that ends the connection."""

    def close(self, unparsed: bytes) -> DmEnvRpcClientError:
        """Return the error for a peer that closed the connection."""

    def fail(self, error: DmEnvRpcClientError) -> None:
        """Fail all open streams, because the connection has ended."""


def spoken(first: bytes) -> str:
    """Return the name of the protocol that a peer speaks instead of HTTP/2.

    The peer's bytes are not quoted, because an HTTP/1 request can begin with secrets.

    Args:
      first: the first bytes that the peer sent.
    """
    found = (protocol for protocol, begins in _SPOKEN.items() if begins.match(first))
    return next(found, "an unknown protocol")
