"""The scripted server answers what it is told to, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    connect,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.protocol.envelopes import answer_field
from dm_env_rpc_client.testing import Request, Response, ScriptedServer, answering
from tests.support.scripted import extension, settles

LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()


def test_it_answers_in_the_order_of_its_answers() -> None:
    refusal = DmEnvRpcError(status_pb2.Status(code=code_pb2.NOT_FOUND, message="none"))
    script = answering(
        dm_env_rpc_pb2.CreateWorldResponse(world_name="w"),
        refusal,
        Response(leave_world=dm_env_rpc_pb2.LeaveWorldResponse()),
        Response(leave_world=dm_env_rpc_pb2.LeaveWorldResponse()).SerializeToString(),
        any_pb2.Any(type_url="x"),
    )
    with ScriptedServer(script) as server, connect(server.address) as connection:
        created = connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        assert created.world_name == "w"
        with pytest.raises(DmEnvRpcError, match="NOT_FOUND: none"):
            connection.send(LEAVE)
        connection.send(LEAVE)
        connection.send(LEAVE)
        assert connection.send(extension(1)).type_url == "x"
        assert [request.WhichOneof("payload") for request in server.requests] == [
            "create_world",
            *["leave_world"] * 3,
            "extension",
        ]
        with pytest.raises(ConnectionLostError):
            connection.send(LEAVE)
    assert server.errors == []


def test_it_can_keep_silent_and_send_what_is_wrong() -> None:
    wrong = dm_env_rpc_pb2.StepResponse()
    for answer, error in ((None, ConnectionLostError), (wrong, ProtocolError)):
        with (
            ScriptedServer(answering(answer)) as server,
            connect(server.address) as connection,
            pytest.raises(error),
        ):
            connection.send(LEAVE)


def test_it_keeps_what_its_script_raises() -> None:
    def broken(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        for _ in requests:
            raise ValueError("broken script")
        yield Response()

    with ScriptedServer(broken) as server, connect(server.address) as connection:
        with pytest.raises(ConnectionLostError):
            connection.send(LEAVE)
        assert settles(lambda: bool(server.errors))
    assert str(server.errors[0]) == "broken script"


def test_what_is_no_answer_is_refused() -> None:
    assert answer_field(dm_env_rpc_pb2.ResetResponse()) == "reset"
    assert answer_field(status_pb2.Status()) == "error"
    with pytest.raises(SpecError, match="is not a dm_env_rpc response"):
        answer_field(LEAVE)
