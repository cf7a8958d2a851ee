"""Rows 13, 26 and 27 on the server's side: what clients leave that come and go, or are killed."""

from __future__ import annotations

import contextlib
import struct

import pytest

from dm_env_rpc_client import ConnectionLostError, make
from tests.reliability.connections.soak import threads_of
from tests.reliability.hostile.served import Honest, served
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch
from tests.transports.frames import DATA, END_STREAM, WINDOW_UPDATE, frame
from tests.transports.raw_client import RawClient, request, requests

TRANSPORTS = ["http2"]


@pytest.mark.row(13)
@counts(200, 2_000)
def test_row_13_opens_and_closes(count: int, seen: Seen) -> None:
    """Row 13: 2,000 opens and closes leave no thread, descriptor or stream on the server."""
    with served() as server:
        with Honest(server.address) as honest:
            honest.step()
        before = threads_of(server.pid), server.descriptors()
        memory = server.watch_memory()
        for number in range(count):
            with RawClient(server.address) as client:
                client.send(request(1) + requests(1, b"\x12\x00"))
                assert client.read_until(lambda: bool(client.answers(1)))  # at once
                if number % 2:
                    client.send(frame(DATA, b"", END_STREAM, 1))
        # As many streams on one connection.
        with RawClient(server.address) as client:
            client.send(frame(WINDOW_UPDATE, struct.pack(">I", 1 << 30)))
            for number in range(1, 2 * count, 2):
                client.send(request(number) + requests(number, b"\x12\x00", end=True))
                assert client.read_until(lambda: client.status(number) == "0")  # noqa: B023
                client.frames.clear()
        assert settles(lambda: threads_of(server.pid) <= before[0] + 2)
        # Fewer if the honest client's was still open before.
        assert settles(lambda: server.descriptors() <= before[1])
        grown = server.peak() - memory
        seen(
            connections=count,
            streams_of_one_connection=count,
            server_threads_more=float(max(0, threads_of(server.pid) - before[0])),
            server_descriptors_more=float(max(0, server.descriptors() - before[1])),
            server_memory_mib=grown / (1 << 20),
        )
        assert grown < 8 << 20


@pytest.mark.row(26)
def test_row_26_one_client_too_many(seen: Seen) -> None:
    """Row 26: the extra client gets RESOURCE_EXHAUSTED within 1 s, again and again."""
    with served(max_connections=8) as server, contextlib.ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(Honest(server.address))
        for _ in range(5):
            begin = Stopwatch()
            with pytest.raises(ConnectionLostError, match="RESOURCE_EXHAUSTED"):
                make(server.address)
            seen(refused_clients=1, refused_after_s=begin.seconds)
            assert begin.within(1.0)
