"""What every listener does, without worlds: bytes in, bytes out, and how streams end."""

from __future__ import annotations

import importlib.util
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import SpecError, Tls
from dm_env_rpc_client.transports.grpc import server as grpc_server
from dm_env_rpc_client.transports.grpc.server import GrpcListener
from dm_env_rpc_client.transports.http2.server.listener import Http2Listener
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.server_streams import (
    Listener,
    ListenerOptions,
    Peer,
    ServerStream,
    StreamStatusError,
    check_may_listen,
)
from tests.transports.frames import GOAWAY
from tests.transports.raw_client import RawClient, request, requests

WAIT_SECONDS = 10.0

LISTENERS: list[Any] = [GrpcListener, Http2Listener]


class RecordingStream(ServerStream):
    """Answers a request with twice its bytes; blocks or fails if the request says so."""

    may_wait = False

    def __init__(self, peer: Peer):
        self.peer = peer
        self.blocked = threading.Event()
        self.go_on = threading.Event()
        self.abandoned = threading.Event()
        self.closed = threading.Event()
        self.close_count = 0

    def answer(self, message: bytes) -> bytes:
        if message == b"block":
            self.blocked.set()
            assert self.go_on.wait(6 * WAIT_SECONDS)
        if message == b"wait":
            self.blocked.set()
            assert self.abandoned.wait(WAIT_SECONDS)
            raise StreamStatusError("CANCELLED", "gone")
        if message == b"fail":
            raise StreamStatusError("FAILED_PRECONDITION", "not like this")
        return message + message

    def abandon(self) -> None:
        self.abandoned.set()

    def close(self) -> None:
        self.close_count += 1
        self.closed.set()


class Streams:
    """The streams that a listener has opened, oldest first."""

    def __init__(self) -> None:
        self.opened: queue.SimpleQueue[RecordingStream] = queue.SimpleQueue()

    def open(self, peer: Peer) -> RecordingStream:
        stream = RecordingStream(peer)
        self.opened.put(stream)
        return stream

    def next(self) -> RecordingStream:
        return self.opened.get(timeout=WAIT_SECONDS)


class Call:
    """A client's call, which sends a request when it is told to."""

    def __init__(self, channel: grpc.Channel, seconds: float = WAIT_SECONDS, **options: Any):
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        stub: Any = channel.stream_stream(status.PROCESS)
        self.answers: Any = stub(iter(self._requests.get, None), timeout=seconds, **options)

    def send(self, *messages: bytes | None) -> None:
        for message in messages:
            self._requests.put(message)

    def ended(self) -> tuple[grpc.StatusCode, str]:
        """Waits for the end of the call, and returns its status."""
        self._requests.put(None)
        return self.answers.code(), self.answers.details()


def answers_to(channel: grpc.Channel, *messages: bytes, **options: Any) -> list[bytes]:
    """What a call of its own gets that sends all and ends; its status is OK."""
    call = Call(channel, **options)
    call.send(*messages, None)
    answers = list(call.answers)
    assert call.answers.code() is grpc.StatusCode.OK
    return answers


def busy(channel: grpc.Channel, streams: Streams, message: bytes) -> tuple[Call, RecordingStream]:
    """Returns a call, and its stream that answers the message."""
    call = Call(channel)
    call.send(message)
    stream = streams.next()
    assert stream.blocked.wait(WAIT_SECONDS)
    return call, stream


@pytest.fixture(params=LISTENERS)
def listener(request: pytest.FixtureRequest, streams: Streams) -> Iterator[Listener]:
    made: Listener = request.param(ListenerOptions(streams.open, 3), "localhost:0", None)
    yield made
    made.stop(0.0)


@pytest.fixture
def channel(listener: Listener) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(listener.address) as opened:
        yield opened


def test_a_client_may_probe_at_the_permitted_rate_while_an_answer_takes_long(
    streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_server, "_MIN_PING_INTERVAL_MS", 20)
    for kind in LISTENERS:
        listener = kind(ListenerOptions(streams.open, 3), "localhost:0", None)
        with RawClient(listener.address) as client:
            client.send(request(1) + requests(1, b"block", end=True))
            stream = streams.next()
            assert stream.blocked.wait(WAIT_SECONDS)
            # A server that finds them too frequent answers the third with GOAWAY.
            for _ in range(6):
                assert client.ping()
                time.sleep(0.05)  # More than the interval that is permitted.
            stream.go_on.set()
            assert client.read_until(lambda: bool(client.answers(1)))
            assert client.answers(1) == [b"blockblock"]
            assert not client.found(GOAWAY)
        listener.stop(0.0)


def test_the_metadata_of_a_call_belong_to_the_peer_and_no_text_shows_them(
    channel: grpc.Channel, streams: Streams
) -> None:
    metadata = (("authorization", "Bearer s3cret"), ("x-blob-bin", b"\0\xff"))
    assert answers_to(channel, b"a", metadata=metadata) == [b"aa"]
    peer = streams.next().peer
    assert set(metadata) <= set(peer.metadata)
    assert "s3cret" not in f"{peer} {peer!r}"


def test_a_cancelled_call_is_told_and_the_others_go_on(
    channel: grpc.Channel, streams: Streams
) -> None:
    waiting, stream = busy(channel, streams, b"wait")
    other = Call(channel)
    waiting.answers.cancel()
    assert stream.closed.wait(WAIT_SECONDS)
    other.send(b"a")
    assert next(other.answers) == b"aa"
    other.ended()


def test_a_status_ends_one_stream_after_its_earlier_answers(
    channel: grpc.Channel, streams: Streams
) -> None:
    call, other = Call(channel), Call(channel)
    other.send(b"a")
    assert next(other.answers) == b"aa"
    call.send(b"b", b"fail", b"c")
    assert next(call.answers) == b"bb"
    assert call.ended() == (grpc.StatusCode.FAILED_PRECONDITION, "not like this")
    other.send(b"d")
    assert next(other.answers) == b"dd"
    assert other.ended()[0] is grpc.StatusCode.OK
    both = [streams.next(), streams.next()]
    for stream in both:
        assert stream.closed.wait(WAIT_SECONDS)
    assert [stream.close_count for stream in both] == [1, 1]


def test_stop_lets_streams_go_on_for_the_grace(
    listener: Listener, channel: grpc.Channel, streams: Streams
) -> None:
    call, stream = busy(channel, streams, b"block")
    stopping = threading.Thread(target=listener.stop, args=(WAIT_SECONDS,))
    stopping.start()
    assert not listener.wait(0.05)
    stream.go_on.set()
    call.send(None)
    assert list(call.answers) == [b"blockblock"]
    stopping.join(WAIT_SECONDS)
    assert listener.wait(WAIT_SECONDS)
    assert stream.closed.wait(WAIT_SECONDS)


@pytest.mark.parametrize("end", [lambda listener: listener.stop(0.0), lambda each: each.abort()])
def test_what_is_open_after_the_grace_is_cancelled(
    listener: Listener, channel: grpc.Channel, streams: Streams, end: Callable[[Listener], None]
) -> None:
    call, stream = busy(channel, streams, b"block")
    end(listener)
    assert call.ended()[0] in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
    assert listener.wait(WAIT_SECONDS)
    # A call of `answer` that is under way is not interrupted.
    assert not stream.closed.is_set()
    stream.go_on.set()
    assert stream.closed.wait(WAIT_SECONDS)


@pytest.mark.parametrize("address", ["localhost:0", "127.0.0.1:5000", "[::1]:0", "unix:/tmp/x"])
def test_plaintext_is_allowed_on_loopback_and_has_to_be_asked_for_elsewhere(address: str) -> None:
    check_may_listen(address, None, insecure=False)
    with pytest.raises(SpecError, match=r"0\.0\.0\.0:0; pass credentials=.* or insecure=True"):
        check_may_listen("0.0.0.0:0", None, insecure=False)
    check_may_listen("0.0.0.0:0", None, insecure=True)
    check_may_listen("0.0.0.0:0", Tls(), insecure=False)


def test_the_options_for_grpcio_are_options_of_grpc() -> None:
    options = {
        option
        for path in Path(grpc_server.__file__).parents[2].rglob("*.py")
        for option in re.findall(r'\("(grpc\.[a-z0-9_.]+)"', path.read_text())
    }
    assert len(options) >= 10
    # What it does not know it ignores, so that a wrong name would be seen nowhere else.
    found = importlib.util.find_spec("grpc._cython.cygrpc")
    assert found is not None
    assert found.origin is not None
    library = Path(found.origin).read_bytes()
    assert [option for option in options if option.encode() + b"\0" not in library] == []


def test_one_stream_too_many_is_refused(channel: grpc.Channel) -> None:
    calls = [Call(channel) for _ in range(3)]
    for call in calls:
        call.send(b"a")
        assert next(call.answers) == b"aa"
    assert Call(channel).ended()[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    for call in calls:
        assert call.ended()[0] is grpc.StatusCode.OK
