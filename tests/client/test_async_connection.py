"""AsyncConnection: any number of coroutines, each with its own answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2

from dm_env_rpc_client import (
    AsyncConnection,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    connect_async,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.scripted import descriptor_count, extension, thread_count, time_limit


def silent(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
    for _ in requests:
        pass
    yield from ()


def run(main: Callable[[], Awaitable[None]], seconds: float = 60) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(main(), seconds)

    asyncio.run(bounded())


def test_send_returns_the_payload_of_the_answer(echo_server: ScriptedServer) -> None:
    async def main() -> None:
        async with await connect_async(echo_server.address) as connection:
            assert await connection.send(extension(7)) == extension(7)
            assert echo_server.address in repr(connection)

    run(main)


def test_a_channel_of_the_users_own_stays_open(echo_server: ScriptedServer) -> None:
    async def main() -> None:
        async with grpc.aio.insecure_channel(echo_server.address) as channel:
            for number in range(2):
                async with AsyncConnection(channel) as connection:
                    assert await connection.send(extension(number)) == extension(number)

    run(main)


@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_gathering_many_requests_matches_every_answer(
    echo_server: ScriptedServer, count: int
) -> None:
    async def main() -> None:
        async with await connect_async(echo_server.address) as connection:
            requests = [extension(number) for number in range(count)]
            answers = await asyncio.gather(*(connection.send(each) for each in requests))
            assert answers == requests

    run(main)


def test_large_requests_wait_in_line_and_keep_their_order(
    echo_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.pipeline.MAX_BYTES_IN_FLIGHT", 50_000)
    sizes = random.Random(1).choices([10, 1_000, 40_000, 90_000], k=200)
    requests = [any_pb2.Any(type_url=str(i), value=b"x" * size) for i, size in enumerate(sizes)]

    async def main() -> None:
        async with await connect_async(echo_server.address) as connection:
            answers = await asyncio.gather(*(connection.send(each) for each in requests))
            assert answers == requests

    run(main)


def test_a_server_error_fails_its_own_request_only(catch_server: Server) -> None:
    async def main() -> None:
        async with await connect_async(catch_server.address) as connection:
            refused, created = await asyncio.gather(
                connection.send(dm_env_rpc_pb2.StepRequest()),
                connection.send(dm_env_rpc_pb2.CreateWorldRequest()),
                return_exceptions=True,
            )
            assert isinstance(refused, DmEnvRpcError)
            assert isinstance(created, dm_env_rpc_pb2.CreateWorldResponse)
            assert created.world_name

    run(main)


def test_100_cancellations_leave_no_stale_answer(echo_server: ScriptedServer) -> None:
    """A wait that is cancelled ends the connection, unless it had its answer already."""
    stale = dead = 0
    chance = random.Random(0)

    async def attempt(connection: AsyncConnection, number: int) -> None:
        nonlocal stale, dead
        tasks = [asyncio.create_task(connection.send(extension(number + i))) for i in range(3)]
        await asyncio.sleep(chance.random() * 0.001)
        tasks[chance.randrange(3)].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for offset, result in enumerate(results):
            if isinstance(result, any_pb2.Any):
                stale += result != extension(number + offset)
        try:
            stale += await connection.send(extension(number + 9)) != extension(number + 9)
        except ConnectionLostError:
            dead += 1

    async def main() -> None:
        connection = await connect_async(echo_server.address)
        for number in range(0, 1_000, 10):
            if not connection.is_usable:
                await connection.close()
                connection = await connect_async(echo_server.address)
            await attempt(connection, number)
        await connection.close()

    run(main)
    assert stale == 0
    assert dead > 10


def test_a_wait_that_is_cancelled_before_anything_is_sent_does_no_harm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.pipeline.MAX_REQUESTS_IN_FLIGHT", 1)

    def slow(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        import time

        for request in requests:
            time.sleep(0.1)
            yield Response(extension=request.extension)

    async def main() -> None:
        async with await connect_async(server.address) as connection:
            first, second, third = (
                asyncio.create_task(connection.send(extension(number))) for number in range(3)
            )
            await asyncio.sleep(0.05)
            second.cancel()
            assert await first == extension(0)
            assert await third == extension(2)
            assert connection.is_usable

    with ScriptedServer(slow) as server:
        run(main)


def test_a_missed_deadline_ends_the_connection() -> None:
    async def main() -> None:
        async with await connect_async(server.address, request_timeout=30) as connection:
            other = asyncio.create_task(connection.send(extension(1)))
            await asyncio.sleep(0.05)
            with time_limit(0.5), pytest.raises(DeadlineExceededError) as first:
                await connection.send(extension(2), timeout=0.2)
            with pytest.raises(ConnectionLostError) as later:
                await other
            assert later.value.__cause__ is first.value
            with pytest.raises(ConnectionLostError):
                await connection.send(extension(3))

    with ScriptedServer(silent) as server:
        run(main)


def test_a_deadline_in_the_line_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.pipeline.MAX_REQUESTS_IN_FLIGHT", 1)

    async def main() -> None:
        async with await connect_async(server.address) as connection:
            first = asyncio.create_task(connection.send(extension(1)))
            await asyncio.sleep(0.05)
            with pytest.raises(DeadlineExceededError):
                await connection.send(extension(2), timeout=0.2)
            assert connection.is_usable
            waiting = asyncio.create_task(connection.send(extension(3)))
            await asyncio.sleep(0.05)
            await connection.close()
            for task in (first, waiting):
                with pytest.raises(ConnectionClosedError):
                    await task

    with ScriptedServer(silent) as server:
        run(main)


def test_an_answer_of_another_kind_poisons_the_connection() -> None:
    def wrong(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for _ in requests:
            yield Response(leave_world=dm_env_rpc_pb2.LeaveWorldResponse())

    async def main() -> None:
        async with await connect_async(server.address) as connection:
            with pytest.raises(ProtocolError, match="expected extension"):
                await connection.send(extension(1))
            with pytest.raises(ConnectionLostError):
                await connection.send(extension(2))

    with ScriptedServer(wrong) as server:
        run(main)


@pytest.mark.parametrize("code", [None, grpc.StatusCode.UNAUTHENTICATED])
def test_a_stream_that_the_server_ends_is_a_lost_connection(
    code: grpc.StatusCode | None,
) -> None:
    def ending(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        next(requests)
        if code is not None:
            context.abort(code, "the very reason")
        yield from ()

    async def main() -> None:
        async with await connect_async(server.address) as connection:
            for _ in range(2):
                with pytest.raises(ConnectionLostError, match="ended"):
                    await connection.send(extension(1))

    with ScriptedServer(ending) as server:
        run(main)


def test_a_dead_port_is_named_with_the_cause() -> None:
    async def main() -> None:
        with (
            time_limit(2),
            pytest.raises(ConnectionLostError, match=r"localhost:1 within 0.5 s.*refused"),
        ):
            await connect_async("localhost:1", timeout=0.5)

    run(main)


def test_plaintext_does_not_leave_this_machine() -> None:
    async def main() -> None:
        with pytest.raises(SpecError, match="insecure=True"):
            await connect_async("192.0.2.1:1", timeout=0.5)

    run(main)


def test_100_opens_and_closes_leave_nothing_behind(echo_server: ScriptedServer) -> None:
    async def open_and_close() -> None:
        async with await connect_async(echo_server.address) as connection:
            await connection.send(extension(1))

    async def main() -> None:
        await open_and_close()
        threads, descriptors = thread_count(), descriptor_count()
        for _ in range(100):
            await open_and_close()
        for _ in range(200):
            if echo_server.open_streams == 0 and descriptor_count() <= descriptors:
                break
            await asyncio.sleep(0.02)
        assert echo_server.open_streams == 0
        assert thread_count() <= threads + 2
        assert len(asyncio.all_tasks()) <= 2
        assert descriptor_count() <= descriptors

    run(main)


def test_close_is_quick_on_a_server_that_never_ends_the_stream() -> None:
    import threading

    release = threading.Event()

    def stubborn(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        yield Response(extension=next(requests).extension)
        release.wait(20)

    async def main() -> None:
        connection = await connect_async(server.address)
        await connection.send(extension(1))
        with time_limit(2):
            await connection.close()
            await connection.close()
        with pytest.raises(ConnectionClosedError):
            await connection.send(extension(1))
        release.set()

    with ScriptedServer(stubborn) as server:
        run(main)
