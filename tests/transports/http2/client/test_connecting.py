"""Which servers are reached, how names are resolved, and what may listen there."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    ProtocolError,
    SpecError,
    connect,
)
from dm_env_rpc_client.testing import ScriptedServer
from dm_env_rpc_client.transports.endpoint import is_for_http2
from dm_env_rpc_client.transports.net.addresses import Target
from tests.support.scripted import extension
from tests.support.stopwatch import patience, time_limit
from tests.transports.raw_server import (
    Script,
    ask,
    both_ways,
    full_listener,
    raw_server,
    until_closed,
)

# Which addresses, and which credentials.


@pytest.mark.parametrize(
    ("address", "credentials", "expected"),
    [
        ("localhost:1", None, True),
        ("[::1]:1", None, True),
        ("unix:/tmp/socket", None, True),
        ("unix:///tmp/socket", None, True),
        ("unix-abstract:name", None, True),
        ("dns:///localhost:1", None, False),
        ("ipv4:127.0.0.1:1", None, False),
        ("example.com:443", ssl.create_default_context(), True),
        ("localhost:1", grpc.ssl_channel_credentials(), False),
        ("localhost:1", grpc.local_channel_credentials(), True),
    ],
)
def test_auto_takes_http2_where_it_can(address: str, credentials: Any, expected: bool) -> None:
    assert is_for_http2(address, credentials) is expected


def test_auto_leaves_proxies_to_grpcio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("no_proxy", "inside.example")
    context = ssl.create_default_context()
    assert is_for_http2("outside.example:443", context) is False
    assert is_for_http2("inside.example:443", context) is True
    assert is_for_http2("localhost:1", None) is True


@pytest.mark.parametrize(
    ("address", "path", "authority"),
    [
        ("localhost:50051", "", "localhost:50051"),
        ("[::1]:50051", "", "[::1]:50051"),
        ("unix:relative/socket", "relative/socket", "localhost"),
        ("unix:///tmp/socket", "/tmp/socket", "localhost"),
        ("unix-abstract:name", "\0name", "localhost"),
    ],
)
def test_addresses_are_what_they_are_to_grpc(address: str, path: str, authority: str) -> None:
    target = Target.parse(address)
    assert (target.path, target.authority) == (path, authority)


def test_what_http2_cannot_reach_is_refused_with_a_way_out() -> None:
    with pytest.raises(SpecError, match="looks like"):
        connect("dns:///localhost:1", transport="http2")
    with pytest.raises(SpecError, match=r"ssl\.SSLContext.*transport='grpc'"):
        connect("localhost:1", credentials=grpc.ssl_channel_credentials(), transport="http2")
    with pytest.raises(SpecError, match=r"grpc\.ssl_channel_credentials"):
        connect("localhost:1", credentials=ssl.create_default_context(), transport="grpc")


# What may listen there.


def http_1(connection: socket.socket) -> None:
    connection.recv(1_000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def hang_up(connection: socket.socket) -> None:
    connection.recv(65_536)


@both_ways
@pytest.mark.parametrize(
    ("script", "error", "text"),
    [
        (http_1, ProtocolError, "not a gRPC server: it speaks HTTP/1"),
        (hang_up, ConnectionLostError, "matching credentials"),
        (until_closed, DeadlineExceededError, "no reply"),
    ],
)
def test_what_is_no_grpc_server_is_named(
    script: Script, error: type[Exception], text: str, is_async: bool
) -> None:
    expected = pytest.raises(error, match=text)
    timeout = patience(0.6)
    with raw_server(script) as address, time_limit(0.9 + timeout), expected as caught:
        ask(address, is_async, timeout=timeout)
    assert address in str(caught.value)


@pytest.fixture
def resolved(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has every name stand for addresses, in this order."""

    def resolve(*addresses: Any) -> None:
        places = [
            (socket.AF_INET6 if ":" in each[0] else socket.AF_INET, socket.SOCK_STREAM, 6, "", each)
            for each in addresses
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)

    return resolve


@both_ways
def test_the_next_address_of_a_name_is_tried(
    echo_server: ScriptedServer, resolved: Callable[..., None], is_async: bool
) -> None:
    port = int(echo_server.address.rpartition(":")[2])
    resolved(("127.0.0.1", 1), ("::1", port, 0, 0), ("127.0.0.1", port))
    address = "several.localhost:7"
    assert ask(address, is_async, 1, timeout=5, transport="http2") == extension(1)


@both_ways
def test_an_address_that_does_not_accept_leaves_time_for_the_next(
    echo_server: ScriptedServer, resolved: Callable[..., None], is_async: bool
) -> None:
    port = int(echo_server.address.rpartition(":")[2])
    with full_listener() as silent:
        resolved(("127.0.0.1", int(silent.rpartition(":")[2])), ("127.0.0.1", port))
        address = "two.localhost:7"
        assert ask(address, is_async, 1, timeout=patience(2), transport="http2") == extension(1)


def test_a_name_that_is_not_resolved_in_time_is_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        asked.wait(20)
        raise socket.gaierror(socket.EAI_NONAME, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with time_limit(1.5), pytest.raises(DeadlineExceededError):
        connect("slow.example:7", timeout=0.3, insecure=True, transport="http2")
    asked.set()
    with pytest.raises(ConnectionLostError, match="no such name"):
        connect("unknown.example:7", timeout=0.3, insecure=True, transport="http2")
