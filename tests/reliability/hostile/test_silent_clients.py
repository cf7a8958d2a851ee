"""Row 40: clients that are silent, slow, or do not read."""

from __future__ import annotations

import contextlib
import select
import struct
import time
from collections.abc import Iterator

import hpack
import pytest

from dm_env_rpc_client import ConnectionLostError
from tests.reliability.hostile.served import LARGE_REQUEST, Honest, Served, served
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch, patience
from tests.transports import frames
from tests.transports.frames import PREFACE, WINDOW_UPDATE, frame
from tests.transports.raw_client import REQUEST, RawClient, request, requests

pytestmark = pytest.mark.row(40)

TRANSPORTS = ["http2"]

HONEST_SECONDS = 1.0
SLACK = 16 << 20
LARGEST = (1 << 31) - 1


def is_served_in_time(server: Served) -> bool:
    begin = Stopwatch()
    with Honest(server.address) as honest:
        honest.step()
    # A first step computes for 0.05 s, in which others that compute have their turns, too.
    return begin.within(patience(HONEST_SECONDS))


@contextlib.contextmanager
def opened(server: Served, count: int, contents: bytes = b"") -> Iterator[list[RawClient]]:
    """Opens so many connections, which send the same."""
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(count):
            client = stack.enter_context(RawClient(server.address, greets=False))
            client.send(contents)
            clients.append(client)
        yield clients


def is_reset(client: RawClient) -> bool:
    """Whether the server has dropped a connection, without reading from it."""
    closed = select.POLLRDHUP | select.POLLHUP | select.POLLERR
    poll = select.poll()
    poll.register(client.socket, closed)
    return bool(poll.poll(0))


def dropped(clients: list[RawClient]) -> int:
    """How many were dropped by now."""
    for client in clients:
        while client.read(0.0):
            pass
    return sum(client.is_over for client in clients)


GREETING = PREFACE + frames.settings()
SILENT = {
    "nothing": b"",
    "half a preface": PREFACE[:10],
    "a preface": PREFACE,
    "SETTINGS": GREETING,
    "half a request": GREETING + request(1)[:30],
    "TLS": b"\x16\x03\x01",
}


@counts(300, 1_000)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("nothing", "half a request") else pytest.mark.soak)
        for name in SILENT
    ],
)
def test_row_40_silent_sockets(name: str, count: int, seen: Seen) -> None:
    """Row 40: 1,000 silent sockets: an honest client is served within 1 s; they are dropped."""
    with served({"_GREET_SECONDS": 1.0, "_LOOK_SECONDS": 0.1}, max_connections=16) as server:
        assert is_served_in_time(server)
        before = server.watch_memory()
        with Honest(server.address) as early, opened(server, count, SILENT[name]) as clients:
            assert is_served_in_time(server)
            assert early.steps_within(HONEST_SECONDS)
            # Those for which there is no room are dropped at once, the others in time.
            assert settles(lambda: dropped(clients) == count)
            assert early.steps_within(HONEST_SECONDS)
        grown = server.peak() - before
        seen(silent_sockets_dropped=count, memory_mib=grown / (1 << 20))
        assert grown <= SLACK


@pytest.mark.row(26)
@counts(64, 256)
def test_row_40_idle_streams(count: int, seen: Seen) -> None:
    """Rows 26, 40: idle streams are clients as good as any; one too many is told so in 1 s."""
    greet = patience(0.5)
    seconds = {"_GREET_SECONDS": greet, "_LOOK_SECONDS": 0.05}
    with served(seconds, max_connections=count + 1) as server:
        idle = GREETING + request(1)
        with opened(server, count, idle) as clients:
            assert is_served_in_time(server)
            time.sleep(greet + 0.3)  # Longer than a client may take to greet.
            assert not dropped(clients)
            with Honest(server.address) as last:
                for _ in range(5):
                    begin = Stopwatch()
                    with pytest.raises(ConnectionLostError, match="RESOURCE_EXHAUSTED"):
                        Honest(server.address)
                    seen(refused_clients=1, refused_after_s=begin.seconds)
                    assert begin.within(HONEST_SECONDS)
                assert last.steps_within(HONEST_SECONDS)
            assert is_served_in_time(server)
        seen(idle_streams=count)
        # A client that is gone leaves its place.
        assert settles(lambda: is_served_in_time(server))


def test_row_40_streams_of_the_health_service_take_no_places() -> None:
    """Row 40: connections whose only stream watches the server's health make room for others."""
    path = (":path", "/grpc.health.v1.Health/Watch")
    pairs = [path if pair[0] == ":path" else pair for pair in REQUEST]
    watch = GREETING + frame(1, hpack.Encoder().encode(pairs), frames.END_HEADERS, 1)
    with served(max_connections=4) as server, opened(server, 100, watch):
        assert is_served_in_time(server)


@counts(8, 64)
def test_row_40_clients_that_never_read(count: int, seen: Seen) -> None:
    """Row 40: they get a bounded number of answers, and are dropped in the end."""
    seconds = {"_UNREAD_SECONDS": 1.0, "_LOOK_SECONDS": 0.1}
    asks = GREETING + frame(WINDOW_UPDATE, struct.pack(">I", LARGEST - 65_535))
    asks = asks.replace(frames.settings(), frames.settings(window=LARGEST)) + request(1)
    with served(seconds) as server:
        assert is_served_in_time(server)
        before = server.watch_memory()
        with Honest(server.address) as honest, opened(server, count, asks) as clients:
            for client in clients:
                # 50 MB of answers.
                client.send(requests(1, *[LARGE_REQUEST] * 500))
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                assert honest.steps_within(HONEST_SECONDS)
            assert is_served_in_time(server)
            assert server.peak() - before <= SLACK + count * (6 << 20)
            # Nothing is sent to them any more, and what was sent is gone with the connection.
            assert settles(lambda: all(map(is_reset, clients)))
            assert honest.steps_within(HONEST_SECONDS)
            seen(clients_that_never_read=count)


def test_row_40_a_greeting_byte_by_byte_has_an_end() -> None:
    """Row 40: single bytes do not keep a connection without a stream open."""
    seconds = {"_GREET_SECONDS": 0.5, "_LOOK_SECONDS": 0.05}
    with served(seconds) as server, RawClient(server.address, greets=False) as client:
        for byte in PREFACE * 10:
            if not client.send(bytes([byte])):
                break
            time.sleep(0.05)  # So slow is the client.
        else:
            raise AssertionError("it is still open")
