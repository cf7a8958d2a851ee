"""Worlds and streams whose clients are gone or idle: when they end, and when they do not."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import dm_env
import pytest

from dm_env_rpc_client import (
    Connection,
    ConnectionLostError,
    DmEnvRpcError,
    connect,
    create_world,
    destroy_world,
    dm_env_rpc_pb2,
    join_world,
    make,
)
from dm_env_rpc_client.client.connection_group import ConnectionGroup
from dm_env_rpc_client.server import Catch, Race, Server, serve
from dm_env_rpc_client.server.errors import ErrorLog, RequestError
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.worlds.shared_world import SharedWorld
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.server.worlds.world_registry import Share, WorldRegistry
from dm_env_rpc_client.transports import server_streams
from tests.server.hosted import Where
from tests.support.scripted import settles
from tests.support.stopwatch import patience

GRACE = 0.3
THREAD = "dm_env_rpc idle worlds"


def waiters() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


class Recorded(Catch):
    """Remembers which were closed, by their numbers."""

    closed: ClassVar[list[int]]

    def __init__(self, number: int = 0):
        super().__init__()
        self._number = number

    def close(self) -> None:
        self.closed.append(self._number)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(Recorded, "closed", [], raising=False)
    return Recorded.closed


def create(server: Server) -> str:
    """A world whose creator is gone."""
    with connect(server.address) as connection:
        return create_world(connection)


def test_a_creator_that_is_connected_keeps_its_worlds() -> None:
    with serve(Catch, idle_world_seconds=0.0) as server, connect(server.address) as creator:
        world = create_world(creator)
        with connect(server.address) as other:
            join_world(other, world).close()
        with connect(server.address) as other:
            join_world(other, world)
        assert settles(lambda: server.agent_count == 0)
        assert waiters() == 0
        destroy_world(creator, world)


def test_a_world_lives_until_its_last_agent_has_left_and_then_for_the_grace() -> None:
    with serve(Race, idle_world_seconds=GRACE) as server, connect(server.address) as first:
        creator = connect(server.address)
        world = create_world(creator)
        with connect(server.address) as second:
            envs = [join_world(connection, world) for connection in (first, second)]
            creator.close()
            envs[0].close()
            time.sleep(2 * GRACE)  # It must not end, however long it takes.
            assert server.world_count == 1
            left = time.monotonic()
            envs[1].close()
        assert settles(lambda: server.world_count == 0)
        assert time.monotonic() - left >= GRACE


def test_who_joins_in_time_saves_the_world() -> None:
    grace = patience(1.0)
    with serve(Catch, idle_world_seconds=grace) as server:
        world = create(server)
        with connect(server.address) as connection, join_world(connection, world) as env:
            assert settles(lambda: waiters() == 0)
            time.sleep(1.5 * grace)  # It must not end, however long it takes.
            assert env.reset().first()


def test_a_join_that_is_refused_does_not_keep_a_world() -> None:
    with serve(Catch, idle_world_seconds=GRACE) as server:
        world = create(server)
        with connect(server.address) as connection:
            with pytest.raises(DmEnvRpcError, match="unknown join settings"):
                join_world(connection, world, {"colour": 1})
            assert settles(lambda: server.world_count == 0)


def test_worlds_end_in_the_order_of_their_clients(closed: list[int]) -> None:
    with serve(Recorded, idle_world_seconds=GRACE) as server:
        creators = [connect(server.address) for _ in range(5)]
        for number, creator in enumerate(creators):
            create_world(creator, {"number": number})
        order = [3, 0, 4, 1, 2]
        for number in order:
            creators[number].close()
        assert waiters() == 1
        assert settles(lambda: closed == order)
        assert server.world_count == 0


@pytest.mark.parametrize("only", [Race(), SharedWorld(Race())], ids=["game", "world"])
def test_the_only_world_of_a_server_has_no_name_and_never_ends(only: Any) -> None:
    with serve(only, idle_world_seconds=0.0) as server:
        with connect(server.address) as connection:
            for request in (dm_env_rpc_pb2.CreateWorldRequest, dm_env_rpc_pb2.DestroyWorldRequest):
                with pytest.raises(DmEnvRpcError, match="one world, with the empty name"):
                    connection.send(request())
        for _ in range(3):
            with connect(server.address) as connection, join_world(connection, ""):
                assert server.agent_count == 1
        assert settles(lambda: server.agent_count == 0)
        assert waiters() == 0
        assert server.world_count == 1


def test_none_keeps_the_worlds() -> None:
    with serve(Catch, idle_world_seconds=None) as server:
        world = create(server)
        with connect(server.address) as connection:
            assert waiters() == 0
            destroy_world(connection, world)


def test_stop_closes_idle_worlds_at_once_and_ends_the_thread(closed: list[int]) -> None:
    server = serve(Recorded)
    create(server)
    assert settles(lambda: waiters() == 1)
    server.stop(0.0)
    assert waiters() == 0
    assert closed == [0]


def test_a_world_that_fails_to_close_is_told_and_the_next_one_ends_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Catch):
        def close(self) -> None:
            raise RuntimeError("no way")

    with serve(Failing, idle_world_seconds=0.0) as server:
        for _ in range(2):
            create(server)
        with caplog.at_level(logging.INFO):
            assert settles(lambda: len(server.errors) == 2)
        assert server.world_count == 0
        assert str(server.errors[0]) == "no way"


def test_a_world_that_is_made_while_the_server_stops_is_closed(closed: list[int]) -> None:
    making, go_on = threading.Event(), threading.Event()

    def make_slow() -> dm_env.Environment:
        making.set()
        assert go_on.wait(10)
        return Recorded()

    server = serve(make_slow)
    connection = connect(server.address)
    connection.start(dm_env_rpc_pb2.CreateWorldRequest())
    assert making.wait(10)
    server.stop(0.0)
    go_on.set()
    assert settles(lambda: closed == [0])
    connection.close()


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


def test_a_factory_that_fails_while_the_server_stops_says_why() -> None:
    def factory(rows: int) -> World:
        registry.close()
        raise ValueError("of the factory")

    registry = WorldRegistry(ServeOptions(environment=factory), ErrorLog(), Share())
    with pytest.raises(RequestError, match="of the factory"):
        registry.create({"rows": 3}, object())
