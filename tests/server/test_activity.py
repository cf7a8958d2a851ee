"""What a server counts and logs."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    connect,
    create_world,
    dm_env_rpc_pb2,
    join_world,
    make,
)
from dm_env_rpc_client.server import Catch, Server, serve
from tests.support.scripted import settles

FIELDS = dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields_by_name
LOGGER = "dm_env_rpc_client.server"
LOGGERS = (LOGGER, "dm_env_rpc_client.server.clients")


def test_a_server_counts_what_it_does(catch_server: Server) -> None:
    before = catch_server.stats()
    assert (before.streams, before.all_streams, before.steps, before.refusals) == (0, 0, 0, 0)
    assert before.requests == dict.fromkeys(map(str, FIELDS), 0)
    with make(catch_server.address, {"rows": 20}) as env:
        env.reset()
        for _ in range(9):
            env.step({"paddle": 1})
        during = catch_server.stats()
        assert (during.streams, during.worlds, during.agents, during.steps) == (1, 1, 1, 10)
        assert during.uptime > before.uptime
        with connect(catch_server.address) as connection:
            with pytest.raises(DmEnvRpcError):
                join_world(connection, "nowhere")
            connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
    assert settles(lambda: catch_server.stats().streams == 0)
    after = catch_server.stats()
    assert (after.all_streams, after.worlds, after.agents, after.steps) == (2, 0, 0, 10)
    assert (after.refusals, after.errors) == (1, 0)
    counted = {"create_world": 1, "join_world": 2, "step": 10, "leave_world": 2, "destroy_world": 1}
    assert after.requests == {**before.requests, **counted}
    with pytest.raises(dataclasses.FrozenInstanceError):
        after.steps = 0  # type: ignore[misc]


def test_the_log_tells_of_clients_and_refusals_and_not_of_steps(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), serve(Catch, token="s3cret") as server:
        with pytest.raises(ConnectionLostError):
            make(server.address)
        with make(server.address, {"rows": 30}, token="s3cret") as env:
            env.reset()
            for _ in range(20):
                env.step({"paddle": 1})
            with pytest.raises(DmEnvRpcError):
                create_world(env.connection, {"colour": 1})
        assert settles(lambda: "disconnected" in caplog.text)
    lines = [record.getMessage() for record in caplog.records if record.name in LOGGERS]
    assert len(lines) == 4, lines
    assert "requires a token" in lines[0]
    assert lines[1].endswith(" connected")
    assert "refused a create_world request of" in lines[2]
    assert "known settings: rows" in lines[2]
    assert lines[3].endswith(" disconnected")
    assert "s3cret" not in caplog.text


def test_clients_that_come_and_go_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), serve(Catch) as server:
        for _ in range(60):
            connect(server.address).close()
        assert settles(lambda: server.stats().streams == 0)
        assert server.stats().all_streams == 60
    assert 1 <= sum(record.name in LOGGERS for record in caplog.records) <= 30
