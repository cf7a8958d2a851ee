"""Health checks of the one-file server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dm_env_rpc_client.launch.standalone.dm_env_rpc_server import Server
from dm_env_rpc_client.server import Catch
from dm_env_rpc_client.transports.services import CHECK, WATCH
from tests.support.scripted import settles
from tests.transports.test_health_check import SERVICE, status_of


@pytest.fixture
def server() -> Iterator[Any]:
    with Server(Catch, token="secret") as running:
        yield running
        assert not running.errors


def test_health_needs_no_token(server: Any) -> None:
    assert status_of(server.address) == "SERVING"
    assert status_of(server.address, SERVICE) == "SERVING"
    assert status_of(server.address, "other") == "SERVICE_UNKNOWN"


def test_the_health_service_answers_as_grpc_s(server: Any) -> None:
    with grpc.insecure_channel(server.address) as channel:
        check: Any = channel.unary_unary(CHECK)
        assert check(b"", timeout=20) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as caught:
            check(b"\x0a\x01x", timeout=20)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch: Any = channel.unary_stream(WATCH)
        watched, unknown = watch(b"", timeout=20), watch(b"\x0a\x01x", timeout=20)
        assert (next(watched), next(unknown)) == (b"\x08\x01", b"\x08\x03")
        assert watched.is_active()
        watched.cancel()
        unknown.cancel()
    assert settles(lambda: not server.connections, 20)
