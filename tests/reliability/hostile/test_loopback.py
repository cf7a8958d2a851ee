"""Row 44: addresses that only look like loopback are refused for plaintext."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from dm_env_rpc_client import SpecError, connect
from tests.transports.raw_server import ask

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.row(44)

ELSEWHERE = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 7))]


@pytest.mark.parametrize("name", ["env.localhost:7", "localhost:7"])
@pytest.mark.parametrize("is_async", [False, True])
def test_row_44_a_name_that_is_resolved_to_another_machine(
    monkeypatch: pytest.MonkeyPatch, name: str, is_async: bool
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ELSEWHERE)
    connected: list[Any] = []
    monkeypatch.setattr(socket.socket, "connect", lambda _, where: connected.append(where))

    with pytest.raises(SpecError, match=r"resolved to 192\.0\.2\.1"):
        ask(name, is_async, timeout=5)
    assert connected == []


@pytest.mark.parametrize("address", ["dns://192.0.2.1/localhost:7", "dns://192.0.2.1/127.0.0.1:7"])
def test_row_44_a_resolver_that_is_named_in_the_target(address: str) -> None:
    with pytest.raises(SpecError, match="loopback"):
        connect(address, timeout=1)


def test_row_44_names_that_grpcio_would_resolve() -> None:
    with pytest.raises(SpecError, match="cannot check"):
        connect("env.localhost:7", timeout=1, transport="grpc")
