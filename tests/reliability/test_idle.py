"""Row 34: an AsyncConnection that is idle, and ones that nobody closes."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading

import pytest

from dm_env_rpc_client import AsyncConnection, ConnectionLostError, ProtocolError, connect_async
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.server import Server
from tests.reliability.raw_peers import answering_socket, read_for_ever
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.scripted import descriptor_count, extension, settles
from tests.transports import frames

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.row(34)


def test_row_34_an_idle_connection_is_poisoned_by_the_first_message_that_it_did_not_ask_for() -> (
    None
):
    sent = threading.Event()
    unasked = dm_env_rpc_pb2.EnvironmentResponse(extension=extension(1)).SerializeToString()
    blob = frames.data(frames.grpc_message(unasked)) * 1_000

    def script(connected: socket.socket) -> None:
        read_for_ever(connected)
        connected.sendall(frames.greeting())
        while True:
            connected.sendall(blob)
            sent.set()

    async def scenario(address: str) -> None:
        async with await connect_async(address) as connection:
            while connection.is_usable:
                await asyncio.sleep(0.01)
            assert isinstance(connection.poisoned_by, ProtocolError)
            with pytest.raises(ConnectionLostError):
                await connection.send(extension(2))

    with answering_socket(script) as address:
        asyncio.run(asyncio.wait_for(scenario(address), 20))


@counts(20, 400)
def test_row_34_forgotten_connections_are_freed_with_a_warning(
    echo_environment_server: Server, count: int, seen: Seen
) -> None:
    async def one(address: str) -> None:
        connection = await connect_async(address)
        world = await connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        await connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=world.world_name))

    async def scenario() -> None:
        await one(echo_environment_server.address)
        gc.collect()
        await asyncio.sleep(0.1)
        before = descriptor_count()
        for _ in range(count):
            await one(echo_environment_server.address)
            gc.collect()
        for _ in range(100):
            if echo_environment_server.agent_count == 0:
                break
            await asyncio.sleep(0.1)
        assert echo_environment_server.agent_count == 0
        left = [each for each in gc.get_objects() if isinstance(each, AsyncConnection)]
        seen(forgotten=count, not_freed=len(left))
        assert left == []
        assert settles(lambda: descriptor_count() <= before + 2)

    with pytest.warns(ResourceWarning, match="was not closed") as warned:
        asyncio.run(scenario())
    seen(warnings=len(warned))
    assert len(warned) >= count
