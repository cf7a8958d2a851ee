"""Opening connections, and servers and clients that are written with grpcio."""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import pytest
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import dm_env_rpc_pb2_grpc as reference_service

from dm_env_rpc_client import (
    ConnectionLostError,
    ProtocolError,
    SpecError,
    connect,
    create_secure_async_channel_and_connect,
    create_secure_channel_and_connect,
    dm_env_rpc_pb2,
    dm_env_rpc_pb2_grpc,
)
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.transports.net.addresses import is_loopback
from tests.support.both_transports import EVERY
from tests.support.ports import HeldPort
from tests.support.stopwatch import time_limit
from tests.transports.raw_server import ask

TRANSPORTS = EVERY


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:1", True),
        ("127.0.0.1:1", True),
        ("127.8.9.1:1", True),
        ("[::1]:1", True),
        ("unix:/tmp/x", True),
        ("unix:///tmp/x", True),
        ("ipv4:127.0.0.1:1", True),
        ("dns:///localhost:1", True),
        ("env.localhost:1", True),
        ("10.0.0.1:1", False),
        ("[2001:db8::1]:1", False),
        ("localhost.example.com:1", False),
        ("127.0.0.1.example.com:1", False),
        ("example.com", False),
        ("0.0.0.0:1", False),
    ],
)
def test_loopback_addresses_are_told_from_others(address: str, expected: bool) -> None:
    assert is_loopback(address) is expected


@pytest.mark.parametrize("is_async", [False, True])
def test_plaintext_does_not_leave_this_machine_unless_asked_to(is_async: bool) -> None:
    with time_limit(0.5), pytest.raises(SpecError, match="insecure=True"):
        ask("192.0.2.1:1", is_async, timeout=30)


def test_local_credentials_for_another_machine_are_refused_at_once() -> None:
    with time_limit(0.5), pytest.raises(SpecError, match="local credentials"):
        create_secure_channel_and_connect("192.0.2.1:1", timeout=30)


def test_a_server_that_starts_late_is_waited_for() -> None:
    servers: list[Server] = []
    with HeldPort() as port:
        timer = threading.Timer(0.7, lambda: servers.append(serve(Catch, port.address)))
        timer.start()
        try:
            with connect(port.address, timeout=30) as connection:
                assert connection.is_usable
        finally:
            timer.join()
            servers[0].stop()


Request = dm_env_rpc_pb2.EnvironmentRequest
Response = dm_env_rpc_pb2.EnvironmentResponse


class Creates(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    """Answers every request as if it had created a world."""

    def Process(  # noqa: N802
        self, request_iterator: Iterable[Request], context: grpc.ServicerContext
    ) -> Iterator[Response]:
        for number, _ in enumerate(request_iterator):
            yield Response(create_world={"world_name": f"world {number}"})


@contextlib.contextmanager
def served(servicer: Any = Creates, adders: Any = dm_env_rpc_pb2_grpc) -> Iterator[str]:
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    adders.add_EnvironmentServicer_to_server(servicer(), server)
    port = server.add_secure_port("127.0.0.1:0", grpc.local_server_credentials())
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


CREATE = dm_env_rpc_pb2.CreateWorldRequest()


def test_a_server_that_is_written_by_hand_needs_no_other_package() -> None:
    with served() as address:
        with connect(address) as connection:
            assert connection.send(CREATE).world_name == "world 0"
            assert connection.send(CREATE).world_name == "world 1"
        with create_secure_channel_and_connect(address) as connection:
            assert connection.send(CREATE).world_name == "world 0"
        with reference_connection.create_secure_channel_and_connect(address) as theirs:
            assert theirs.send(CREATE).world_name == "world 0"


async def test_secure_channels_for_asyncio() -> None:
    with served() as address:
        async with await create_secure_async_channel_and_connect(
            address, grpc.local_channel_credentials(), [("key", "value")], timeout=10.0
        ) as connection:
            assert (await connection.send(CREATE)).world_name == "world 0"


def test_a_servicer_that_implements_nothing_says_so() -> None:
    expected = pytest.raises((ProtocolError, ConnectionLostError), match="not implement Process")
    servicer = dm_env_rpc_pb2_grpc.EnvironmentServicer
    with served(servicer) as address, connect(address) as connection, expected:
        connection.send(CREATE)


def test_stubs_and_servers_of_both_packages_go_together() -> None:
    servers: list[Any] = [(reference_service, dm_env_rpc_pb2_grpc)]
    for stubs, adders in [*servers, (dm_env_rpc_pb2_grpc, reference_service)]:
        local = grpc.local_channel_credentials()
        with served(adders=adders) as address, grpc.secure_channel(address, local) as channel:
            stub = stubs.EnvironmentStub(channel)
            (answer,) = stub.Process(iter([Request(create_world={})]))
            assert answer.create_world.world_name == "world 0"
