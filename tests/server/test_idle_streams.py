"""At the limit, streams that have no world and send nothing give up their places."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client import (
    Connection,
    ConnectionLostError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    join_world,
    make,
)
from dm_env_rpc_client.client.connection_group import ConnectionGroup
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.transports import server_streams
from tests.server.hosted import Where
from tests.support.scripted import settles

KINDS: dict[str, dict[str, Any]] = {
    "http2": {},
    "grpc": {"transport": "grpc"},
    "processes": {"processes": 1},
}


@pytest.fixture(params=KINDS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serve(Where, max_connections=8, **KINDS[request.param]) as server:
        yield server


@pytest.fixture
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_streams, "IDLE_SECONDS", 0.0)


@contextlib.contextmanager
def strangers(server: Server, count: int) -> Iterator[list[Connection]]:
    """Streams on three connections that send no request."""
    groups = [ConnectionGroup(server.address) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(groups[number % 3].open()) for number in range(count)]


@pytest.mark.usefixtures("no_grace")
def test_strangers_who_only_open_streams_lock_nobody_out(server: Server) -> None:
    with strangers(server, 20), make(server.address) as env, make(server.address) as other:
        for _ in range(3):
            assert env.step({"do": 0}) is not None
            assert other.step({"do": 0}) is not None
        assert settles(lambda: server.stats().streams == 8)


@pytest.mark.usefixtures("no_grace")
def test_the_stream_that_was_idle_longest_is_dropped_and_told_why(server: Server) -> None:
    with strangers(server, 8) as opened:
        assert settles(lambda: server.stats().streams == 8)
        # An answer, even an error, makes a stream the last in the row.
        opened[0].send(dm_env_rpc_pb2.LeaveWorldRequest())
        with make(server.address):
            for number in (0, 2, 7):
                opened[number].send(dm_env_rpc_pb2.LeaveWorldRequest())
            with pytest.raises(ConnectionLostError) as lost:
                opened[1].send(dm_env_rpc_pb2.LeaveWorldRequest())
    if lost.value.code != "CANCELLED":  # grpcio's server cannot say why.
        assert "made room for another client: it had neither created nor joined" in str(lost.value)


def test_streams_within_the_grace_keep_their_places(server: Server) -> None:
    with strangers(server, 8) as opened:
        assert settles(lambda: server.stats().streams == 8)
        with pytest.raises(ConnectionLostError, match="limit of 8 streams"):
            make(server.address)
        assert settles(lambda: server.stats().refused_streams == 1)
        for connection in opened:
            connection.send(dm_env_rpc_pb2.LeaveWorldRequest())


@pytest.mark.usefixtures("no_grace")
def test_a_client_with_a_world_keeps_its_place_however_long_it_thinks(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        creator, player = (stack.enter_context(connect(server.address)) for _ in range(2))
        name = create_world(creator)
        env = join_world(player, name)
        with strangers(server, 20):
            for _ in range(3):
                with make(server.address) as other:
                    other.reset()
        assert env.reset().first()
        assert create_world(creator) != name


@pytest.mark.usefixtures("no_grace")
@pytest.mark.parametrize("transport", ["http2", "grpc"])
def test_a_client_whose_world_is_being_made_keeps_its_place(transport: Any) -> None:
    is_begun, goes_on = threading.Event(), threading.Event()

    class Slow(Where):
        def __init__(self) -> None:
            is_begun.set()
            assert goes_on.wait(60)
            super().__init__()

    with (
        serve(Slow, max_connections=2, transport=transport) as server,
        connect(server.address) as waiting,
    ):
        future = waiting.submit(dm_env_rpc_pb2.CreateWorldRequest())
        assert is_begun.wait(20)
        try:
            for _ in range(4):
                with connect(server.address) as other:
                    other.send(dm_env_rpc_pb2.LeaveWorldRequest())
        finally:
            goes_on.set()
        assert future.result(20).world_name
