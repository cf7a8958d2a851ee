"""Connections: every answer goes to its own request, or nobody gets any more."""

from __future__ import annotations

import asyncio
import concurrent.futures
import random
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf import any_pb2

from dm_env_rpc_client import (
    AsyncConnection,
    Connection,
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    connect,
    connect_async,
)
from dm_env_rpc_client.testing import Request, Response, ScriptedServer, echo
from tests.support.both_transports import EVERY
from tests.support.scripted import extension, number_of, settles
from tests.support.stopwatch import time_limit

TRANSPORTS = EVERY


MAX_REQUESTS = "dm_env_rpc_client.protocol.pipeline.MAX_REQUESTS_IN_FLIGHT"


def held(until: threading.Event) -> Any:
    """Answers with the same, from an event on."""

    def script(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        assert until.wait(30)
        yield from echo(requests, context)

    return script


async def test_a_channel_of_the_users_own_stays_open(echo_server: ScriptedServer) -> None:
    with grpc.insecure_channel(echo_server.address) as channel:
        for number in range(2):
            with Connection(channel) as connection:
                assert connection.send(extension(number)) == extension(number)
    async with grpc.aio.insecure_channel(echo_server.address) as channel:
        for number in range(2):
            async with AsyncConnection(channel) as own:
                assert await own.send(extension(number)) == extension(number)


def test_what_interprets_an_answer_may_send_a_request(echo_server: ScriptedServer) -> None:
    """As a reward that an adaptor computes may read a property."""
    with connect(echo_server.address, request_timeout=60) as connection:

        def ask(answer: any_pb2.Any) -> int:
            return number_of(answer) + number_of(connection.send(extension(10)))

        pendings = [connection.start(extension(number), ask) for number in range(3)]
        assert [connection.wait(pending) for pending in pendings] == [10, 11, 12]
        assert connection.send(extension(3)) == extension(3)


def test_more_requests_than_may_be_in_flight_wait_for_room(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address, request_timeout=60) as connection:
        pending = [connection.start(extension(number)) for number in range(3_000)]
        assert [connection.wait(each) for each in pending] == [extension(n) for n in range(3_000)]


def test_an_interrupt_once_an_answer_is_read_ends_the_connection(
    echo_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next request would get the answer that was dropped, or wait for it forever."""
    with connect(echo_server.address, request_timeout=60) as connection:
        read = connection._stream.read

        def interrupted(timeout: float, _: bool) -> None:
            while read(timeout) is None:
                pass
            raise KeyboardInterrupt

        future = connection.submit(extension(1))
        monkeypatch.setattr(connection._stream, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            future.result()
        monkeypatch.undo()
        with pytest.raises(ConnectionLostError) as lost, time_limit(5):
            connection.send(extension(2))
        assert isinstance(lost.value.__cause__, KeyboardInterrupt)


@pytest.mark.parametrize("timeout", [0.0, 1e-4])
def test_waits_that_time_out_leave_nothing_behind(timeout: float) -> None:
    answers = threading.Event()
    with ScriptedServer(held(answers)) as server, connect(server.address) as connection:
        future = connection.submit(extension(1))
        waiters = vars(future)["pending"].waiters
        before = len(waiters)
        reads = threading.Thread(target=connection.send, args=[extension(2)])
        reads.start()
        try:
            assert settles(lambda: connection._leader == reads.ident)
            for _ in range(100):
                assert not future.done()
                with pytest.raises(concurrent.futures.TimeoutError):
                    future.result(timeout)
            assert len(waiters) == before
        finally:
            answers.set()
        assert future.result() == extension(1)
        reads.join()


# Doubt: each of these makes the connection unusable at the first sign.


def test_a_deadline_passes_while_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MAX_REQUESTS, 1)
    release = threading.Event()

    with ScriptedServer(held(release)) as server, connect(server.address) as connection:
        first = connection.start(extension(1))
        with pytest.raises(DeadlineExceededError):
            connection.send(extension(2), timeout=0.2)
        # Nothing was sent, so there is no doubt.
        assert connection.is_usable
        release.set()
        assert connection.wait(first) == extension(1)


def test_reopen_opens_the_same_again(echo_server: ScriptedServer) -> None:
    with connect(echo_server.address, request_timeout=5) as connection:
        connection.close()
        with connection.reopen() as again, again.reopen(timeout=5) as third:
            assert again.send(extension(1)) == extension(1)
            assert third.send(extension(2)) == extension(2)


# Coroutines.


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
    is_over = threading.Event()
    with ScriptedServer(held(is_over)) as server:
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
        is_over.set()
