"""Rows 7 to 12: every answer goes to its own request, or to nobody."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2

from dm_env_rpc_client import (
    AsyncConnection,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcError,
    ProtocolError,
    connect,
    connect_async,
    dm_env_rpc_pb2,
)
from dm_env_rpc_client.testing import Request, Response, ScriptedServer, answering
from tests.reliability.echoing import SERVERS, Echoing, echoing
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import extension, settles
from tests.support.stopwatch import patience, time_limit


@pytest.mark.row(7)
@counts(50, 1_000)
async def test_cancelled_coroutines_leave_no_stale_answer(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    """A wait that is cancelled ends the connection."""
    stale = dead = 0
    chance = random.Random(0)

    async def attempt(connection: AsyncConnection, number: int) -> None:
        nonlocal stale, dead
        tasks = [asyncio.create_task(connection.send(extension(number + i))) for i in range(3)]
        if chance.random() < 0.5:
            await asyncio.sleep(chance.random() * 0.001)  # At any moment.
        else:  # Before a quick server has answered.
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
        tasks[chance.randrange(3)].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for offset, result in enumerate(results):
            if isinstance(result, any_pb2.Any):
                stale += result != extension(number + offset)
        try:
            stale += await connection.send(extension(number + 9)) != extension(number + 9)
        except ConnectionLostError:
            dead += 1

    connection = await connect_async(echo_server.address)
    for number in range(0, count * 10, 10):
        if not connection.is_usable:
            await connection.close()
            connection = await connect_async(echo_server.address)
        await attempt(connection, number)
    await connection.close()
    seen(cancellations=count, stale_answers=stale, unusable_connections=dead)
    assert stale == 0
    assert dead > 0


@pytest.mark.row(8)
@counts(1_000, 10_000)
async def test_gathered_requests_get_their_own_answers(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    async with await connect_async(echo_server.address) as connection:
        requests = [extension(number) for number in range(count)]
        answers = await asyncio.gather(*(connection.send(each) for each in requests))
        right = sum(map(any_pb2.Any.__eq__, answers, requests))
        seen(requests=len(requests), right_answers=right)
        assert answers == requests


@pytest.mark.row(9)
@counts(200, 5_000)
def test_8_threads_with_many_requests_each_get_their_own_answers(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    wrong: list[int] = []
    right: list[int] = []

    def work(thread: int) -> None:
        for number in range(thread * count, (thread + 1) * count):
            is_right = connection.send(extension(number)) == extension(number)
            (right if is_right else wrong).append(number)

    with (
        connect(echo_server.address, request_timeout=60) as connection,
        concurrent.futures.ThreadPoolExecutor(8) as pool,
    ):
        assert list(pool.map(work, range(8))) == [None] * 8
    seen(requests=8 * count, right_answers=len(right), wrong_answers=len(wrong))
    assert wrong == []
    assert len(right) == 8 * count


DEPTHS = [1, 4, 16, 64, 256]


@pytest.mark.row(10)
@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("depth", DEPTHS)
@counts(500, 50_000)  # 1,000,000 over all depths, servers and transports
def test_pipelined_requests_get_their_own_answers_errors_among_them(
    depth: int, server: str, count: int, seen: Seen
) -> None:
    right = errors = 0

    def check(number: int, future: concurrent.futures.Future[any_pb2.Any]) -> None:
        nonlocal right, errors
        if number % 10 == 3:
            with pytest.raises(DmEnvRpcError) as caught:
                future.result()
            assert caught.value.message == str(number)
            errors += 1
        else:
            assert future.result() == extension(number)
            right += 1

    with echoing(server, refuses=3) as running, connect(running.address) as connection:
        pending: collections.deque[tuple[int, concurrent.futures.Future[any_pb2.Any]]]
        pending = collections.deque()
        for number in range(count):
            pending.append((number, connection.submit(extension(number))))
            if len(pending) > depth:
                check(*pending.popleft())
        for number, future in pending:
            check(number, future)
    seen(requests=count, right_answers=right, right_errors=errors)
    assert right + errors == count


@pytest.mark.row(11)
@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (dm_env_rpc_pb2.LeaveWorldResponse(), "contains leave_world; expected extension"),
        (Response(), "contains no payload"),
        (b"\xff\xff\xff", "not an EnvironmentResponse"),
    ],
)
def test_an_answer_of_another_kind_poisons_the_connection(answer: Any, text: str) -> None:
    with ScriptedServer(answering(answer)) as server, connect(server.address) as connection:
        with pytest.raises(ProtocolError, match=text) as first:
            connection.send(extension(1))
        assert not connection.is_usable
        with pytest.raises(ConnectionLostError, match="which answer belongs") as later:
            connection.send(extension(2))
        assert later.value.__cause__ is first.value


@pytest.mark.row(11)
def test_a_duplicate_answer_is_noticed_before_the_next_request_is_sent() -> None:
    received = []

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            received.append(request)
            yield Response(extension=request.extension)
            yield Response(extension=request.extension)

    with ScriptedServer(script) as server, connect(server.address) as connection:
        assert connection.send(extension(1)) == extension(1)
        assert settles(connection.has_unread)
        with pytest.raises(ProtocolError, match="while no request was pending"):
            connection.send(extension(2))
        assert len(received) == 1
        with pytest.raises(ConnectionLostError):
            connection.send(extension(3))


@pytest.mark.row(11)
def test_duplicate_answers_in_a_pipeline_reach_nobody_else() -> None:
    """The second answer to 0 is in the place of 1's and shows by its kind at the latest."""

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            kind = request.WhichOneof("payload")
            answer = Response()
            getattr(answer, str(kind)).SetInParent()
            yield answer
            yield answer

    with ScriptedServer(script) as server, connect(server.address) as connection:
        first = connection.start(dm_env_rpc_pb2.LeaveWorldRequest())
        second = connection.start(dm_env_rpc_pb2.StepRequest())
        third = connection.start(dm_env_rpc_pb2.StepRequest())
        connection.wait(first)
        with pytest.raises(ProtocolError):
            connection.wait(second)
        with pytest.raises(ConnectionLostError):
            connection.wait(third)


@pytest.mark.row(11)
def test_a_missing_answer_is_a_missed_deadline() -> None:
    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        for request in requests:
            if request.extension != extension(2):
                yield Response(extension=request.extension)

    timeout = patience(0.5)
    with (
        ScriptedServer(script) as server,
        connect(server.address, request_timeout=timeout) as connection,
    ):
        assert connection.send(extension(1)) == extension(1)
        late = pytest.raises(DeadlineExceededError, match="extension request")
        with time_limit(timeout + 0.2), late:
            connection.send(extension(2))
        with pytest.raises(ConnectionLostError) as later:
            connection.send(extension(3))
        assert isinstance(later.value.__cause__, DeadlineExceededError)


@pytest.mark.row(11)
async def test_an_answer_of_another_kind_poisons_the_connection_of_coroutines() -> None:
    with ScriptedServer(answering(dm_env_rpc_pb2.LeaveWorldResponse())) as server:
        async with await connect_async(server.address) as connection:
            with pytest.raises(ProtocolError, match="expected extension"):
                await connection.send(extension(1))
            with pytest.raises(ConnectionLostError):
                await connection.send(extension(2))


@pytest.mark.row(12)
def test_a_server_that_ends_the_stream_is_a_lost_connection() -> None:
    script = answering(extension(1))
    with ScriptedServer(script) as server, connect(server.address) as connection:
        assert connection.send(extension(1)) == extension(1)
        for _ in range(2):
            with pytest.raises(ConnectionLostError, match="ended the stream"):
                connection.send(extension(2))


@pytest.mark.row(12)
@pytest.mark.parametrize("code", [None, grpc.StatusCode.UNAUTHENTICATED])
async def test_coroutines_lose_the_connection_with_a_stream_that_the_server_ends(
    code: grpc.StatusCode | None,
) -> None:
    def ending(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        next(requests)
        if code is not None:
            context.abort(code, "the very reason")
        yield from ()

    with ScriptedServer(ending) as server:
        async with await connect_async(server.address) as connection:
            for _ in range(2):
                with pytest.raises(ConnectionLostError, match="ended"):
                    await connection.send(extension(1))
