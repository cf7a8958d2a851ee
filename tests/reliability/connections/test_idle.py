"""Row 34: an AsyncConnection that is idle, and ones that nobody closes."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Iterator

import grpc
import pytest

from dm_env_rpc_client import (
    AsyncConnection,
    ConnectionLostError,
    ProtocolError,
    connect_async,
)
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import (
    descriptor_count,
    extension,
    settles_async,
)


@pytest.mark.row(34)
async def test_row_34_an_idle_connection_is_poisoned_by_the_first_message_not_asked_for() -> None:
    sent: list[Response] = []
    unasked = Response(extension=extension(1))

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        while context.is_active():
            sent.append(unasked)
            yield unasked

    with ScriptedServer(script) as server:
        async with await connect_async(server.address) as connection:
            while connection.is_usable:
                await asyncio.sleep(0.01)  # The loop reads meanwhile.
            assert isinstance(connection.poisoned_by, ProtocolError)
            with pytest.raises(ConnectionLostError):
                await connection.send(extension(2))
    assert sent


@pytest.mark.row(34)
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
        await asyncio.sleep(0.1)  # What is collected ends in the loop.
        before = descriptor_count()
        for _ in range(count):
            await one(echo_environment_server.address)
            gc.collect()
        await settles_async(
            lambda: echo_environment_server.agent_count == 0 and descriptor_count() <= before + 2
        )
        assert echo_environment_server.agent_count == 0
        left = [each for each in gc.get_objects() if isinstance(each, AsyncConnection)]
        seen(forgotten=count, not_freed=len(left))
        assert left == []
        assert descriptor_count() <= before + 2

    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        # What records warnings itself would hold what they are about.
        warnings.showwarning = lambda message, *_: texts.append(str(message))
        asyncio.run(scenario())
    warned = sum("was not closed" in text for text in texts)
    seen(warnings=warned)
    assert warned >= count
