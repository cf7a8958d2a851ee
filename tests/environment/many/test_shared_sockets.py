"""Environments of one pool share sockets: a stream for each on one connection."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionClosedError,
    ConnectionLostError,
    EnvironmentsFailedError,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.client.connection_group import ConnectionGroup
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.http2.client.connecting import open_connection
from dm_env_rpc_client.transports.streams import plain_memory
from tests.compliance import playground
from tests.support.environments import Echo
from tests.support.scripted import extension, settles
from tests.support.serving import serving

TRANSPORTS = ["http2"]

server = serving(Echo, max_connections=2000, max_worlds=2000, scope="function")


def test_no_stream_is_opened_on_a_connection_that_its_last_one_ends(server: Server) -> None:
    connection = open_connection(Endpoint(server.address), 10.0, plain_memory)
    first, second = connection.open_call(), connection.open_call()
    assert first is not None
    assert second is not None
    assert connection.release(first)
    assert connection.stream_count == 1
    assert not connection.release(second)
    # Another thread may open one before the one that has closed the last ends the connection.
    assert connection.open_call() is None
    connection.shut_down()


def sockets() -> int:
    """TCP sockets of this process that are connected to another end."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # It was closed meanwhile, or has no other end.
            if os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(number))) as copy:
                    copy.getpeername()
                    found += copy.family in (socket.AF_INET, socket.AF_INET6)
    return found


@pytest.mark.parametrize(
    "count", [16, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
def test_all_environments_of_an_address_share_a_socket(server: Server, count: int) -> None:
    before = sockets()
    with BatchedEnvironment(server.address, count, num_batches=0) as envs:
        # Both ends are in this process.
        assert sockets() == before + 2
        assert server.agent_count == count
        envs.reset()
        for step in range(3):
            numbers = np.arange(count, dtype=np.int32) + step
            timestep = envs.step(_action(envs, numbers))
            assert not timestep.first().any()
    assert settles(lambda: sockets() == before)
    assert settles(lambda: server.agent_count == server.world_count == 0)


def _action(envs: BatchedEnvironment, numbers: Any) -> dict[str, Any]:
    return {
        name: np.broadcast_to(numbers.reshape(-1, *[1] * (len(spec.shape) - 1)), spec.shape).astype(
            spec.dtype
        )
        for name, spec in envs.action_spec().items()
    }


def test_closing_or_losing_one_leaves_the_others(server: Server) -> None:
    group = ConnectionGroup(server.address)
    first, second, third = (group.open() for _ in range(3))
    first.close()
    with pytest.raises(ConnectionClosedError):
        first.send(extension(1))
    second._poison(ConnectionLostError("of a test"))
    with pytest.raises(ConnectionLostError):
        second.send(extension(1))
    assert third.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name
    fourth = group.open()
    assert fourth.send(dm_env_rpc_pb2.CreateWorldRequest()).world_name
    before = sockets()
    third.close()
    fourth.close()
    assert settles(lambda: sockets() == before - 2)


def test_another_socket_is_opened_when_the_server_takes_no_more_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = grpc.server

    def limited(executor: Any, options: Any, **arguments: Any) -> Any:
        return make(executor, options=[*options, ("grpc.max_concurrent_streams", 4)], **arguments)

    monkeypatch.setattr(grpc, "server", limited)
    with serve(Echo, transport="grpc") as server:
        before = sockets()
        with BatchedEnvironment(server.address, 10, num_batches=0) as envs:
            assert envs.reset().first().all()
            assert server.agent_count == 10
            # grpcio's ends are not seen as files of this kind by every version; ours are 3.
            assert sockets() - before >= 3


class EndsAfterExtensions(playground.Session):
    """Ends the stream at an extension, without an answer."""

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            if request.WhichOneof("payload") == "extension":
                return
            yield from self.answers(request)


def test_a_server_that_ends_the_stream_when_asked_for_batches_is_connected_to_again() -> None:
    with (
        playground.serve(EndsAfterExtensions) as address,
        BatchedEnvironment(address, 3) as envs,
    ):
        assert envs.reset().first().all()


def test_who_was_asked_for_batches_is_left_if_another_server_cannot_be_reached(
    server: Server,
) -> None:
    before = sockets()
    with pytest.raises(EnvironmentsFailedError) as failed:
        BatchedEnvironment([server.address, "localhost:1"], 4, timeout=0.5)
    # The error is kept, and with it all that its frames refer to.
    assert failed.value.failures.keys() == {1}
    assert settles(lambda: sockets() == before)
