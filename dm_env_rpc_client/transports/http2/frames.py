"""Frames of HTTP/2 as bytes: their types, flags and settings (RFC 9113, sections 4 and 6)."""

from __future__ import annotations

import struct

__all__ = [
    "ACK",
    "CANCEL",
    "CONTINUATION",
    "DATA",
    "ENABLE_PUSH",
    "END_HEADERS",
    "END_STREAM",
    "FIRST_WINDOW",
    "FRAME_HEADER",
    "GOAWAY",
    "GOAWAY_HEAD",
    "HEADERS",
    "INITIAL_WINDOW_SIZE",
    "LARGEST_FRAME",
    "MAX_FRAME_SIZE",
    "MAX_HEADER_LIST_SIZE",
    "MAX_WINDOW",
    "MESSAGE_PREFIX",
    "NO_ERROR",
    "NUMBER",
    "PADDED",
    "PING",
    "PREFACE",
    "PRIORITY",
    "PROTOCOL_ERROR",
    "PUSH_PROMISE",
    "RST_STREAM",
    "SETTING",
    "SETTINGS",
    "SMALLEST_MAX_FRAME",
    "STREAM",
    "WINDOW_UPDATE",
    "WITH_PRIORITY",
    "frame",
    "frame_header",
    "header_frames",
]

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
STREAM = 1

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
ENABLE_PUSH = 0x2
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

# Error codes.
NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
CANCEL = 0x8

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


def header_frames(block: bytes) -> list[bytes]:
    """Header frames as small as every peer takes them (section 6.2)."""
    size = SMALLEST_MAX_FRAME
    parts = [block[i : i + size] for i in range(0, len(block), size)]
    frames = []
    for index, part in enumerate(parts):
        flags = END_HEADERS if index == len(parts) - 1 else 0
        frames.append(frame(CONTINUATION if index else HEADERS, flags, STREAM, part))
    return frames
