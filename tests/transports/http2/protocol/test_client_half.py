"""The framing: any bytes in any pieces, held against h2 as the server and against the text."""

from __future__ import annotations

import collections
import random
import struct
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.settings
import hpack
import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dm_env_rpc_client import ConnectionLostError, DmEnvRpcClientError, ProtocolError
from tests.transports import frames
from tests.transports.client_call import ClientCall, feed
from tests.transports.frames import (
    ACK,
    CONTINUATION,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    WITH_PRIORITY,
    data,
    frame,
    greeting,
    grpc_message,
    headers,
)

LIMIT = 1 << 20


def framing(limit: int = LIMIT) -> ClientCall:
    return ClientCall(frames.REQUEST, "localhost:1", limit)


def take_outbound(client: ClientCall) -> bytes:
    sent = b"".join(bytes(part) for part in client.outbound)
    client.sent(len(sent))
    assert not client.outbound
    return sent


def waits(client: ClientCall) -> bool:
    return client.has_unsent


def received(client: ClientCall) -> list[bytes]:
    return [bytes(message) for message in client.messages]


MESSAGES = [
    b"",
    b"x",
    bytes(range(100)),
    b"ab" * 40_000,
    bytes(9),
    random.Random(1).randbytes(150_000),
]


def transcript() -> bytes:
    """A stream with everything in it that is legal."""
    encoder = hpack.Encoder()
    block = encoder.encode([*frames.RESPONSE, ("long", "x" * 30_000)])
    content = b"".join(map(grpc_message, MESSAGES))
    pieces = [content[:3], content[3:7], content[7:90_000], b"", content[90_000:]]
    interim = encoder.encode([(":status", "103")])
    return b"".join(
        (
            frames.settings(window=100_000, frame=20_000, streams=3),
            frame(HEADERS, interim, END_HEADERS, 1),
            frame(SETTINGS, flags=ACK),
            frame(HEADERS, b"\x02" + bytes(5) + block[:10] + bytes(2), PADDED | WITH_PRIORITY, 1),
            frame(CONTINUATION, block[10:1_000], 0, 1),
            frame(CONTINUATION, block[1_000:], END_HEADERS, 1),
            data(pieces[0]),
            frame(PING, b"question"),
            data(b"\x07" + pieces[1] + bytes(7), PADDED),
            frame(0x77, bytes(100_000), 0x12, 1),
            data(pieces[2]),
            data(b"\x00" + pieces[3], PADDED),
            frame(frames.PRIORITY, bytes(5), 0, 1),
            frame(WINDOW_UPDATE, struct.pack(">I", 1_000), 0, 1),
            data(pieces[4]),
            frame(GOAWAY, struct.pack(">II", 1, 0) + b"bye"),
            frame(HEADERS, encoder.encode(frames.OK), END_HEADERS | END_STREAM, 1),
        )
    )


def test_the_first_thing_sent_is_the_preface_and_one_request() -> None:
    sent = take_outbound(framing())
    assert sent.startswith(frames.PREFACE)
    kinds = [(part.kind, part.stream, part.flags) for part in frames.taken_apart(sent)]
    assert kinds == [(SETTINGS, 0, 0), (WINDOW_UPDATE, 0, 0), (HEADERS, 1, END_HEADERS)]
    block = frames.taken_apart(sent)[-1].payload
    assert [tuple(map(str, pair)) for pair in hpack.Decoder().decode(block)] == frames.REQUEST


def test_long_headers_are_continued() -> None:
    client = ClientCall([*frames.REQUEST, ("long", "é~" * 6_000)], "localhost:1", LIMIT)
    parts = frames.taken_apart(take_outbound(client))[2:]
    assert [part.kind for part in parts] == [HEADERS, *[CONTINUATION] * (len(parts) - 1)]
    assert [part.flags & END_HEADERS for part in parts] == [*[0] * (len(parts) - 1), END_HEADERS]
    assert len(parts) > 2
    assert all(len(part.payload) <= 16_384 for part in parts)


@pytest.mark.parametrize(
    "size", [1, pytest.param(2, marks=pytest.mark.slow), 13, 100, 4_096, 65_536, 1 << 20]
)
def test_bytes_may_come_in_pieces_of_any_size(size: int) -> None:
    client = framing()
    contents = transcript()
    for start in range(0, len(contents), size):
        feed(client, contents[start : start + size])
    assert received(client) == MESSAGES
    with pytest.raises(ConnectionLostError, match="ended the stream"):
        raise client.failure or AssertionError


def test_a_stream_may_be_cut_in_two_at_every_byte() -> None:
    content = b"".join(map(grpc_message, [b"", b"a", b"bcd"]))
    contents = (
        greeting()
        + data(content[:7])
        + data(b"\x03" + content[7:] + bytes(3), PADDED)
        + headers(*frames.OK, end=True)
    )
    for cut in range(1, len(contents)):
        client = framing()
        feed(client, contents[:cut])
        feed(client, contents[cut:])
        assert received(client) == [b"", b"a", b"bcd"], cut
        assert isinstance(client.failure, ConnectionLostError), cut


def test_a_large_message_is_put_where_it_stays() -> None:
    client = framing()
    message = random.Random(2).randbytes(500_000)
    feed(client, greeting() + data(grpc_message(message))[:80_000])
    direct, rest = client.buffers()
    assert len(direct) == 500_000 + 9 + 5 - 80_000
    assert len(rest) > 0
    feed(client, data(grpc_message(message))[80_000:])
    (whole,) = client.messages
    assert bytes(whole) == message
    whole[0] = 0  # It is the receiver's.


def test_the_windows_are_opened_again_long_before_they_close() -> None:
    client = framing()
    feed(client, greeting())
    take_outbound(client)
    client.framing._unacknowledged = client.call.assembler.unacknowledged = (1 << 30) - 10
    feed(client, data(grpc_message(b"0123456789")))
    updates = frames.taken_apart(take_outbound(client))
    assert [(part.kind, part.stream) for part in updates] == [
        (WINDOW_UPDATE, 0),
        (WINDOW_UPDATE, 1),
    ]
    assert {struct.unpack(">I", part.payload)[0] for part in updates} == {(1 << 30) + 5}


def test_what_the_window_does_not_take_waits_for_it() -> None:
    client = framing()
    take_outbound(client)
    message = random.Random(3).randbytes(200_000)
    client.send(message)
    client.send(b"after it")
    client.end()
    sent = take_outbound(client)
    assert sum(len(part.payload) for part in frames.taken_apart(sent)) == 65_535
    assert waits(client)
    feed(client, greeting() + frame(WINDOW_UPDATE, struct.pack(">I", 500_000)))
    sent += take_outbound(client)
    assert waits(client), "the window of the stream is still closed"
    feed(client, frame(WINDOW_UPDATE, struct.pack(">I", 500_000), 0, 1))
    sent += take_outbound(client)
    assert waits(client) is False
    parts = [part for part in frames.taken_apart(sent) if part.kind == frames.DATA]
    content = b"".join(part.payload for part in parts)
    assert content == grpc_message(message) + grpc_message(b"after it")
    assert max(len(part.payload) for part in parts) <= 16_384
    assert [part.flags for part in parts] == [*[0] * (len(parts) - 1), END_STREAM]


def test_a_window_that_shrinks_below_nothing_is_waited_for() -> None:
    client = framing()
    client.send(bytes(50_000))
    feed(client, frames.settings(window=10_000))
    take_outbound(client)
    client.send(b"x")
    assert client.has_unsent
    feed(client, frame(WINDOW_UPDATE, struct.pack(">I", 40_005), 0, 1))
    assert frames.taken_apart(take_outbound(client)) == []
    feed(client, frame(WINDOW_UPDATE, struct.pack(">I", 6), 0, 1))
    (part,) = frames.taken_apart(take_outbound(client))
    assert part.payload == grpc_message(b"x")


def test_what_is_sent_in_part_goes_on_where_it_stopped() -> None:
    client = framing()
    for number in range(5):
        client.send(bytes([number]) * 1_000)
    expected = b"".join(bytes(part) for part in client.outbound)
    sent = b""
    while True:
        some = b"".join(bytes(part) for part in client.outbound)[:777]
        if not some:
            break
        sent += some
        client.sent(len(some))
    assert sent == expected


def test_pings_are_answered_and_answers_are_not() -> None:
    client = framing()
    feed(client, greeting())
    take_outbound(client)
    feed(client, frame(PING, b"abcdefgh") + frame(PING, b"abcdefgh", ACK))
    assert frames.taken_apart(take_outbound(client)) == [(PING, ACK, 0, b"abcdefgh")]


BROKEN = {
    "HTTP/1": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a gRPC server: it speaks HTTP/1"),
    "something else": (b"SSH-2.0-OpenSSH_9.2\r\n", "not a gRPC server: it speaks SSH"),
    "no settings first": (frame(PING, bytes(8)), "not a gRPC server"),
    "a window first": (frame(WINDOW_UPDATE, struct.pack(">I", 9)), "not a gRPC server"),
    "settings on a stream": (frames.settings() + frame(SETTINGS, b"", 0, 1), "broken SETTINGS"),
    "half a setting": (frames.settings() + frame(SETTINGS, bytes(5)), "broken SETTINGS"),
    "a contentful ack": (frames.settings() + frame(SETTINGS, bytes(6), ACK), "broken SETTINGS"),
    "a huge window": (frames.settings(window=1 << 31), "initial window of 2147483648"),
    "tiny frames": (frames.settings(frame=100), "maximum frame size of 100"),
    "a short ping": (greeting() + frame(PING, bytes(7)), "broken PING"),
    "a window by nothing": (greeting() + frame(WINDOW_UPDATE, bytes(4)), "window by 0"),
    "a window too far": (
        greeting() + frame(WINDOW_UPDATE, struct.pack(">I", (1 << 31) - 1)),
        "window by 2147483647",
    ),
    "a short window": (greeting() + frame(WINDOW_UPDATE, bytes(3)), "broken WINDOW_UPDATE"),
    "a push": (greeting() + frame(PUSH_PROMISE, bytes(10), 0, 1), "PUSH_PROMISE"),
    "another stream": (greeting() + frame(frames.DATA, b"x", 0, 3), "DATA on stream 3"),
    "headers elsewhere": (greeting() + frame(HEADERS, b"", 4, 3), "HEADERS on stream 3"),
    "data before headers": (frames.settings() + data(b"x"), "DATA before the headers"),
    "too much padding": (greeting() + data(b"\x09abc", PADDED), "of padding"),
    "no padding length": (greeting() + data(b"", PADDED), "of padding"),
    "padded headers": (
        frames.settings() + frame(HEADERS, b"\x05a", PADDED | END_HEADERS, 1),
        "more padding",
    ),
    "an interruption": (
        frames.settings() + frame(HEADERS, b"", 0, 1) + frame(PING, bytes(8)),
        "inside a header block",
    ),
    "a stray continuation": (greeting() + frame(CONTINUATION, b"", 0, 1), "outside a header block"),
    "endless headers": (
        frames.settings()
        + frame(HEADERS, bytes(60_000), 0, 1)
        + frame(CONTINUATION, bytes(60_000), 0, 1),
        "bytes of headers",
    ),
    "a header bomb": (
        frames.settings() + headers(*frames.RESPONSE, *[("x", "y" * 4_000)] * 40),
        "sent headers of more than",
    ),
    "no headers": (frames.settings() + frame(HEADERS, b"\xff\xff", 4, 1), "cannot be decoded"),
    "large control": (greeting() + frame(GOAWAY, bytes(65_000)), "65000 bytes in a frame"),
    "a short GOAWAY": (greeting() + frame(GOAWAY, bytes(7)), "broken GOAWAY"),
    "a short reset": (greeting() + frame(RST_STREAM, bytes(3), 0, 1), "broken RST_STREAM"),
    "a compressed message": (
        greeting() + data(grpc_message(b"x", compressed=True)),
        "compressed message.*turn off",
    ),
    "no trailers": (greeting() + data(b"", END_STREAM), "without trailers"),
    "headers in between": (greeting() + headers(("a", "b")), "in the middle of the stream"),
    "no status": (
        frames.settings() + headers(*frames.RESPONSE, end=True),
        "without a grpc-status",
    ),
    "a web page": (
        frames.settings() + headers((":status", "200"), ("content-type", "text/html")),
        "not a gRPC server: it answers with content type 'text/html'",
    ),
    "a name in upper case": (
        frames.settings() + headers(*frames.RESPONSE, ("A", "b")),
        "header 3 with an invalid name",
    ),
    "a trailer of two lines": (
        greeting() + headers(*frames.OK, ("a", "b\r\nc"), end=True),
        "header 2 with several lines",
    ),
    "no such method": (
        frames.settings() + headers(*frames.RESPONSE, ("grpc-status", "12"), end=True),
        "not a dm_env_rpc server",
    ),
    "no such page": (frames.settings() + headers((":status", "404"), end=True), "HTTP status 404"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_what_breaks_the_rules_is_named(name: str, size: int) -> None:
    contents, text = BROKEN[name]
    client = framing()
    for start in range(0, len(contents), size):
        feed(client, contents[start : start + size])
    with pytest.raises(ProtocolError, match=text) as caught:
        raise client.failure or AssertionError
    assert "localhost:1" in str(caught.value)


LOST = {
    "closed at once": (b"", "UNAVAILABLE", "before it said anything"),
    "closed": (greeting(), "UNAVAILABLE", "closed the connection"),
    "OK": (greeting() + headers(*frames.OK, end=True), "OK", "ended the stream"),
    "a status": (
        greeting() + headers(("grpc-status", "8"), ("grpc-message", "too%20many%2E"), end=True),
        "RESOURCE_EXHAUSTED",
        "too many.$",
    ),
    "only trailers": (
        frames.settings() + headers(*frames.RESPONSE, ("grpc-status", "16"), end=True),
        "UNAUTHENTICATED",
        "no details",
    ),
    "an unknown status": (
        greeting() + headers(("grpc-status", "99"), end=True),
        "UNKNOWN",
        "no details",
    ),
    "no status": (greeting() + headers(("x", "y"), end=True), "UNKNOWN", "no details"),
    "in mid-message": (
        greeting() + data(b"\0\0\0\0\x09abc") + headers(*frames.OK, end=True),
        "OK",
        "in the middle of a message",
    ),
    "a status of other digits": (
        greeting() + headers(("grpc-status", "\u0665"), end=True),
        "UNKNOWN",
        "no details",
    ),
    "a status of 5,000 digits": (
        greeting() + headers(("grpc-status", "1" * 5_000), end=True),
        "UNKNOWN",
        "no details",
    ),
    "a proxy that says it is gRPC": (
        frames.settings() + headers((":status", "503"), ("grpc-status", "0")),
        "UNAVAILABLE",
        "HTTP status 503",
    ),
    "a proxy": (frames.settings() + headers((":status", "503")), "UNAVAILABLE", "HTTP status 503"),
    "no entry": (frames.settings() + headers((":status", "403")), "PERMISSION_DENIED", "403"),
    "reset": (
        greeting() + frame(RST_STREAM, struct.pack(">I", 8), 0, 1),
        "CANCELLED",
        "with CANCEL",
    ),
    "reset oddly": (
        greeting() + frame(RST_STREAM, struct.pack(">I", 77), 0, 1),
        "INTERNAL",
        "error 77",
    ),
    "too many pings": (
        greeting() + frame(GOAWAY, struct.pack(">II", 1, 11) + b"too_many_pings"),
        "RESOURCE_EXHAUSTED",
        "ENHANCE_YOUR_CALM .too_many_pings.",
    ),
    "going away": (greeting() + frame(GOAWAY, struct.pack(">II", 0, 0)), "UNAVAILABLE", "NO_ERROR"),
    "gone": (
        greeting() + frame(GOAWAY, struct.pack(">II", 1, 0) + b"restart"),
        "UNAVAILABLE",
        "closed the connection; it said GOAWAY with NO_ERROR .restart.",
    ),
    "too large": (
        greeting() + data(grpc_message(b"")[:1] + struct.pack(">I", LIMIT + 1)),
        "RESOURCE_EXHAUSTED",
        f"{LIMIT + 1} bytes; at most {LIMIT}",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_how_a_stream_ended_is_told(name: str) -> None:
    contents, code, text = LOST[name]
    client = framing()
    feed(client, contents)
    if client.failure is None:
        client.received(0)
    with pytest.raises(ConnectionLostError, match=text) as caught:
        raise client.failure or AssertionError
    assert caught.value.code == code
    before = client.failure
    feed(client, data(grpc_message(b"late")))
    client.received(0)
    assert client.failure is before
    assert not client.messages


def test_messages_before_the_end_are_there_at_the_end() -> None:
    client = framing()
    feed(client, greeting() + data(grpc_message(b"last words")) + headers(*frames.OK, end=True))
    assert received(client) == [b"last words"]
    assert client.failure is not None


def test_cancelling_ends_stream_and_connection() -> None:
    client = framing()
    client.send(bytes(100_000))
    take_outbound(client)
    client.cancel()
    kinds = [part.kind for part in frames.taken_apart(take_outbound(client))]
    assert kinds == [RST_STREAM, GOAWAY]
    assert not client.has_unsent


def test_a_stream_that_was_ended_before_its_headers_does_not_end_the_others() -> None:
    client = framing()
    other = client.half.open(frames.REQUEST)
    client.call.cancel()
    client.call.fail(ConnectionLostError("ended by this side"))
    # Sent before the RST_STREAM arrived.
    late = headers(*frames.RESPONSE, stream=1) + data(grpc_message(b"late"), stream=1)
    answer = headers(*frames.RESPONSE, stream=3) + data(grpc_message(b"answer"), stream=3)
    contents = frames.settings() + late + answer
    (buffer,) = client.buffers()
    buffer[: len(contents)] = contents
    client.received(len(contents))
    assert other.failure is None
    assert [bytes(message) for message in other.messages] == [b"answer"]
    assert not client.messages


@pytest.mark.parametrize("seed", range(4))
def test_mutated_streams_give_messages_or_one_error(seed: int) -> None:
    contents = (
        greeting()
        + data(grpc_message(b"abc") + grpc_message(b"d" * 300))
        + frame(PING, bytes(8))
        + headers(*frames.OK, end=True)
    )
    rng = random.Random(seed)
    failed = 0
    for _ in range(500):
        client = framing()
        feed(client, frames.mutated(contents, rng))
        client.received(0)
        assert isinstance(client.failure, DmEnvRpcClientError)
        failed += isinstance(client.failure, ProtocolError)
        take_outbound(client)
    assert failed > 30


class Conversation(RuleBasedStateMachine):
    """The framing against h2, which checks all that a client may do."""

    @initialize(window=st.integers(65_535, 200_000), frame_size=st.sampled_from([16_384, 100_000]))
    def begin(self, window: int, frame_size: int) -> None:
        config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        self.server = h2.connection.H2Connection(config)
        self.server.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window,
                h2.settings.SettingCodes.MAX_FRAME_SIZE: frame_size,
            },
        )
        self.server.max_inbound_frame_size = frame_size
        self.server.initiate_connection()
        self.client = framing()
        self.to_server, self.to_client = bytearray(), bytearray()
        self.client_said: list[bytes] = []
        self.server_said: list[bytes] = []
        self.server_heard = bytearray()
        self.has_begun = self.is_over = self.client_ended = self.server_knows_end = False
        self.pings = collections.Counter[str]()
        # h2 takes any acknowledgement for that of the last change, so one at a time.
        self.unacknowledged = 1

    def _pump_server(self) -> None:
        self.to_client += self.server.data_to_send()

    @rule(size=st.integers(0, 300) | st.integers(0, 150_000), seed=st.integers(0, 99))
    @precondition(lambda self: not self.client_ended and not self.is_over)
    def client_sends(self, size: int, seed: int) -> None:
        message = random.Random(seed).randbytes(size)
        self.client.send(message)
        self.client_said.append(message)

    @rule()
    def client_ends(self) -> None:
        self.client.end()
        self.client_ended = True

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_server(self, share: float) -> None:
        waiting = b"".join(bytes(part) for part in self.client.outbound)
        count = round(len(waiting) * share)
        self.to_server += waiting[:count]
        self.client.sent(count)
        if self.is_over:
            return
        for event in self.server.receive_data(bytes(self.to_server)):
            self._on_event(event)
        self.to_server.clear()
        self._pump_server()

    def _on_event(self, event: Any) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self.has_begun = True
            assert [(str(k), str(v)) for k, v in event.headers] == frames.REQUEST
            self.server.send_headers(1, list(frames.RESPONSE))
        elif isinstance(event, h2.events.DataReceived):
            self.server_heard += event.data
        elif isinstance(event, h2.events.StreamEnded):
            self.server_knows_end = True
        elif isinstance(event, h2.events.PingAckReceived):
            self.pings["answered"] += 1
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.unacknowledged -= 1
        assert not isinstance(event, h2.events.ConnectionTerminated)

    @rule(size=st.integers(0, 300) | st.integers(0, 150_000), pad=st.integers(0, 255) | st.none(),
          cuts=st.integers(1, 4), seed=st.integers(0, 99))  # fmt: skip
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_sends(self, size: int, pad: int | None, cuts: int, seed: int) -> None:
        message = random.Random(seed).randbytes(size)
        content = grpc_message(message)
        self.server_said.append(message)
        largest = self.server.max_outbound_frame_size - 256
        step = min(largest, len(content) // cuts + 1)
        for start in range(0, len(content), step):
            self.server.send_data(1, content[start : start + step], pad_length=pad)
        self._pump_server()

    @rule(count=st.integers(1, 500_000), stream=st.sampled_from([None, 1]))
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_opens_a_window(self, count: int, stream: int | None) -> None:
        self.server.increment_flow_control_window(count, stream)
        self._pump_server()

    @rule(window=st.integers(0, 300_000))
    @precondition(lambda self: not self.is_over and not self.unacknowledged)
    def server_changes_settings(self, window: int) -> None:
        self.unacknowledged += 1
        self.server.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: window})
        self._pump_server()

    @rule()
    @precondition(lambda self: not self.is_over)
    def server_pings(self) -> None:
        self.server.ping(b"12345678")
        self.pings["asked"] += 1
        self._pump_server()

    @rule(share=st.floats(0, 1))
    def bytes_reach_the_client(self, share: float) -> None:
        count = round(len(self.to_client) * share)
        feed(self.client, bytes(self.to_client[:count]))
        del self.to_client[:count]

    @rule()
    @precondition(lambda self: self.has_begun and not self.is_over)
    def server_ends(self) -> None:
        self.server.send_headers(1, [("grpc-status", "0")], end_stream=True)
        self.is_over = True
        self._pump_server()

    @invariant()
    def nothing_is_lost_or_made_up(self) -> None:
        if not hasattr(self, "client"):
            return
        assert received(self.client) == self.server_said[: len(self.client.messages)]
        said = b"".join(map(grpc_message, self.client_said))
        assert said.startswith(bytes(self.server_heard))
        assert not self.server_knows_end or bytes(self.server_heard) == said
        if not self.is_over:
            assert self.client.failure is None, self.client.failure

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        for _ in range(3):
            self.bytes_reach_the_server(1.0)
            if self.has_begun and not self.is_over:
                self.server.increment_flow_control_window(100_000_000)
                self.server.increment_flow_control_window(100_000_000, 1)
                self._pump_server()
            self.bytes_reach_the_client(1.0)
        self.nothing_is_lost_or_made_up()
        assert received(self.client) == self.server_said
        if self.is_over:
            assert isinstance(self.client.failure, ConnectionLostError)
        else:
            assert bytes(self.server_heard) == b"".join(map(grpc_message, self.client_said))
            assert self.server_knows_end == self.client_ended
            assert self.pings["asked"] == self.pings["answered"]


Conversation.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestConversation = Conversation.TestCase
