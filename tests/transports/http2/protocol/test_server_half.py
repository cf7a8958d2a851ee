"""The server's half of a connection, without I/O: what clients may send, and what they may not."""

from __future__ import annotations

import collections
import random
import struct
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dm_env_rpc_client.transports.http2.protocol.server_half import Event, ServerCall, ServerHalf
from dm_env_rpc_client.transports.streams import plain_memory
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
    grpc_message,
)
from tests.transports.raw_client import REQUEST, request, requests

LIMIT = 1 << 20
BEGIN = PREFACE + frames.settings() + frame(SETTINGS, flags=ACK)
OPEN = BEGIN + request(1)
HALF_CLOSED = OPEN + frame(DATA, b"", END_STREAM, 1)
RESET = OPEN + frame(RST_STREAM, struct.pack(">I", 8), 0, 1)

PROTOCOL, FLOW, CLOSED, SIZE, COMPRESSION, CALM = 1, 3, 5, 6, 9, 11


class Server:
    """A half, and a shell that answers each message with twice its bytes."""

    def __init__(self, answers: bool = True, max_streams: int = 10):
        self.half = ServerHalf("the client here", LIMIT, max_streams, plain_memory)
        self.framing = self.half.framing
        self.answers = answers
        self.happened: list[tuple[int, Any]] = []
        self.metadata: list[Any] = []
        self.calls: dict[int, ServerCall] = {}
        self.outbound = b""

    def feed(self, contents: bytes, size: int = 1 << 20) -> None:
        for start in range(0, len(contents), size):
            self._feed(contents[start : start + size])
            self.happen()

    def _feed(self, contents: bytes) -> None:
        while contents and self.framing.failure is None:
            taken = 0
            for buffer in self.framing.buffers():
                part = contents[taken : taken + len(buffer)]
                buffer[: len(part)] = part
                taken += len(part)
            self.framing.received(taken)
            while self.framing.is_behind:
                self.framing.go_on()
            contents = contents[taken:]

    def happen(self) -> None:
        while self.half.events:
            call, what = self.half.events.popleft()
            self.happened.append((call.number, what if isinstance(what, Event) else bytes(what)))
            if what is Event.OPENED:
                self.metadata.append(call.metadata)
                self.calls[call.number] = call
            elif what is Event.ENDED and self.answers:
                call.finish("OK")
            elif self.answers and not isinstance(what, Event):
                call.send(bytes(what) * 2)

    def take_outbound(self) -> bytes:
        outbound = self.framing.sending.outbound
        said = b"".join(map(bytes, outbound))
        outbound.clear()
        self.outbound += said
        return said

    def said(self) -> list[frames.Frame]:
        self.take_outbound()
        return frames.taken_apart(self.outbound)

    def messages(self) -> list[bytes]:
        return [what for _, what in self.happened if isinstance(what, bytes)]


def table(name: str) -> list[tuple[str, str]]:
    return [pair for pair in REQUEST if pair[0] != name]


def headers(
    *pairs: tuple[str | bytes, str | bytes], stream: int = 1, flags: int = END_HEADERS
) -> bytes:
    block = hpack.Encoder().encode([(name, value, True) for name, value in pairs])
    return frame(HEADERS, block, flags, stream)


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in hpack.Decoder().decode(block)]


def increment(stream: int, count: int) -> bytes:
    return frame(WINDOW_UPDATE, struct.pack(">I", count), 0, stream)


def transcript() -> tuple[bytes, list[bytes]]:
    """Everything that is legal, and its messages."""
    messages = [b"", b"x", bytes(range(100)), random.Random(1).randbytes(600)]
    encoder = hpack.Encoder()
    block = encoder.encode([*REQUEST, ("long", "x" * 700), ("key-bin", "AAE,/w")])
    second = encoder.encode([*REQUEST, ("long", "x" * 700), ("key-bin", "AAE,/w")])
    trailers = encoder.encode([("last", "words")])
    content = b"".join(map(grpc_message, messages))
    return b"".join(
        (
            PREFACE,
            frames.settings(window=100_000, frame=20_000, streams=3, table=100),
            frame(SETTINGS, struct.pack(">HI", 0xFF, 7)),
            frame(SETTINGS, flags=ACK),
            increment(0, 100_000),
            frame(PRIORITY, bytes(5), 0, 9),
            frame(HEADERS, b"\x02" + bytes(5) + block[:10] + bytes(2), PADDED | WITH_PRIORITY, 1),
            frame(CONTINUATION, block[10:200], 0, 1),
            frame(CONTINUATION, block[200:], END_HEADERS, 1),
            frame(DATA, content[:3], 0, 1),
            frame(PING, b"question"),
            frame(PING, b"answered", ACK),
            frame(DATA, b"\x07" + content[3:20] + bytes(7), PADDED, 1),
            frame(HEADERS, second, END_HEADERS, 5),
            frame(0x77, bytes(90), 0x12, 1),
            frame(0x78, bytes(5), 0, 0),
            frame(DATA, content[20:300], 0, 1),
            frame(DATA, b"", 0, 1),
            frame(DATA, b"\x00", PADDED, 1),
            requests(5, b"of the other"),
            increment(5, 1_000),
            frame(DATA, content[300:], 0, 1),
            frame(HEADERS, trailers, END_HEADERS | END_STREAM, 1),
            frame(RST_STREAM, struct.pack(">I", 8), 0, 5),
            increment(1, 10),
            frame(PRIORITY, bytes(5), 0, 5),
            frame(RST_STREAM, struct.pack(">I", 8), 0, 5),
            frame(GOAWAY, struct.pack(">II", 0, 0) + b"bye"),
        )
    ), messages


@pytest.mark.parametrize("size", [1, 2, 3, 13, 100, 4_096, 1 << 20])
def test_bytes_may_come_in_pieces_of_any_size(size: int) -> None:
    contents, messages = transcript()
    server = Server()
    server.feed(contents, size)
    assert server.framing.failure is None
    assert [what for number, what in server.happened if number == 1] == [
        Event.OPENED,
        *messages,
        Event.ENDED,
    ]
    assert [what for number, what in server.happened if number == 5] == [
        Event.OPENED,
        b"of the other",
        Event.GONE,
    ]
    assert server.metadata[0][1:] == (("key-bin", b"\0\1"), ("key-bin", b"\xff"))
    assert server.metadata[0] == server.metadata[1]
    assert (PING, ACK, 0, b"question") in server.said()
    content = b"".join(part.payload for part in server.said() if part[:3:2] == (DATA, 1))
    assert content == b"".join(grpc_message(message * 2) for message in messages)


@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_connection_may_be_cut_in_two_anywhere(step: int) -> None:
    contents, messages = transcript()
    whole = Server()
    whole.feed(contents)
    for cut in range(1, len(contents), step):
        server = Server()
        server.feed(contents[:cut])
        server.feed(contents[cut:])
        assert server.framing.failure is None, cut
        assert sorted(server.messages()) == sorted([*messages, b"of the other"]), cut


CONNECTION_ERRORS: dict[str, tuple[bytes, int]] = {
    # Section 3.4 and 4: the preface and frames.
    "a frame before SETTINGS": (PREFACE + frame(PING, bytes(8)), 0),
    "a window before SETTINGS": (PREFACE + increment(0, 1), 0),
    "SETTINGS that acknowledge first": (PREFACE + frame(SETTINGS, flags=ACK) + request(1), 0),
    "HTTP/1": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0),
    "a preface with a mistake": (PREFACE[:-1] + b"?" + frames.settings(), 0),
    "101 settings": (OPEN + frame(SETTINGS, struct.pack(">HI", 4, 70_000) * 101), CALM),
    "a large SETTINGS": (BEGIN + frame(SETTINGS, bytes(6 * 11_000)), SIZE),
    "a large GOAWAY": (BEGIN + frame(GOAWAY, bytes(65_000)), SIZE),
    # 4.3 and 6.10: header blocks.
    "CONTINUATION alone": (BEGIN + frame(CONTINUATION, b"", END_HEADERS, 1), PROTOCOL),
    "CONTINUATION after the end": (OPEN + frame(CONTINUATION, b"", END_HEADERS, 1), PROTOCOL),
    "CONTINUATION on another stream": (
        BEGIN + request(1, flags=0) + frame(CONTINUATION, b"", END_HEADERS, 3),
        PROTOCOL,
    ),
    "CONTINUATION on stream 0": (BEGIN + frame(CONTINUATION, b"", END_HEADERS, 0), PROTOCOL),
    "DATA inside a block": (BEGIN + request(1, flags=0) + requests(1, b"x"), PROTOCOL),
    "PING inside a block": (BEGIN + request(1, flags=0) + frame(PING, bytes(8)), PROTOCOL),
    "a window inside a block": (BEGIN + request(1, flags=0) + increment(0, 1), PROTOCOL),
    "HEADERS inside a block": (BEGIN + request(1, flags=0) + request(3), PROTOCOL),
    "an unknown frame inside a block": (BEGIN + request(1, flags=0) + frame(0x77), PROTOCOL),
    "a block of many frames": (
        BEGIN + request(1, flags=0) + frame(CONTINUATION, b"", 0, 1) * 65,
        CALM,
    ),
    "a block of many bytes": (
        BEGIN + request(1, flags=0) + frame(CONTINUATION, bytes(9_000), 0, 1) * 2,
        CALM,
    ),
    "a block of many bytes at once": (BEGIN + frame(HEADERS, bytes(20_000), 0, 1), CALM),
    "a block of 1 MiB": (BEGIN + frame(HEADERS, bytes(1 << 20), END_HEADERS, 1), CALM),
    "a list of 1 MiB in few bytes": (
        BEGIN
        + frame(
            HEADERS,
            hpack.Encoder().encode([*REQUEST, ("x", "y" * 4_000)]) + b"\xbe" * 260,
            END_HEADERS,
            1,
        ),
        CALM,
    ),
    # 5.1: streams.
    "an even stream": (BEGIN + request(2), PROTOCOL),
    "HEADERS on stream 0": (BEGIN + request(0), PROTOCOL),
    "a lower stream": (BEGIN + request(5) + request(3), CLOSED),
    "DATA on stream 0": (OPEN + requests(0, b"x"), PROTOCOL),
    "DATA on an idle stream": (OPEN + requests(3, b"x"), PROTOCOL),
    "DATA on an even stream": (OPEN + requests(2, b"x"), PROTOCOL),
    "a window on an idle stream": (OPEN + increment(3, 1), PROTOCOL),
    "RST_STREAM on an idle stream": (OPEN + frame(RST_STREAM, bytes(4), 0, 3), PROTOCOL),
    "RST_STREAM on an even stream": (OPEN + frame(RST_STREAM, bytes(4), 0, 2), PROTOCOL),
    "HEADERS after RST_STREAM": (RESET + request(1), CLOSED),
    # 6: frames.
    "DATA with too much padding": (OPEN + frame(DATA, b"\x09abc", PADDED, 1), PROTOCOL),
    "DATA without the length of its padding": (OPEN + frame(DATA, b"", PADDED, 1), PROTOCOL),
    "HEADERS with too much padding": (
        BEGIN + frame(HEADERS, b"\x05a", PADDED | END_HEADERS, 1),
        PROTOCOL,
    ),
    "HEADERS without their padding": (
        BEGIN + frame(HEADERS, b"", PADDED | END_HEADERS, 1),
        PROTOCOL,
    ),
    "HEADERS without their priority": (
        BEGIN + frame(HEADERS, b"abc", WITH_PRIORITY | END_HEADERS, 1),
        SIZE,
    ),
    "PRIORITY on stream 0": (OPEN + frame(PRIORITY, bytes(5), 0, 0), PROTOCOL),
    "a short PRIORITY on an idle stream": (OPEN + frame(PRIORITY, bytes(4), 0, 9), SIZE),
    "RST_STREAM on stream 0": (OPEN + frame(RST_STREAM, bytes(4), 0, 0), PROTOCOL),
    "a short RST_STREAM": (OPEN + frame(RST_STREAM, bytes(3), 0, 1), SIZE),
    "a long RST_STREAM": (OPEN + frame(RST_STREAM, bytes(5), 0, 1), SIZE),
    "SETTINGS on a stream": (OPEN + frame(SETTINGS, b"", 0, 1), PROTOCOL),
    "half a setting": (OPEN + frame(SETTINGS, bytes(5)), SIZE),
    "an acknowledgement with contents": (OPEN + frame(SETTINGS, bytes(6), ACK), SIZE),
    "a huge window": (OPEN + frames.settings(window=1 << 31), FLOW),
    "a maximum frame that is too small": (OPEN + frames.settings(frame=16_383), PROTOCOL),
    "a maximum frame that is too large": (OPEN + frames.settings(frame=1 << 24), PROTOCOL),
    "ENABLE_PUSH of 2": (OPEN + frame(SETTINGS, struct.pack(">HI", 2, 2)), PROTOCOL),
    "PUSH_PROMISE": (OPEN + frame(PUSH_PROMISE, bytes(10), END_HEADERS, 1), PROTOCOL),
    "a short PING": (OPEN + frame(PING, bytes(7)), SIZE),
    "a long PING": (OPEN + frame(PING, bytes(9)), SIZE),
    "PING on a stream": (OPEN + frame(PING, bytes(8), 0, 1), PROTOCOL),
    "a short GOAWAY": (OPEN + frame(GOAWAY, bytes(7)), SIZE),
    "GOAWAY on a stream": (OPEN + frame(GOAWAY, bytes(8), 0, 1), PROTOCOL),
    "a short WINDOW_UPDATE": (OPEN + frame(WINDOW_UPDATE, bytes(3)), SIZE),
    "a window by 0": (OPEN + increment(0, 0), PROTOCOL),
    "a window too far": (OPEN + increment(0, (1 << 31) - 1), FLOW),
    "an initial window too far": (
        OPEN + increment(1, (1 << 31) - 1 - 65_535) + frames.settings(window=65_536),
        FLOW,
    ),
    "an initial window too far for a moment": (
        OPEN
        + increment(1, (1 << 31) - 1 - 65_535)
        + frame(SETTINGS, struct.pack(">HIHI", 4, 65_536, 4, 10)),
        FLOW,
    ),
    "more than the window of the connection": (
        BEGIN
        + request(1)
        + frame(DATA, bytes(8_388_607), 0, 1)
        + frame(DATA, bytes(16_777_215), 0, 1),
        FLOW,
    ),
    # RFC 7541.
    "an index of 0": (BEGIN + frame(HEADERS, b"\x80", END_HEADERS, 1), COMPRESSION),
    "an index beyond the table": (BEGIN + frame(HEADERS, b"\xfe", END_HEADERS, 1), COMPRESSION),
    "half an index": (BEGIN + frame(HEADERS, b"\xff\xff", END_HEADERS, 1), COMPRESSION),
    "an index without end": (
        BEGIN + frame(HEADERS, b"\xff" * 16_000 + b"\0", END_HEADERS, 1),
        COMPRESSION,
    ),
    "half a name": (BEGIN + frame(HEADERS, b"\x40\x0aabc", END_HEADERS, 1), COMPRESSION),
    "half a value": (BEGIN + frame(HEADERS, b"\x40\x01a\x0ab", END_HEADERS, 1), COMPRESSION),
    "no value": (BEGIN + frame(HEADERS, b"\x40\x01a", END_HEADERS, 1), COMPRESSION),
    "EOS in a string": (
        BEGIN + frame(HEADERS, b"\x40\x01a\x84\xff\xff\xff\xff", END_HEADERS, 1),
        COMPRESSION,
    ),
    "padding with zeros": (
        BEGIN + frame(HEADERS, b"\x40\x01a\x81\x18", END_HEADERS, 1),
        COMPRESSION,
    ),
    "a table that is too large": (
        BEGIN + frame(HEADERS, b"\x3f\xe2\x1f", END_HEADERS, 1),
        COMPRESSION,
    ),
    "a table's size after a header": (
        BEGIN + frame(HEADERS, b"\x82\x20", END_HEADERS, 1),
        COMPRESSION,
    ),
    "an entry of a table that was emptied": (
        BEGIN
        + frame(HEADERS, b"\x40\x01a\x01b", END_HEADERS, 1)
        + frame(HEADERS, b"\x20\xbe", END_HEADERS, 3),
        COMPRESSION,
    ),
}


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_what_ends_the_connection(name: str, size: int) -> None:
    contents, code = CONNECTION_ERRORS[name]
    server = Server()
    server.feed(contents, size if len(contents) < 10_000 else 1 << 20)
    assert server.framing.failure is not None
    assert "the client here" in str(server.framing.failure)
    found = [part for part in server.said() if part.kind == GOAWAY]
    # Who does not speak HTTP/2 would not understand it (section 3.4).
    assert [struct.unpack(">II", part.payload)[1] for part in found] == ([code] if code else [])
    # No call is left, and nothing is taken any more.
    assert not server.half.calls
    opened = {number for number, what in server.happened if what is Event.OPENED}
    assert {number for number, what in server.happened if what is Event.GONE} >= opened - {
        number for number, what in server.happened if what is Event.ENDED
    }
    before = list(server.happened)
    server.feed(requests(1, b"late"))
    server.framing.received(0)
    assert server.happened == before


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

STREAM_ERRORS: dict[str, tuple[bytes, int]] = {
    # Section 8: malformed requests.
    "no method": (malformed(*table(":method")), PROTOCOL),
    "no scheme": (malformed(*table(":scheme")), PROTOCOL),
    "no path": (malformed(*table(":path")), PROTOCOL),
    "an empty path": (malformed(*table(":path"), (":path", "")), PROTOCOL),
    "two methods": (malformed((":method", "POST"), *REQUEST), PROTOCOL),
    "two paths": (malformed((":path", "/"), *REQUEST), PROTOCOL),
    "a pseudo-header of answers": (malformed((":status", "200"), *REQUEST), PROTOCOL),
    "an unknown pseudo-header": (malformed((":protocol", "x"), *REQUEST), PROTOCOL),
    "a late pseudo-header": (
        malformed(*table(":path"), (":path", "/")),
        PROTOCOL,
    ),
    **{
        name: (malformed(*table("te"), header), PROTOCOL)
        for name, header in MALFORMED_HEADERS.items()
    },
    **{
        f"{name} in trailers": (OPEN + headers(header, flags=END_HEADERS | END_STREAM), PROTOCOL)
        for name, header in MALFORMED_HEADERS.items()
    },
    "a path of two lines": (malformed(*table(":path")[:2], (":path", "/\n")), PROTOCOL),
    "CONNECT": (malformed((":method", "CONNECT"), (":authority", "x")), PROTOCOL),
    "a broken content-length": (malformed(*REQUEST, ("content-length", "x")), PROTOCOL),
    "a negative content-length": (malformed(*REQUEST, ("content-length", "-1")), PROTOCOL),
    "two content-lengths": (
        malformed(*REQUEST, ("content-length", "1"), ("content-length", "2")),
        PROTOCOL,
    ),
    "less than the content-length": (
        malformed(*REQUEST, ("content-length", "7")) + requests(1, b"x", end=True),
        PROTOCOL,
    ),
    "more than the content-length": (
        malformed(*REQUEST, ("content-length", "5")) + requests(1, b"x", end=True),
        PROTOCOL,
    ),
    "no content of the content-length": (
        BEGIN + headers(*REQUEST, ("content-length", "5"), flags=END_HEADERS | END_STREAM),
        PROTOCOL,
    ),
    "pseudo-headers in trailers": (
        OPEN + headers((":path", "/"), flags=END_HEADERS | END_STREAM),
        PROTOCOL,
    ),
    "trailers that end nothing": (OPEN + headers(("a", "b")), PROTOCOL),
    "an end inside a message": (OPEN + frame(DATA, b"\0\0\0\0\x09abc", END_STREAM, 1), PROTOCOL),
    "an end inside a prefix": (OPEN + frame(DATA, b"\0\0", END_STREAM, 1), PROTOCOL),
    # 5.1: closed streams.
    "DATA after END_STREAM": (HALF_CLOSED + requests(1, b"x"), CLOSED),
    "HEADERS after END_STREAM": (
        HALF_CLOSED + headers(("a", "b"), flags=END_HEADERS | END_STREAM),
        CLOSED,
    ),
    "DATA after RST_STREAM": (RESET + requests(1, b"x"), CLOSED),
    # 6.
    "a short PRIORITY": (OPEN + frame(PRIORITY, bytes(4), 0, 1), SIZE),
    "a window by 0": (OPEN + increment(1, 0), PROTOCOL),
    "a window too far": (OPEN + increment(1, (1 << 31) - 1), FLOW),
    "more than the window of the stream": (
        OPEN + frame(DATA, b"\0\0\x0f\xff\xff" + bytes(1_048_572), 0, 1),
        FLOW,
    ),
}


@pytest.mark.parametrize("name", STREAM_ERRORS)
@pytest.mark.parametrize("size", [7, 1 << 22])
def test_what_ends_one_stream(name: str, size: int) -> None:
    contents, code = STREAM_ERRORS[name]
    server = Server(answers=False)
    server.feed(contents, size if len(contents) < 10_000 else 1 << 22)
    assert server.framing.failure is None
    resets = [
        (part.stream, struct.unpack(">I", part.payload)[0])
        for part in server.said()
        if part.kind == RST_STREAM
    ]
    assert resets == [(1, code)]
    assert not server.half.calls
    if (1, Event.OPENED) in server.happened:
        assert server.happened.count((1, Event.GONE)) == 1
    # What is still under way of the stream is not answered, and others work.
    server.feed(requests(1, b"late") + request(3) + requests(3, b"x"))
    assert server.messages()[-1] == b"x"
    assert b"late" not in server.messages()
    assert server.framing.failure is None


HTTP_ANSWERS = {
    "GET": (((":method", "GET"), *REQUEST[1:]), "405"),
    "no content type": (table("content-type"), "415"),
    "a web form": ((*table("content-type"), ("content-type", "text/html")), "415"),
}


@pytest.mark.parametrize("name", HTTP_ANSWERS)
@pytest.mark.parametrize("flags", [END_HEADERS, END_HEADERS | END_STREAM])
def test_what_is_not_grpc_gets_an_http_status(name: str, flags: int) -> None:
    pairs, status = HTTP_ANSWERS[name]
    server = Server()
    server.feed(BEGIN + headers(*pairs, flags=flags))
    said = [part for part in server.said() if part.stream == 1]
    assert decoded(said[0].payload) == [(":status", status)]
    assert said[0].flags & END_STREAM
    # The client is told to stop only if it has not (section 8.1).
    assert [part.kind for part in said[1:]] == ([] if flags & END_STREAM else [RST_STREAM])


ALLOWED = {
    "a content-length": malformed(*REQUEST, ("content-length", "6")) + requests(1, b"x", end=True),
    "blanks around a value": malformed(*REQUEST, ("a", " b\t")),
    "a value beyond ASCII": malformed(*REQUEST, ("a", b"\xff")),
    "a window and RST_STREAM after RST_STREAM": RESET
    + increment(1, 5)
    + frame(RST_STREAM, bytes(4), 0, 1),
    "PRIORITY on any stream": RESET
    + frame(PRIORITY, bytes(5), 0, 1)
    + frame(PRIORITY, bytes(5), 0, 99),
    "GOAWAY, and streams after it": OPEN + frame(GOAWAY, bytes(8)) + request(3),
    "a reserved bit": BEGIN + frame(WINDOW_UPDATE, b"\x80\0\0\1", 0, 1 << 31),
    "SETTINGS of 100 windows": OPEN + frame(SETTINGS, struct.pack(">HI", 4, 70_000) * 100),
    "a smaller table": BEGIN + frame(HEADERS, b"\x20\x3f\x09" + request(1)[9:], END_HEADERS, 1),
    "streams with gaps": BEGIN + request(5) + request(101),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed(name: str) -> None:
    server = Server()
    server.feed(ALLOWED[name])
    assert server.framing.failure is None
    assert not [part for part in server.said() if part.kind in (GOAWAY, RST_STREAM)]
    server.feed(request(201) + requests(201, b"x"))
    assert server.messages()[-1] == b"x"


def test_streams_beyond_the_limit_are_refused_and_the_client_may_try_again() -> None:
    server = Server(answers=False, max_streams=2)
    server.feed(BEGIN + request(1) + request(3) + request(5) + requests(5, b"x", end=True))
    assert [part for part in server.said() if part.kind == RST_STREAM] == [
        (RST_STREAM, 0, 5, struct.pack(">I", 7))
    ]
    server.feed(frame(RST_STREAM, bytes(4), 0, 1) + request(7) + requests(7, b"y"))
    assert server.messages() == [b"y"]


def test_a_large_or_compressed_message_ends_its_stream_with_a_status() -> None:
    for prefix, code in ((b"\0" + struct.pack(">I", LIMIT + 1), "8"), (b"\1\0\0\0\2ab", "12")):
        server = Server()
        server.feed(OPEN + requests(1, b"x") + frame(DATA, prefix + bytes(10), 0, 1))
        server.feed(request(3) + requests(3, b"y"))
        said = [part for part in server.said() if part.stream == 1 and part.kind == HEADERS]
        assert ("grpc-status", code) in decoded(said[-1].payload)
        assert server.messages() == [b"x", b"y"]
        assert server.happened.count((1, Event.GONE)) == 1


def test_a_stream_may_end_while_its_message_arrives() -> None:
    """In another thread, between the call of `buffers` and that of `received`."""
    server = Server()
    message = bytes(500_000)
    server.feed(OPEN + requests(1, message)[:200_000])
    direct, _ = server.framing.buffers()
    server.calls[1].finish("INTERNAL", "over")
    server.framing.received(len(direct))
    assert server.framing.failure is None
    server.happen()
    server.feed(request(3) + requests(3, b"x"))
    assert server.messages() == [b"x"]


def test_tiny_windows_are_used_to_the_last_byte() -> None:
    server = Server()
    server.feed(PREFACE + frames.settings(window=1) + request(1) + requests(1, b"abc", b"d"))
    content = grpc_message(b"abcabc") + grpc_message(b"dd")
    for count in range(1, len(content) + 1):
        sent = b"".join(part.payload for part in server.said() if part.kind == DATA)
        assert sent == content[:count]
        server.feed(increment(1, 1))


def test_the_window_of_the_connection_is_shared_in_turns() -> None:
    server = Server()
    server.feed(PREFACE + frames.settings(window=1 << 20) + request(1) + request(3))
    # The first takes all of the connection's window.
    server.feed(requests(1, bytes(100_000)) + requests(3, bytes(100_000)))
    server.take_outbound()
    for _ in range(10):
        server.feed(increment(0, 32_768))
        streams = [part.stream for part in frames.taken_apart(server.take_outbound())]
        assert {1, 3} <= set(streams) or server.calls[1].has_unsent != server.calls[3].has_unsent
    server.feed(increment(0, 1 << 20))
    assert not server.calls[1].has_unsent
    assert not server.calls[3].has_unsent


def test_trailers_need_no_window() -> None:
    server = Server()
    server.feed(PREFACE + frames.settings(window=1 << 20) + request(1) + request(3) + request(5))
    server.feed(requests(1, bytes(40_000)) + frame(DATA, b"", END_STREAM, 3))
    assert server.calls[1].has_unsent
    server.feed(increment(0, 10) + frame(DATA, b"", END_STREAM, 5))
    ended = [part.stream for part in server.said() if part.kind == HEADERS and part.flags & 1]
    assert ended == [3, 5]


FLOODS = {
    "PING": frame(PING, bytes(8), ACK),
    "PRIORITY": frame(PRIORITY, bytes(5), 0, 1),
    "WINDOW_UPDATE": increment(0, 1),
    "WINDOW_UPDATE of a stream": increment(1, 1),
    "empty DATA": frame(DATA, b"", 0, 1),
    "RST_STREAM": frame(RST_STREAM, bytes(4), 0, 1),
    "unknown frames": frame(0x77),
    "acknowledgements": frame(SETTINGS, flags=ACK),
}


@pytest.mark.parametrize("name", FLOODS)
def test_frames_without_content_come_to_an_end(name: str) -> None:
    server = Server()
    server.feed(OPEN)
    for _ in range(11):
        server.feed(FLOODS[name] * 10_000)
    found = [part.payload for part in server.said() if part.kind == GOAWAY]
    assert found == [struct.pack(">II", 1, CALM)]


@pytest.mark.parametrize("flood", [frame(PING, bytes(8)), frames.settings()])
def test_who_is_to_be_answered_has_to_read(flood: bytes) -> None:
    server = Server()
    server.feed(OPEN)
    server.feed(flood * 2_000)
    found = [part.payload for part in server.said() if part.kind == GOAWAY]
    assert found == [struct.pack(">II", 1, CALM)]


def test_time_forgives() -> None:
    server = Server()
    server.feed(OPEN)
    for _ in range(60):
        server.feed(increment(0, 1) * 2_000)
        for _ in range(20):
            server.half.forgive()
    assert server.framing.failure is None


@pytest.mark.parametrize("seed", range(6))
def test_mutated_connections_give_events_or_one_error(seed: int) -> None:
    contents, _ = transcript()
    rng = random.Random(seed)
    failed = 0
    for _ in range(250):
        server = Server()
        server.feed(frames.mutated(contents, rng), rng.choice([100, 1 << 20]))
        failed += server.framing.failure is not None
        server.framing.received(0)
        server.happen()
        assert server.framing.failure is not None
        assert not server.half.calls
        counts = collections.Counter(
            number for number, what in server.happened if what is Event.GONE
        )
        assert set(counts.values()) <= {1}
        server.said()
    assert failed > 30


class Conversation(RuleBasedStateMachine):
    """The half against h2, which checks all that a server may do."""

    @initialize(window=st.integers(65_535, 200_000), frame_size=st.sampled_from([16_384, 100_000]),
                table=st.sampled_from([0, 100, 4_096]))  # fmt: skip
    def begin(self, window: int, frame_size: int, table: int) -> None:
        codes = h2.settings.SettingCodes
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.client = h2.connection.H2Connection(config)
        self.client.local_settings = h2.settings.Settings(
            client=True,
            initial_values={
                codes.INITIAL_WINDOW_SIZE: window,
                codes.MAX_FRAME_SIZE: frame_size,
                codes.HEADER_TABLE_SIZE: table,
                codes.ENABLE_PUSH: 0,
            },
        )
        self.client.max_inbound_frame_size = frame_size
        self.client.decoder.max_allowed_table_size = table
        self.client.initiate_connection()
        self.server = Server(max_streams=100)
        self.to_server, self.to_client = bytearray(), bytearray()
        self.asked: dict[int, list[bytes]] = {}
        self.heard: dict[int, bytearray] = {}
        self.ended: set[int] = set()
        self.status: dict[int, str] = {}
        self.reset: set[int] = set()
        self.pings = collections.Counter[str]()
        self.next_stream = 1
        self.unacknowledged = 1

    def _live(self) -> list[int]:
        return [one for one in self.asked if one not in self.ended and one not in self.reset]

    def _pump(self) -> None:
        self.to_server += self.client.data_to_send()

    @rule(more=st.sampled_from([0, 10, 3_000]))
    @precondition(lambda self: len(self._live()) < 8)
    def client_opens(self, more: int) -> None:
        number, self.next_stream = self.next_stream, self.next_stream + 2
        self.client.send_headers(number, [*REQUEST, ("more", "x" * more)])
        self.asked[number], self.heard[number] = [], bytearray()
        self._pump()

    @rule(size=st.integers(0, 300) | st.integers(0, 60_000), pad=st.integers(0, 255) | st.none(),
          cuts=st.integers(1, 4), seed=st.integers(0, 99), end=st.booleans())  # fmt: skip
    @precondition(lambda self: self._live())
    def client_asks(self, size: int, pad: int | None, cuts: int, seed: int, end: bool) -> None:
        rng = random.Random(seed)
        number = rng.choice(self._live())
        message = rng.randbytes(size)
        content = grpc_message(message)
        room = self.client.local_flow_control_window(number)
        if len(content) + 260 * (len(content) // 100 + cuts) > room:
            return
        self.asked[number].append(message)
        step = min(self.client.max_outbound_frame_size - 256, len(content) // cuts + 1)
        for start in range(0, len(content), step):
            is_last = end and start + step >= len(content)
            part = content[start : start + step]
            self.client.send_data(number, part, pad_length=pad, end_stream=is_last)
        if end:
            self.ended.add(number)
        self._pump()

    @rule(seed=st.integers(0, 99))
    @precondition(lambda self: self._live())
    def client_resets(self, seed: int) -> None:
        number = random.Random(seed).choice(self._live())
        self.client.reset_stream(number, 8)
        self.reset.add(number)
        self._pump()

    @rule(count=st.integers(1, 500_000), seed=st.integers(0, 99))
    def client_opens_a_window(self, count: int, seed: int) -> None:
        choices = [None, *self._live()]
        self.client.increment_flow_control_window(count, random.Random(seed).choice(choices))
        self._pump()

    @rule(window=st.integers(0, 300_000))
    @precondition(lambda self: not self.unacknowledged)
    def client_changes_settings(self, window: int) -> None:
        self.unacknowledged += 1
        self.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._pump()

    @rule()
    def client_pings(self) -> None:
        self.client.ping(b"12345678")
        self.pings["asked"] += 1
        self._pump()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_server(self, share: float) -> None:
        count = round(len(self.to_server) * share)
        self.server.feed(bytes(self.to_server[:count]))
        del self.to_server[:count]
        self.to_client += self.server.take_outbound()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_client(self, share: float) -> None:
        count = round(len(self.to_client) * share)
        for event in self.client.receive_data(bytes(self.to_client[:count])):
            self._on_event(event)
        del self.to_client[:count]
        self._pump()

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.heard[event.stream_id] += event.data
        elif isinstance(event, h2.events.TrailersReceived | h2.events.ResponseReceived):
            status = {str(name): str(value) for name, value in event.headers}.get("grpc-status")
            if status is not None:
                self.status[event.stream_id] = status
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings["answered"] += 1
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.unacknowledged -= 1
        assert not isinstance(event, h2.events.ConnectionTerminated | h2.events.StreamReset)

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if not hasattr(self, "server"):
            return
        assert self.server.framing.failure is None, self.server.framing.failure
        for number, asked in self.asked.items():
            answers = b"".join(grpc_message(message * 2) for message in asked)
            assert answers.startswith(bytes(self.heard[number]))

    def teardown(self) -> None:
        if not hasattr(self, "server"):
            return
        for _ in range(4):
            self.bytes_reach_the_server(1.0)
            self.bytes_reach_the_client(1.0)
            self.client.increment_flow_control_window(20_000_000)
            for number in self.asked:
                if number not in self.reset and number not in self.status:
                    self.client.increment_flow_control_window(20_000_000, number)
            self._pump()
        self.nothing_is_lost_or_made_up()
        assert self.pings["asked"] == self.pings["answered"]
        for number, asked in self.asked.items():
            if number in self.reset:
                continue
            answers = b"".join(grpc_message(message * 2) for message in asked)
            assert bytes(self.heard[number]) == answers
            assert self.status.get(number) == ("0" if number in self.ended else None)


Conversation.TestCase.settings = hypothesis_settings(
    max_examples=40, stateful_step_count=30, deadline=None
)
TestConversation = Conversation.TestCase
