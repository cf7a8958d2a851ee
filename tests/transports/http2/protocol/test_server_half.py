"""The server's half of a connection, without I/O: what clients may send, and what they may not."""

from __future__ import annotations

import random
import struct

import hpack
import pytest

from dm_env_rpc_client.transports.http2.protocol.server_half import Event
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
    RST_STREAM,
    SETTINGS,
    WITH_PRIORITY,
    frame,
    goaway,
    grpc_message,
    reset,
    window_update,
)
from tests.transports.raw_client import REQUEST, request, requests
from tests.transports.server_shell import BEGIN, LIMIT, OPEN, Server, headers
from tests.transports.violations import ALLOWED, CALM, CONNECTION_ERRORS, STREAM_ERRORS, table


def decoded(block: bytes) -> list[tuple[str, str]]:
    return [(str(name), str(value)) for name, value in hpack.Decoder().decode(block)]


def transcript() -> tuple[bytes, list[bytes]]:
    """Everything that is legal, and its messages."""
    messages = [b"", b"x", bytes(range(100)), random.Random(1).randbytes(600)]
    encoder = hpack.Encoder()
    pairs = [*REQUEST, ("long", "x" * 700), ("key-bin", "AAE,/w")]
    block, second = encoder.encode(pairs), encoder.encode(pairs)
    trailers = encoder.encode([("last", "words")])
    content = b"".join(map(grpc_message, messages))
    return b"".join(
        (
            PREFACE,
            frames.settings(window=100_000, frame=20_000, streams=3, table=100),
            frame(SETTINGS, struct.pack(">HI", 0xFF, 7)),
            frame(SETTINGS, flags=ACK),
            window_update(0, 100_000),
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
            window_update(5, 1_000),
            frame(DATA, content[300:], 0, 1),
            frame(HEADERS, trailers, END_HEADERS | END_STREAM, 1),
            reset(5),
            window_update(1, 10),
            frame(PRIORITY, bytes(5), 0, 5),
            reset(5),
            goaway(0, 0, b"bye"),
        )
    ), messages


@pytest.mark.parametrize("size", [1, 2, 3, 13, 100, 4_096, 1 << 20])
def test_bytes_may_come_in_pieces_of_any_size(size: int) -> None:
    contents, messages = transcript()
    server = Server()
    server.feed(contents, size)
    assert server.framing.failure is None
    assert server.of_stream(1) == [Event.OPENED, *messages, Event.ENDED]
    assert server.of_stream(5) == [Event.OPENED, b"of the other", Event.GONE]
    assert server.metadata[0][1:] == (("key-bin", b"\0\1"), ("key-bin", b"\xff"))
    assert server.metadata[0] == server.metadata[1]
    assert (PING, ACK, 0, b"question") in server.said()
    content = b"".join(part.payload for part in server.said() if part[:3:2] == (DATA, 1))
    assert content == b"".join(grpc_message(message * 2) for message in messages)


@pytest.mark.parametrize("name", CONNECTION_ERRORS)
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_what_ends_the_connection(name: str, size: int) -> None:
    contents, code = CONNECTION_ERRORS[name]
    server = Server()
    server.feed(contents, size if len(contents) < 10_000 else 1 << 20)
    assert server.framing.failure is not None
    assert "the client here" in str(server.framing.failure)
    # Who does not speak HTTP/2 would not understand it (section 3.4).
    codes = [struct.unpack(">II", part.payload)[1] for part in server.said(GOAWAY)]
    assert codes == ([code] if code else [])
    # No call is left, and nothing is taken any more.
    assert not server.half.calls
    for number in {number for number, _ in server.happened}:
        assert {Event.GONE, Event.ENDED} & set(server.of_stream(number))
    before = list(server.happened)
    server.feed(requests(1, b"late"))
    server.framing.received(0)
    assert server.happened == before


@pytest.mark.parametrize("name", STREAM_ERRORS)
@pytest.mark.parametrize("size", [7, 1 << 22])
def test_what_ends_one_stream(name: str, size: int) -> None:
    contents, code = STREAM_ERRORS[name]
    server = Server(answers=False)
    server.feed(contents, size if len(contents) < 10_000 else 1 << 22)
    assert server.framing.failure is None
    assert server.said(RST_STREAM) == frames.taken_apart(reset(1, code))
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
    assert server.said(RST_STREAM) == frames.taken_apart(reset(5, 7))
    server.feed(reset(1) + request(7) + requests(7, b"y"))
    assert server.messages() == [b"y"]


def test_a_large_or_compressed_message_ends_its_stream_with_a_status() -> None:
    for prefix, code in ((b"\0" + struct.pack(">I", LIMIT + 1), "8"), (b"\1\0\0\0\2ab", "12")):
        server = Server()
        server.feed(OPEN + requests(1, b"x") + frame(DATA, prefix + bytes(10), 0, 1))
        server.feed(request(3) + requests(3, b"y"))
        said = [part.payload for part in server.said(HEADERS) if part.stream == 1]
        assert ("grpc-status", code) in decoded(said[-1])
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


def test_the_window_of_the_connection_is_shared_in_turns() -> None:
    server = Server()
    server.feed(PREFACE + frames.settings(window=1 << 20) + request(1) + request(3))
    # The first takes all of the connection's window.
    server.feed(requests(1, bytes(100_000)) + requests(3, bytes(100_000)))
    server.take_outbound()
    for _ in range(10):
        server.feed(window_update(0, 32_768))
        streams = [part.stream for part in frames.taken_apart(server.take_outbound())]
        assert {1, 3} <= set(streams) or server.calls[1].has_unsent != server.calls[3].has_unsent
    server.feed(window_update(0, 1 << 20))
    assert not server.calls[1].has_unsent
    assert not server.calls[3].has_unsent


def test_trailers_need_no_window() -> None:
    server = Server()
    server.feed(PREFACE + frames.settings(window=1 << 20) + request(1) + request(3) + request(5))
    server.feed(requests(1, bytes(40_000)) + frame(DATA, b"", END_STREAM, 3))
    assert server.calls[1].has_unsent
    server.feed(window_update(0, 10) + frame(DATA, b"", END_STREAM, 5))
    assert [part.stream for part in server.said(HEADERS) if part.flags & END_STREAM] == [3, 5]


FLOODS = {
    "PING": frame(PING, bytes(8), ACK),
    "PRIORITY": frame(PRIORITY, bytes(5), 0, 1),
    "WINDOW_UPDATE": window_update(0, 1),
    "WINDOW_UPDATE of a stream": window_update(1, 1),
    "empty DATA": frame(DATA, b"", 0, 1),
    "RST_STREAM": reset(1),
    "unknown frames": frame(0x77),
    "acknowledgements": frame(SETTINGS, flags=ACK),
}


@pytest.mark.parametrize("name", FLOODS)
def test_frames_without_content_come_to_an_end(name: str) -> None:
    server = Server()
    server.feed(OPEN)
    for _ in range(11):
        server.feed(FLOODS[name] * 10_000)
    assert server.said(GOAWAY) == frames.taken_apart(goaway(1, CALM))


RESET_STREAMS = 200
"""So many streams may a client open in vain."""


def rapid_resets(first: int, count: int) -> bytes:
    """Streams that are opened and reset at once, by their numbers."""
    return b"".join(request(2 * i + 1) + reset(2 * i + 1) for i in range(first, first + count))


def is_calmed(server: Server) -> bool:
    """Whether the connection was ended with ENHANCE_YOUR_CALM."""
    if server.framing.failure is None:
        return False
    (said,) = server.said(GOAWAY)
    assert struct.unpack(">II", said.payload)[1] == CALM
    assert f"more than {RESET_STREAMS} streams" in str(server.framing.failure)
    return True


@pytest.mark.parametrize("accepted", [True, False])
def test_each_answer_on_an_accepted_stream_gives_one_back(accepted: bool) -> None:
    server = Server()
    server.feed(OPEN)
    if accepted:
        server.calls[1].accept()
    server.feed(rapid_resets(1, 10) + requests(1, b"x") * 4)
    # Ten were spent; the answers to four messages gave as many back, if they were to have any.
    server.feed(rapid_resets(11, RESET_STREAMS - 10 + 4 * accepted + 1))
    assert not is_calmed(server)
    server.feed(rapid_resets(11 + RESET_STREAMS, 1))
    assert is_calmed(server)


def test_a_second_gives_twenty_of_the_streams_back() -> None:
    server = Server()
    server.feed(BEGIN + rapid_resets(0, RESET_STREAMS + 1))
    server.half.replenish()
    server.feed(rapid_resets(RESET_STREAMS + 1, 20))
    assert not is_calmed(server)
    server.feed(rapid_resets(RESET_STREAMS + 21, 1))
    assert is_calmed(server)


def test_time_replenishes_the_budgets() -> None:
    server = Server()
    server.feed(OPEN)
    for _ in range(60):
        server.feed(window_update(0, 1) * 2_000)
        for _ in range(20):
            server.half.replenish()
    assert server.framing.failure is None


def test_no_more_is_given_back_than_was_spent() -> None:
    server = Server()
    server.feed(OPEN)
    server.calls[1].accept()
    server.feed(rapid_resets(1, 1) + requests(1, b"x") * 50)
    server.feed(rapid_resets(2, RESET_STREAMS + 2))
    assert is_calmed(server)


@pytest.mark.parametrize("flood", [frame(PING, bytes(8)), frames.settings()])
def test_who_is_to_be_answered_has_to_read(flood: bytes) -> None:
    server = Server()
    server.feed(OPEN)
    server.feed(flood * 2_000)
    assert server.said(GOAWAY) == frames.taken_apart(goaway(1, CALM))
