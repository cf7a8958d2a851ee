"""JoinWorld without a name joins the world that the stream has created last."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dm_env_rpc_client import (
    Connection,
    DmEnvRpcError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    join_world,
)
from dm_env_rpc_client.server import Catch, serve

_JOIN = dm_env_rpc_pb2.JoinWorldRequest()


@pytest.fixture(scope="module", params=[None, 2], ids=["threads", "processes"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with serve(Catch, processes=request.param) as server:
        yield server.address
        assert server.errors == []


@pytest.fixture
def connection(address: str) -> Iterator[Connection]:
    with connect(address) as connection:
        yield connection


def _rows(connection: Connection) -> int:
    """Join the world without its name, and return the number of rows of its board."""
    specs = connection.send(_JOIN).specs
    connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
    (board,) = (spec for spec in specs.observations.values() if spec.name == "board")
    return int(board.shape[-2])


@pytest.mark.parametrize("batch", [{}, {"num_envs": 3}], ids=["alone", "batch"])
def test_the_last_world(connection: Connection, batch: dict[str, int]) -> None:
    for rows in (4, 6, 8):
        create_world(connection, {"rows": rows, **batch})
        assert _rows(connection) == rows
        assert connection.lifecycle.world_name == connection.lifecycle.created != ""


def test_requests_that_are_sent_together(connection: Connection) -> None:
    create = dm_env_rpc_pb2.CreateWorldRequest()
    created, joined = connection.start_all([create, _JOIN])
    name = connection.wait(created).world_name
    assert connection.wait(joined).specs.observations
    assert connection.lifecycle.world_name == name
    connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
    connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=name))


def test_a_world_that_was_not_created(connection: Connection) -> None:
    with pytest.raises(DmEnvRpcError, match="no world"):
        connection.send(_JOIN)
    create_world(connection)
    with pytest.raises(DmEnvRpcError, match="nonsense"):
        create_world(connection, {"nonsense": 1})
    # Not the former world.
    with pytest.raises(DmEnvRpcError, match="no world"):
        connection.send(_JOIN)


def test_a_world_of_another_stream(connection: Connection, address: str) -> None:
    with connect(address) as other:
        name = create_world(other)
        with pytest.raises(DmEnvRpcError, match="no world"):
            connection.send(_JOIN)
        join_world(connection, name).close()
