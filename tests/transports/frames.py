"""Frames as a server sends them, and those of a client taken apart, byte by byte (RFC 9113)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

import hpack

from dm_env_rpc_client.transports.http2.protocol.framing import Framing

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE = range(9)
CONTINUATION = 9
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
PADDED = 0x8
WITH_PRIORITY = 0x20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/dm_env_rpc.v1.Environment/Process"),
    (":authority", "localhost"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]
RESPONSE = ((":status", "200"), ("content-type", "application/grpc+proto"))
OK = (("grpc-status", "0"),)


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    names = {"window": 4, "frame": 5, "streams": 3, "table": 1}
    return frame(
        SETTINGS, b"".join(struct.pack(">HI", names[name], value) for name, value in values.items())
    )


def headers(
    *pairs: tuple[str, str],
    end: bool = False,
    encoder: hpack.Encoder | None = None,
    stream: int = 1,
) -> bytes:
    block = (encoder or hpack.Encoder()).encode(pairs)
    return frame(HEADERS, block, END_HEADERS | (END_STREAM if end else 0), stream)


def grpc_message(contents: bytes, compressed: bool = False) -> bytes:
    return struct.pack(">BI", compressed, len(contents)) + contents


def data(contents: bytes, flags: int = 0, stream: int = 1) -> bytes:
    return frame(DATA, contents, flags, stream)


def greeting() -> bytes:
    """What a server says until the first answer."""
    return settings() + frame(SETTINGS, flags=ACK) + headers(*RESPONSE)


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, struct.pack(">I", increment), 0, stream)


def reset(stream: int, code: int = 8) -> bytes:
    """RST_STREAM, with CANCEL unless another code is given."""
    return frame(RST_STREAM, struct.pack(">I", code), 0, stream)


def goaway(last: int, code: int, text: bytes = b"") -> bytes:
    return frame(GOAWAY, struct.pack(">II", last, code) + text)


FORMS: dict[str, Callable[[bytes], list[bytes]]] = {
    "usual": lambda sent: [data(sent)],
    "single bytes": lambda sent: [bytes([byte]) for byte in data(sent)],
    "two frames": lambda sent: [data(sent[:7]) + data(sent[7:])],
    "windows before": lambda sent: [window_update(0, 100) + window_update(1, 100) + data(sent)],
    "a PING behind": lambda sent: [data(sent) + frame(PING, bytes(8))],
    "a PING first": lambda sent: [frame(PING, bytes(8)), data(sent)],
    "padding": lambda sent: [frame(DATA, b"\x03" + sent + bytes(3), PADDED, 1)],
}
"""What is sent at a time of a message of gRPC, in every form that HTTP/2 has for it."""


def received(framing: Framing, contents: bytes) -> bytes:
    """Has a framing receive what it has room for; returns the rest."""
    taken = 0
    for buffer in framing.buffers():
        part = contents[taken : taken + len(buffer)]
        buffer[: len(part)] = part
        taken += len(part)
    framing.received(taken)
    return contents[taken:]


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes


def next_frame(contents: bytes) -> tuple[Frame, bytes] | None:
    """The first frame, and what is behind it; None if it is not whole."""
    if len(contents) < 9:
        return None
    (size,) = struct.unpack(">I", b"\0" + contents[:3])
    kind, flags, stream = struct.unpack(">BBI", contents[3:9])
    payload = contents[9 : 9 + size]
    if len(payload) < size:
        return None
    return Frame(kind, flags, stream, payload), contents[9 + size :]


def taken_apart(contents: bytes) -> list[Frame]:
    """The frames of a client, after its preface if that is there; all of them whole."""
    contents = contents.removeprefix(PREFACE)
    found = []
    while contents:
        taken = next_frame(contents)
        assert taken is not None, "a frame is not whole"
        found.append(taken[0])
        contents = taken[1]
    return found
