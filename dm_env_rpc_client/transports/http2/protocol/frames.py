"""Frames of HTTP/2 as bytes: their types, flags and settings (RFC 9113, sections 4 and 6)."""

from __future__ import annotations

import struct
from collections.abc import Mapping

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
    """Returns a whole frame."""
    return frame_header(len(payload), kind, flags, stream) + payload


def frame_header(size: int, kind: int, flags: int, stream: int) -> bytes:
    """Returns the nine bytes before a payload of so many."""
    return FRAME_HEADER.pack(size >> 8, size & 0xFF, kind, flags, stream)


def header_frames(block: bytes, stream: int, flags: int = 0) -> bytes:
    """Returns header frames as small as every peer accepts them (section 6.2).

    Args:
      block: the encoded headers.
      stream: the stream that they are on.
      flags: of the first frame; END_HEADERS is added where it belongs.
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
    """Returns a SETTINGS frame (section 6.5)."""
    return frame(SETTINGS, 0, 0, b"".join(SETTING.pack(*item) for item in settings.items()))


def window_update(stream: int, increment: int) -> bytes:
    """Returns a WINDOW_UPDATE frame (section 6.9)."""
    return frame(WINDOW_UPDATE, 0, stream, NUMBER.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    """Returns a RST_STREAM frame (section 6.4)."""
    return frame(RST_STREAM, 0, stream, NUMBER.pack(code))


def goaway(last_stream: int, code: int) -> bytes:
    """Returns a GOAWAY frame (section 6.8)."""
    return frame(GOAWAY, 0, 0, GOAWAY_HEAD.pack(last_stream, code))
