"""AsyncConnection: any number of coroutines, each with its own answer."""

from __future__ import annotations

import asyncio
import random
import threading

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2

from dm_env_rpc_client import (
    AsyncConnection,
    ConnectionClosedError,
    DeadlineExceededError,
    connect_async,
)
from dm_env_rpc_client.testing import ScriptedServer
from tests.client.scripts import held, silent
from tests.support.both_transports import EVERY
from tests.support.scripted import extension

TRANSPORTS = EVERY

MAX_REQUESTS = "dm_env_rpc_client.protocol.pipeline.MAX_REQUESTS_IN_FLIGHT"


async def test_a_channel_of_the_users_own_stays_open(echo_server: ScriptedServer) -> None:
    async with grpc.aio.insecure_channel(echo_server.address) as channel:
        for number in range(2):
            async with AsyncConnection(channel) as connection:
                assert await connection.send(extension(number)) == extension(number)


async def test_large_requests_wait_in_line_and_keep_their_order(
    echo_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.pipeline.MAX_BYTES_IN_FLIGHT", 50_000)
    sizes = random.Random(1).choices([10, 1_000, 40_000, 90_000], k=200)
    requests = [any_pb2.Any(type_url=str(i), value=b"x" * size) for i, size in enumerate(sizes)]
    async with await connect_async(echo_server.address) as connection:
        answers = await asyncio.gather(*(connection.send(each) for each in requests))
        assert answers == requests


async def test_a_wait_that_is_cancelled_before_anything_is_sent_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MAX_REQUESTS, 1)
    is_cancelled = threading.Event()
    with ScriptedServer(held(is_cancelled)) as server:
        async with await connect_async(server.address) as connection:
            first, second, third = (
                asyncio.create_task(connection.send(extension(number))) for number in range(3)
            )
            await asyncio.sleep(0)  # All have begun: one is pending, the others wait in line.
            second.cancel()
            is_cancelled.set()
            assert await first == extension(0)
            assert await third == extension(2)
            assert connection.is_usable


async def test_a_deadline_in_the_line_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAX_REQUESTS, 1)
    with ScriptedServer(silent) as server:
        async with await connect_async(server.address) as connection:
            first = asyncio.create_task(connection.send(extension(1)))
            await asyncio.sleep(0)  # It has begun.
            with pytest.raises(DeadlineExceededError):
                await connection.send(extension(2), timeout=0.2)
            assert connection.is_usable
            waiting = asyncio.create_task(connection.send(extension(3)))
            await asyncio.sleep(0)
            await connection.close()
            for task in (first, waiting):
                with pytest.raises(ConnectionClosedError):
                    await task
