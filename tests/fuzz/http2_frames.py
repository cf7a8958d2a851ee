"""What a server sends over HTTP/2: messages, and then one error, whatever the pieces."""

from __future__ import annotations

import functools
import random
import struct

import hpack

from dm_env_rpc_client import DmEnvRpcClientError
from tests.fuzz.wire import flipped
from tests.transports import frames
from tests.transports.client_call import ClientCall, feed, received, take_outbound
from tests.transports.frames import frame

LIMIT = 1 << 16
"""The longest message that is accepted here."""

_LENGTHS = [0, 1, 4, 5, 8, 255, 16_384, 16_385, (1 << 24) - 1]
_NUMBERS = [0, 1, 2, 3, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


@functools.cache
def _usual() -> list[bytes]:
    """Frames that a good server may send after its greeting."""
    return [
        frames.data(frames.grpc_message(b"abc")),
        frames.data(frames.grpc_message(b"d" * 300) + frames.grpc_message(b"")),
        frames.data(frames.grpc_message(b"e" * 20_000)),
        frames.data(frames.grpc_message(b"f" * 100)[:50]) + frames.data(b"f" * 55),
        frames.data(bytes([3]) + frames.grpc_message(b"padded") + bytes(3), frames.PADDED),
        frames.data(b""),
        frames.settings(),
        frames.settings(window=0, frame=16_384, streams=1, table=0),
        frames.settings(window=(1 << 31) - 1, frame=(1 << 24) - 1),
        frame(frames.PING, bytes(8)),
        frame(frames.PING, bytes(8), frames.ACK),
        frame(frames.WINDOW_UPDATE, struct.pack(">I", 1000)),
        frame(frames.WINDOW_UPDATE, struct.pack(">I", 1000), 0, 1),
        frame(frames.PRIORITY, bytes(5), 0, 1),
        frame(0x77, b"unknown"),
    ]


@functools.cache
def _unusual() -> list[bytes]:
    """Frames that end the stream or the connection, or that belong elsewhere."""
    block = hpack.Encoder().encode(frames.RESPONSE)
    ended = hpack.Encoder().encode([("grpc-status", "7"), ("grpc-message", "no%20more%zz")])
    return [
        frames.settings(window=1 << 31, frame=1),
        frame(frames.SETTINGS, flags=frames.ACK),
        frames.headers(*frames.RESPONSE),
        frames.headers((":status", "503"), ("content-type", "text/html")),
        frames.headers((":status", "100")),
        frames.headers(*frames.OK, end=True),
        frame(frames.HEADERS, ended, frames.END_HEADERS | frames.END_STREAM, 1),
        frame(frames.HEADERS, block[:3], 0, 1),
        frame(frames.CONTINUATION, block[3:], frames.END_HEADERS, 1),
        frame(frames.HEADERS, b"\4" + block + bytes(4), frames.END_HEADERS | frames.PADDED, 1),
        frames.data(frames.grpc_message(b"compressed", compressed=True)),
        frames.data(frames.grpc_message(bytes(LIMIT + 1))[:100]),
        frames.data(b"", frames.END_STREAM),
        frame(frames.WINDOW_UPDATE, struct.pack(">I", (1 << 31) - 1), 0, 1),
        frame(frames.RST_STREAM, struct.pack(">I", 8), 0, 1),
        frame(frames.GOAWAY, struct.pack(">II", 1, 0) + b"bye"),
        frame(frames.PUSH_PROMISE, bytes(4) + block, frames.END_HEADERS, 1),
    ]


def _changed(part: bytes, rng: random.Random) -> bytes:
    size, kind, flags, stream = part[:3], part[3], part[4], part[5:9]
    payload = part[9:]
    what = rng.randrange(6)
    if what == 0:
        size = rng.choice(_LENGTHS).to_bytes(3, "big")
    elif what == 1:
        kind = rng.randrange(11)
    elif what == 2:
        flags ^= 1 << rng.randrange(8)
    elif what == 3:
        stream = struct.pack(">I", rng.choice(_NUMBERS))
    elif what == 4:
        payload = flipped(payload, rng)
        size = len(payload).to_bytes(3, "big")
    else:
        return flipped(part, rng)
    return size + bytes([kind, flags]) + stream + payload


def generate(rng: random.Random) -> bytes:
    """The sizes of pieces in which it arrives, and a stream of frames, most of them valid."""
    parts = [frames.greeting()] if rng.random() < 0.9 else []
    for _ in range(rng.randint(1, 12)):
        part = rng.choice(_usual() if rng.random() < 0.85 else _unusual())
        parts.append(_changed(part, rng) if rng.random() < 0.1 else part)
    return bytes([rng.choice([0, 0, 1, 7, 200])]) + b"".join(parts)


def _text(failure: BaseException | None) -> str:
    """What an error says, without what depends on how much had arrived until then."""
    return str(failure).partition("it speaks")[0]


def _given(contents: bytes, piece: int) -> ClientCall:
    client = ClientCall(frames.REQUEST, "localhost:1", LIMIT)
    client.send(b"request")
    for begin in range(0, len(contents), piece or max(1, len(contents))):
        feed(client, contents[begin : begin + (piece or len(contents))])
        take_outbound(client)
    return client


def check(contents: bytes) -> str:
    """Gives a stream of frames to a client, whole and in pieces."""
    piece, stream = (contents + b"\0")[0], contents[1:]
    client = _given(stream, 0)
    messages, failure = received(client), client.failure
    assert all(len(message) <= LIMIT for message in messages)
    assert failure is None or isinstance(failure, DmEnvRpcClientError), failure
    if piece:
        piece = max(piece, len(stream) // 1000)  # Single bytes of long streams take too long.
        in_pieces = _given(stream, piece)
        again, other = received(in_pieces), in_pieces.failure
        assert again == messages, (again, messages)
        assert (type(other), _text(other)) == (type(failure), _text(failure)), (other, failure)
    if failure is not None:
        return f"{len(messages)} messages, then {type(failure).__name__}"
    client.received(0)
    assert isinstance(client.failure, DmEnvRpcClientError)  # The server has left.
    return f"{len(messages)} messages"
