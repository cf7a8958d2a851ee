"""What is no address, at every door that takes one: refused at once, with a reason.

None of these may reach a resolver or a socket: getaddrinfo takes ports modulo 65,536, and grpcio
takes what follows the last digit, so that a client gets to another server.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest

from dm_env_rpc_client import (
    connect,
    connect_async,
    create_secure_channel_and_connect,
    make,
)
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import BatchedEnvironment, RemoteVectorEnv
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.recording import proxy
from dm_env_rpc_client.server import Catch, serve
from dm_env_rpc_client.transports.net.addresses import why_no_address
from tests.support.stopwatch import time_limit

TRANSPORTS = ["http2", "grpc", "auto"]

PORT = "the port must be a number from"
MISSING = "the port is missing"
PATH = "the path is missing"

NO_ADDRESSES = {
    "localhost:115271": PORT,
    "localhost:65536": PORT,
    "localhost:-1": PORT,
    "localhost:+5": PORT,
    "localhost:5_0": PORT,
    "localhost: 50051": PORT,
    "localhost:50051\n": PORT,
    "localhost:\u0665\u0660\u0660\u0665\u0661": PORT,
    "localhost:http": PORT,
    "localhost:" + "1" * 5_000: PORT,
    "dns:///localhost:115271": PORT,
    "ipv4:127.0.0.1:115271": PORT,
    "ipv4:127.0.0.1:50051,127.0.0.1:115271": PORT,
    "ipv6:[::1]:-1": PORT,
    "localhost": MISSING,
    "localhost:": MISSING,
    "[::1]": MISSING,
    "ipv4:127.0.0.1": MISSING,
    ":50051": "the host is missing",
    "[]:50051": "the host is missing",
    "local host:50051": "'local host' is not a valid host",
    "local\0host:50051": "is not a valid host",
    "::1:50051": "write IPv6 addresses in brackets",
    "localhost:50051:50052": "a host contains no colons",
    "unix:": PATH,
    "unix:/tmp/": PATH,
    "unix:/tmp/\0": PATH,
    "unix-abstract:": PATH,
    "http://localhost:50051": "remove 'http://'",
    "grpc://localhost:50051": "remove 'grpc://'",
    "gymnasum://CartPole-v1": "does not support the address scheme 'gymnasum:'",
}

ADDRESSES = [
    "localhost:1",
    "localhost:65535",
    "127.0.0.1:50051",
    "[::1]:50051",
    "example.com:443",
    "unix:/tmp/socket",
    "unix:///tmp/socket",
    "unix:socket",
    "unix-abstract:name",
    "dns:localhost:50051",
    "dns:///localhost:50051",
    "dns://8.8.8.8/localhost:50051",
    "ipv4:127.0.0.1:50051,127.0.0.1:50052",
    "ipv6:[::1]:50051",
    "vsock:3:70000",
    "xds:///service",
]

Door = Callable[[str], Any]

CLIENTS: dict[str, Door] = {
    "proxy": lambda address: proxy(address, "/nowhere/run.mcap", insecure=True),
    "create_secure_channel_and_connect": create_secure_channel_and_connect,
}
for _transport in TRANSPORTS:
    _given: dict[str, Any] = {"transport": _transport, "insecure": True, "timeout": 60.0}
    for _name, _function in {
        "connect": connect,
        "make": make,
        "BatchedEnvironment": BatchedEnvironment,
        "RemoteVectorEnv": RemoteVectorEnv,
        "RemoteParallelEnv": RemoteParallelEnv,
    }.items():
        CLIENTS[f"{_name} over {_transport}"] = (
            lambda address, function=_function, given=_given: function(address, **given)  # type: ignore[misc]
        )

SERVERS: dict[str, Door] = {
    "proxy": lambda address: proxy("localhost:1", "/nowhere/run.mcap", address),
    **{
        f"serve over {transport}": lambda address, transport=transport: serve(  # type: ignore[misc]
            Catch, address, transport=transport, insecure=True
        )
        for transport in TRANSPORTS
    },
}


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is resolved, connected to or bound."""

    def refuse(*arguments: object, **_: object) -> Any:
        raise AssertionError(f"it got to the network: {arguments}")

    for name in ("connect", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("address", NO_ADDRESSES)
@pytest.mark.parametrize("door", CLIENTS)
def test_clients_refuse_what_is_no_address(door: str, address: str) -> None:
    with time_limit(5), pytest.raises(SpecError) as caught:
        CLIENTS[door](address)
    text = str(caught.value)
    assert NO_ADDRESSES[address] in text
    assert f"got {address!r}" in text
    assert "looks like 'localhost:50051'" in text


def test_clients_refuse_port_0() -> None:
    for door, opened in CLIENTS.items():
        with pytest.raises(SpecError, match=f"{PORT} 1 to 65535"):
            opened("localhost:0")
        assert door


@pytest.mark.parametrize("address", [each for each in NO_ADDRESSES if "gymnasum" not in each])
@pytest.mark.parametrize("door", SERVERS)
def test_servers_refuse_what_is_no_address(door: str, address: str) -> None:
    with time_limit(5), pytest.raises(SpecError) as caught:
        SERVERS[door](address)
    assert NO_ADDRESSES[address] in str(caught.value)
    assert f"got {address!r}" in str(caught.value)


async def test_asyncio_refuses_what_is_no_address() -> None:
    for address, reason in NO_ADDRESSES.items():
        with pytest.raises(SpecError) as caught:
            await connect_async(address, insecure=True)
        assert reason in str(caught.value)


TCP = [each for each in NO_ADDRESSES if not each.startswith(("unix", "dns", "ip"))]


@pytest.mark.parametrize("address", TCP)
def test_the_bridges_of_gym_socket_refuse_what_is_no_address(address: str) -> None:
    with pytest.raises(SpecError, match="looks like"):
        gym_socket.serve({}, address, insecure=True)
    with pytest.raises(SpecError, match="looks like"):
        gym_socket.GymSocketEnvironment(address, "CartPole-v1", insecure=True)


@pytest.mark.parametrize("address", NO_ADDRESSES)
def test_the_server_in_one_file_refuses_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="expected an address to listen on, such as"):
        dm_env_rpc_server.serve(Catch, address, insecure=True)


def test_addresses_are_addresses() -> None:
    for address in ADDRESSES:
        assert why_no_address(address) == ""
        assert why_no_address(address, listens=True) == ""
    assert why_no_address("localhost:0", listens=True) == ""
