"""The framing: any bytes in any pieces, held against h2 as the server and against the text."""

from __future__ import annotations

import random
import struct

import pytest

from dm_env_rpc_client import ConnectionLostError, DmEnvRpcClientError, ProtocolError
from tests.tensors.strategies import mutated
from tests.transports import frames
from tests.transports.client_call import (
    LIMIT,
    feed,
    framing,
    take_outbound,
)
from tests.transports.frames import (
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    RST_STREAM,
    data,
    frame,
    goaway,
    greeting,
    grpc_message,
    headers,
    reset,
    window_update,
)


def test_the_windows_are_opened_again_long_before_they_close() -> None:
    client = framing()
    feed(client, greeting())
    take_outbound(client)
    client.framing._unacknowledged = client.call.assembler.unacknowledged = (1 << 30) - 10
    feed(client, data(grpc_message(b"0123456789")))
    opened = (1 << 30) + 5
    assert take_outbound(client) == window_update(0, opened) + window_update(1, opened)


def first(*pairs: tuple[str, str], end: bool = False) -> bytes:
    """A server's SETTINGS and the first headers, of HTTP/2 and of gRPC."""
    return frames.settings() + headers(*pairs, end=end)


def last(*pairs: tuple[str, str], before: bytes = b"") -> bytes:
    """All that a server says, and trailers at the end."""
    return greeting() + before + headers(*pairs, end=True)


WEB_PAGE = (":status", "200"), ("content-type", "text/html")
# What frames of either side must not be is in `violations.py`.
BROKEN = {
    "HTTP/1": (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not a gRPC server: it speaks HTTP/1"),
    "something else": (b"SSH-2.0-OpenSSH_9.2\r\n", "not a gRPC server: it speaks SSH"),
    "no settings first": (frame(PING, bytes(8)), "not a gRPC server"),
    "another stream": (greeting() + frame(frames.DATA, b"x", 0, 3), "DATA on stream 3"),
    "headers elsewhere": (greeting() + frame(HEADERS, b"", 4, 3), "HEADERS on stream 3"),
    "data before headers": (frames.settings() + data(b"x"), "DATA before the headers"),
    "compressed": (greeting() + data(grpc_message(b"x", True)), "compressed message.*turn off"),
    "no trailers": (greeting() + data(b"", END_STREAM), "without trailers"),
    "headers in between": (greeting() + headers(("a", "b")), "in the middle of the stream"),
    "no status": (first(*frames.RESPONSE, end=True), "without a grpc-status"),
    "a web page": (first(*WEB_PAGE), "not a gRPC server: .* with content type 'text/html'"),
    "an upper case name": (first(*frames.RESPONSE, ("A", "b")), "header 3 with an invalid name"),
    "a trailer of two lines": (last(*frames.OK, ("a", "b\r\nc")), "header 2 with a line break"),
    "no such method": (
        first(*frames.RESPONSE, ("grpc-status", "12"), end=True),
        "the server at .* does not speak dm_env_rpc: .*check the address",
    ),
    "no such page": (first((":status", "404"), end=True), "HTTP status 404"),
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
    "closed at once": (b"", "UNAVAILABLE", "before sending anything"),
    "closed in its first frame": (frames.settings()[:7], "UNAVAILABLE", "before sending anything"),
    "closed": (greeting(), "UNAVAILABLE", "closed the connection"),
    "OK": (last(*frames.OK), "OK", "ended the stream"),
    "OK behind an interim response": (
        first((":status", "103")) + last(*frames.OK)[len(frames.settings()) :],
        "OK",
        "ended the stream",
    ),
    "a status": (
        last(("grpc-status", "8"), ("grpc-message", "too%20many%2E")),
        "RESOURCE_EXHAUSTED",
        "too many.$",
    ),
    "only trailers": (
        first(*frames.RESPONSE, ("grpc-status", "16"), end=True),
        "UNAUTHENTICATED",
        "no details",
    ),
    "an unknown status": (last(("grpc-status", "99")), "UNKNOWN", "no details"),
    "no status": (last(("x", "y")), "UNKNOWN", "no details"),
    "in mid-message": (
        last(*frames.OK, before=data(b"\0\0\0\0\x09abc")),
        "OK",
        "in the middle of a message",
    ),
    "a status of other digits": (last(("grpc-status", "\u0665")), "UNKNOWN", "no details"),
    "a status of 5,000 digits": (last(("grpc-status", "1" * 5_000)), "UNKNOWN", "no details"),
    "a proxy that says it is gRPC": (
        first((":status", "503"), ("grpc-status", "0")),
        "UNAVAILABLE",
        "HTTP status 503",
    ),
    "a proxy": (first((":status", "503")), "UNAVAILABLE", "HTTP status 503"),
    "no entry": (first((":status", "403")), "PERMISSION_DENIED", "403"),
    "reset": (greeting() + reset(1), "CANCELLED", "with CANCEL"),
    "reset oddly": (greeting() + reset(1, 77), "INTERNAL", "error 77"),
    "too many pings": (
        greeting() + goaway(1, 11, b"too_many_pings"),
        "RESOURCE_EXHAUSTED",
        "ENHANCE_YOUR_CALM .too_many_pings.",
    ),
    "going away": (greeting() + goaway(0, 0), "UNAVAILABLE", "NO_ERROR"),
    "gone": (
        greeting() + goaway(1, 0, b"restart"),
        "UNAVAILABLE",
        "closed the connection; it sent GOAWAY with NO_ERROR .restart.",
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


def test_messages_that_are_sent_whole_use_up_the_window_of_the_connection() -> None:
    client = framing()
    feed(client, frames.settings(window=1 << 20))
    take_outbound(client)
    for _ in range(2):
        client.send(bytes(40_000))
    parts = frames.taken_apart(take_outbound(client))
    assert sum(len(part.payload) for part in parts if part.kind == frames.DATA) == 65_535


def test_cancelling_ends_stream_and_connection() -> None:
    client = framing()
    client.send(bytes(100_000))
    take_outbound(client)
    client.cancel()
    kinds = [part.kind for part in frames.taken_apart(take_outbound(client))]
    assert kinds == [RST_STREAM, GOAWAY]
    assert not client.has_unsent()


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
    messages = data(grpc_message(b"abc") + grpc_message(b"d" * 300))
    contents = last(*frames.OK, before=messages + frame(PING, bytes(8)))
    rng = random.Random(seed)
    failed = 0
    for _ in range(500):
        client = framing()
        feed(client, mutated(contents, rng))
        client.received(0)
        assert isinstance(client.failure, DmEnvRpcClientError)
        failed += isinstance(client.failure, ProtocolError)
        take_outbound(client)
    assert 30 < failed < 470


@pytest.mark.parametrize(
    ("end", "is_of_a_proxy"),
    [
        (greeting() + reset(1, 2), True),
        (greeting() + reset(1, 1), True),
        (greeting() + reset(1, 7), False),  # REFUSED_STREAM
        (greeting() + reset(1, 11), False),  # ENHANCE_YOUR_CALM
        (greeting() + frame(frames.DATA, b"", frames.END_STREAM, 1), True),
        (last(("grpc-status", "13"), ("grpc-message", "no")), False),
    ],
)
def test_a_stream_that_is_broken_off_may_have_been_ended_by_a_proxy(
    end: bytes, is_of_a_proxy: bool
) -> None:
    client = framing()
    feed(client, end)
    assert client.failure is not None
    assert ("a proxy's limit or timeout" in str(client.failure)) == is_of_a_proxy
