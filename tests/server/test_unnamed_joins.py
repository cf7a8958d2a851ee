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
