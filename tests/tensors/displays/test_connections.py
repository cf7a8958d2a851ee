"""What our own classes look like; showing them asks no server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dm_env_rpc_client import (
    connect,
    connect_async,
    create_and_join_world,
    dm_env_rpc_pb2,
    make,
    make_async,
)
from dm_env_rpc_client.errors import DeadlineExceededError
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.support.environments import Robot


def test_a_connection_shows_where_it_leads_and_what_it_does(catch_server: Server) -> None:
    with connect(catch_server.address) as connection:
        html = connection._repr_html_()
        assert catch_server.address in html
        assert "not joined to a world" in html
        env, world_name = create_and_join_world(connection)
        html = connection._repr_html_()
        assert "joined, before the first sequence" in html
        assert world_name in html
        env.reset()
        assert "in a sequence" in connection._repr_html_()
        env.close()


def test_a_dead_connection_shows_why(catch_server: Server) -> None:
    connection = connect(catch_server.address)
    connection.close()
    html = connection._repr_html_()
    assert "unusable" in html
    assert "ConnectionClosedError" in html


def test_a_connection_is_shown_while_the_server_does_not_answer() -> None:
    def silent(requests: Any, _: Any) -> Any:
        for _request in requests:
            pass
        return ()

    with ScriptedServer(silent) as server, connect(server.address) as connection:
        pending = connection.submit(dm_env_rpc_pb2.CreateWorldRequest())
        assert "<td" in connection._repr_html_()
        assert ">1<" in connection._repr_html_()
        with pytest.raises(DeadlineExceededError):
            connection.send(dm_env_rpc_pb2.CreateWorldRequest(), timeout=0.05)
        assert pending.exception(10) is not None
        assert "DeadlineExceededError" in connection._repr_html_()


def test_an_environment_shows_its_specs() -> None:
    with serve(Robot) as server:
        with make(server.address) as env:
            html = env._repr_html_()
            for part in (server.address, "arm.torque", "camera.rgb", "4 x 5 x 3", "reward"):
                assert part in html
            assert "Actions" in env._actions._repr_html_()
            assert "-1 … 1" in env._actions._repr_html_()
        assert "DmEnvAdaptor at closed" in env._repr_html_()
        html = server._repr_html_()
        assert server.address in html
        assert "none" in html


def test_what_is_awaited_is_shown_from_within_its_event_loop(catch_server: Server) -> None:
    async def shown() -> tuple[str, str]:
        async with await connect_async(catch_server.address) as connection:
            html = connection._repr_html_()
        async with await make_async(catch_server.address) as env:
            return html, env._repr_html_()

    connection_html, env_html = asyncio.run(shown())
    assert "AsyncConnection" in connection_html
    assert "paddle" in env_html
