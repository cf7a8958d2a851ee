"""The scripted server answers what it is told to, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.rpc import status_pb2

from dm_env_rpc_client import (
    ConnectionLostError,
    SpecError,
    connect,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.protocol.envelopes import answer_field
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.support.scripted import settles

LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()


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
