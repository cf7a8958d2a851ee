"""What clients may send to a server, and what ends a stream or the connection."""

from __future__ import annotations

import struct

import hpack

from tests.transports import frames
from tests.transports.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    frame,
    reset,
    window_update,
)
from tests.transports.raw_client import REQUEST, request, requests
from tests.transports.server_shell import BEGIN, HALF_CLOSED, OPEN, RESET, headers

PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11
IN_BLOCK = BEGIN + request(1, flags=0)
WIDE = OPEN + window_update(1, (1 << 31) - 1 - 65_535)
"""A stream with the largest window."""


def table(name: str) -> list[tuple[str, str]]:
    return [pair for pair in REQUEST if pair[0] != name]


def block(contents: bytes, flags: int = 0) -> bytes:
    """A block of headers in one frame."""
    return frame(HEADERS, contents, END_HEADERS | flags, 1)


def trailers(*pairs: tuple[str | bytes, str | bytes]) -> bytes:
    return headers(*pairs, flags=END_HEADERS | END_STREAM)


def _by_name(by_code: dict[int, dict[str, bytes]]) -> dict[str, tuple[bytes, int]]:
    return {name: (said, code) for code, group in by_code.items() for name, said in group.items()}


BLOCKS = {
    "entry 0": b"\x80",
    "an entry that is not there": b"\xbe",
    "a name that is not there": b"\x7e\x01a",
    "half an integer": b"\x7f\xff",
    "a large integer": b"\x7f" + b"\xff" * 4 + b"\x0f",
    "an endless integer": b"\x7f" + b"\xff" * 200,
    "half a name": b"\x40\x0aabc",
    "no value": b"\x40\x01a",
    "half a value": b"\x40\x01a\x05abc",
    "a size behind a header": b"\x82\x20",
    "a size beyond the limit": b"\x3f\xe2\x1f",
    "padding of zeros": b"\x40\x01a\x81\x00",
    "padding of eight ones": b"\x40\x01a\x82\x1f\xff",
    "the end of strings": b"\x40\x01a\x84\xff\xff\xff\xff",
    "an index without end": b"\xff" * 16_000 + b"\0",
}
"""Header blocks that cannot be decoded (RFC 7541)."""

_CONNECTION_ERRORS: dict[int, dict[str, bytes]] = {
    0: {
        "a frame before SETTINGS": PREFACE + frame(PING, bytes(8)),
        "a window before SETTINGS": PREFACE + window_update(0, 1),
        "SETTINGS that acknowledge first": PREFACE + frame(SETTINGS, flags=ACK) + request(1),
        "HTTP/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "a preface with a mistake": PREFACE[:-1] + b"?" + frames.settings(),
    },
    CALM: {
        "101 settings": OPEN + frame(SETTINGS, struct.pack(">HI", 4, 70_000) * 101),
        "a block of many frames": IN_BLOCK + frame(CONTINUATION, b"", 0, 1) * 65,
        "a block of many bytes": IN_BLOCK + frame(CONTINUATION, bytes(9_000), 0, 1) * 2,
        "a block of many bytes at once": BEGIN + frame(HEADERS, bytes(20_000), 0, 1),
        "a block of 1 MiB": BEGIN + block(bytes(1 << 20)),
        "a list of 1 MiB in few bytes": BEGIN
        + block(hpack.Encoder().encode([*REQUEST, ("x", "y" * 4_000)]) + b"\xbe" * 260),
    },
    SIZE: {
        "a large SETTINGS": BEGIN + frame(SETTINGS, bytes(6 * 11_000)),
        "a large GOAWAY": BEGIN + frame(GOAWAY, bytes(65_000)),
        "HEADERS without their priority": BEGIN + block(b"abc", WITH_PRIORITY),
        "a short PRIORITY on an idle stream": OPEN + frame(PRIORITY, bytes(4), 0, 9),
        "a short RST_STREAM": OPEN + frame(RST_STREAM, bytes(3), 0, 1),
        "a long RST_STREAM": OPEN + frame(RST_STREAM, bytes(5), 0, 1),
        "half a setting": OPEN + frame(SETTINGS, bytes(5)),
        "an acknowledgement with contents": OPEN + frame(SETTINGS, bytes(6), ACK),
        "a short PING": OPEN + frame(PING, bytes(7)),
        "a long PING": OPEN + frame(PING, bytes(9)),
        "a short GOAWAY": OPEN + frame(GOAWAY, bytes(7)),
        "a short WINDOW_UPDATE": OPEN + frame(WINDOW_UPDATE, bytes(3)),
    },
    PROTOCOL: {
        "CONTINUATION alone": BEGIN + frame(CONTINUATION, b"", END_HEADERS, 1),
        "CONTINUATION after the end": OPEN + frame(CONTINUATION, b"", END_HEADERS, 1),
        "CONTINUATION on another stream": IN_BLOCK + frame(CONTINUATION, b"", END_HEADERS, 3),
        "CONTINUATION on stream 0": BEGIN + frame(CONTINUATION, b"", END_HEADERS, 0),
        "DATA inside a block": IN_BLOCK + requests(1, b"x"),
        "PING inside a block": IN_BLOCK + frame(PING, bytes(8)),
        "a window inside a block": IN_BLOCK + window_update(0, 1),
        "HEADERS inside a block": IN_BLOCK + request(3),
        "an unknown frame inside a block": IN_BLOCK + frame(0x77),
        "an even stream": BEGIN + request(2),
        "HEADERS on stream 0": BEGIN + request(0),
        "DATA on stream 0": OPEN + requests(0, b"x"),
        "DATA on an idle stream": OPEN + requests(3, b"x"),
        "DATA on an even stream": OPEN + requests(2, b"x"),
        "a window on an idle stream": OPEN + window_update(3, 1),
        "RST_STREAM on an idle stream": OPEN + reset(3),
        "RST_STREAM on an even stream": OPEN + reset(2),
        "DATA with too much padding": OPEN + frame(DATA, b"\x09abc", PADDED, 1),
        "DATA without the length of its padding": OPEN + frame(DATA, b"", PADDED, 1),
        "HEADERS with too much padding": BEGIN + block(b"\x05a", PADDED),
        "HEADERS without their padding": BEGIN + block(b"", PADDED),
        "PRIORITY on stream 0": OPEN + frame(PRIORITY, bytes(5), 0, 0),
        "RST_STREAM on stream 0": OPEN + reset(0),
        "SETTINGS on a stream": OPEN + frame(SETTINGS, b"", 0, 1),
        "a maximum frame that is too small": OPEN + frames.settings(frame=16_383),
        "a maximum frame that is too large": OPEN + frames.settings(frame=1 << 24),
        "ENABLE_PUSH of 2": OPEN + frame(SETTINGS, struct.pack(">HI", 2, 2)),
        "PUSH_PROMISE": OPEN + frame(PUSH_PROMISE, bytes(10), END_HEADERS, 1),
        "PING on a stream": OPEN + frame(PING, bytes(8), 0, 1),
        "GOAWAY on a stream": OPEN + frame(GOAWAY, bytes(8), 0, 1),
        "a window by 0": OPEN + window_update(0, 0),
    },
    CLOSED: {
        "a lower stream": BEGIN + request(5) + request(3),
        "HEADERS after RST_STREAM": RESET + request(1),
    },
    FLOW: {
        "a huge window": OPEN + frames.settings(window=1 << 31),
        "a window too far": OPEN + window_update(0, (1 << 31) - 1),
        "an initial window too far": WIDE + frames.settings(window=65_536),
        "an initial window too far for a moment": WIDE
        + frame(SETTINGS, struct.pack(">HIHI", 4, 65_536, 4, 10)),
        "more than the window of the connection": OPEN
        + frame(DATA, bytes(8_388_607), 0, 1)
        + frame(DATA, bytes(16_777_215), 0, 1),
    },
    COMPRESSION: {
        **{name: BEGIN + block(contents) for name, contents in BLOCKS.items()},
        "an entry of a table that was emptied": BEGIN
        + block(b"\x40\x01a\x01b")
        + frame(HEADERS, b"\x20\xbe", END_HEADERS, 3),
    },
}

CONNECTION_ERRORS = _by_name(_CONNECTION_ERRORS)


LAST = requests(1, b"x", end=True)
"""Six bytes, and the end of a stream."""


def malformed(*pairs: tuple[str | bytes, str | bytes]) -> bytes:
    return BEGIN + headers(*pairs)


MALFORMED_HEADERS: dict[str, tuple[str | bytes, str | bytes]] = {
    "an upper-case name": ("Te", "trailers"),
    "an empty name": ("", "x"),
    "a name with a blank": ("a b", "x"),
    "a name with a colon": ("a:b", "x"),
    "a name with a NUL": ("a\0", "x"),
    "a name beyond ASCII": (b"\xe4", "x"),
    "a value with a NUL": ("a", "b\0c"),
    "a value of two lines": ("a", "b\nc"),
    "a value with a return": ("a", "b\rc"),
    "connection": ("connection", "close"),
    "keep-alive": ("keep-alive", "1"),
    "proxy-connection": ("proxy-connection", "x"),
    "transfer-encoding": ("transfer-encoding", "chunked"),
    "upgrade": ("upgrade", "h2c"),
    "te other than trailers": ("te", "gzip"),
}
"""What must not be among headers or trailers (section 8.2)."""

_STREAM_ERRORS: dict[int, dict[str, bytes]] = {
    PROTOCOL: {
        "no method": malformed(*table(":method")),
        "no scheme": malformed(*table(":scheme")),
        "no path": malformed(*table(":path")),
        "an empty path": malformed(*table(":path"), (":path", "")),
        "two methods": malformed((":method", "POST"), *REQUEST),
        "two paths": malformed((":path", "/"), *REQUEST),
        "a pseudo-header of answers": malformed((":status", "200"), *REQUEST),
        "an unknown pseudo-header": malformed((":protocol", "x"), *REQUEST),
        "a late pseudo-header": malformed(*table(":path"), (":path", "/")),
        "a path of two lines": malformed(*table(":path")[:2], (":path", "/\n")),
        "CONNECT": malformed((":method", "CONNECT"), (":authority", "x")),
        "a broken content-length": malformed(*REQUEST, ("content-length", "x")),
        "a negative content-length": malformed(*REQUEST, ("content-length", "-1")),
        "two content-lengths": malformed(*REQUEST, *(("content-length", each) for each in "12")),
        "less than the content-length": malformed(*REQUEST, ("content-length", "7")) + LAST,
        "more than the content-length": malformed(*REQUEST, ("content-length", "5")) + LAST,
        "no content of the content-length": BEGIN + trailers(*REQUEST, ("content-length", "5")),
        "pseudo-headers in trailers": OPEN + trailers((":path", "/")),
        "trailers that end nothing": OPEN + headers(("a", "b")),
        "an end inside a message": OPEN + frame(DATA, b"\0\0\0\0\x09abc", END_STREAM, 1),
        "an end inside a prefix": OPEN + frame(DATA, b"\0\0", END_STREAM, 1),
        "a window by 0": OPEN + window_update(1, 0),
        **{name: malformed(*table("te"), each) for name, each in MALFORMED_HEADERS.items()},
        **{
            f"{name} in trailers": OPEN + trailers(each) for name, each in MALFORMED_HEADERS.items()
        },
    },
    CLOSED: {
        "DATA after END_STREAM": HALF_CLOSED + requests(1, b"x"),
        "HEADERS after END_STREAM": HALF_CLOSED + trailers(("a", "b")),
        "DATA after RST_STREAM": RESET + requests(1, b"x"),
    },
    SIZE: {"a short PRIORITY": OPEN + frame(PRIORITY, bytes(4), 0, 1)},
    FLOW: {
        "a window too far": OPEN + window_update(1, (1 << 31) - 1),
        "more than the window of the stream": OPEN
        + frame(DATA, b"\0\0\x0f\xff\xff" + bytes(1_048_572), 0, 1),
    },
}

STREAM_ERRORS = _by_name(_STREAM_ERRORS)


ALLOWED = {
    "a content-length": malformed(*REQUEST, ("content-length", "6")) + LAST,
    "blanks around a value": malformed(*REQUEST, ("a", " b\t")),
    "a value beyond ASCII": malformed(*REQUEST, ("a", b"\xff")),
    "a window and RST_STREAM after RST_STREAM": RESET + window_update(1, 5) + reset(1),
    "PRIORITY on any stream": RESET
    + frame(PRIORITY, bytes(5), 0, 1)
    + frame(PRIORITY, bytes(5), 0, 99),
    "GOAWAY, and streams after it": OPEN + frame(GOAWAY, bytes(8)) + request(3),
    "a reserved bit": BEGIN + frame(WINDOW_UPDATE, b"\x80\0\0\1", 0, 1 << 31),
    "SETTINGS of 100 windows": OPEN + frame(SETTINGS, struct.pack(">HI", 4, 70_000) * 100),
    "a smaller table": BEGIN + block(b"\x20\x3f\x09" + request(1)[9:]),
    "streams with gaps": BEGIN + request(5) + request(101),
}
