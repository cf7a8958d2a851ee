"""Health checks of the one-file server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dm_env_rpc_client.launch.standalone.dm_env_rpc_server import Server
from dm_env_rpc_client.server import Catch
from dm_env_rpc_client.transports.services import CHECK
from tests.support.scripted import settles
from tests.transports.test_health_check import assert_is_watched, assert_serves


@pytest.fixture
def server() -> Iterator[Any]:
    with Server(Catch, token="secret") as running:
        yield running
        assert not running.errors


def test_health_needs_no_token(server: Any) -> None:
    assert_serves(server.address)


def test_the_health_service_answers_as_grpc_s(server: Any) -> None:
    with grpc.insecure_channel(server.address) as channel:
        check: Any = channel.unary_unary(CHECK)
        assert check(b"", timeout=20) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x01x", timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert_is_watched(server.address)
    assert settles(lambda: not server.connections, 20)
