"""Rows 13, 26 and 27 on the server's side: what clients leave that come and go, or are killed."""

from __future__ import annotations

import contextlib
import struct
from multiprocessing.connection import Connection as Pipe

import pytest

from dm_env_rpc_client import ConnectionLostError, make
from tests.reliability.connections.soak import threads_of
from tests.reliability.hostile.served import Honest, served
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support import forks
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


def _play(address: str, count: int, told: Pipe) -> None:
    """Steps many environments, until it is killed."""
    environments = [make(address) for _ in range(count)]
    for env in environments:
        env.reset()
    told.send("playing")
    while True:
        for env in environments:
            env.step({"paddle": 0})


@pytest.mark.row(27)
@counts(20, 500)
def test_row_27_killed_clients(count: int, seen: Seen) -> None:
    """Row 27: the places of killed clients are free within 2 s."""
    at_once = 10
    with served(max_connections=at_once) as server:
        for _ in range(count // at_once):
            with forks.child(_play, server.address, at_once) as (_, pipe):
                assert pipe.recv() == "playing"
            begin = Stopwatch()

            def are_free() -> bool:
                with contextlib.ExitStack() as stack:
                    try:
                        for _ in range(at_once):
                            stack.enter_context(Honest(server.address))
                    except ConnectionLostError:
                        return False
                return True

            assert settles(are_free, 2.0)
            seen(killed_clients=at_once, free_again_after_s=begin.seconds)
            assert begin.within(2.0)
