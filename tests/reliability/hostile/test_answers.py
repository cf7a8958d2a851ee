"""Rows 7 to 12, 18 and 19: every answer goes to its own request, or to nobody."""

from __future__ import annotations

import asyncio
import collections
import concurrent.futures
import random
from collections.abc import Iterator

import dm_env
import grpc
import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2

from dm_env_rpc_client import (
    AsyncConnection,
    ConnectionLostError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    connect,
    connect_async,
    dm_env_rpc_pb2,
    make,
    set_bounds,
)
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.environment.one_world import scripted
from tests.reliability.echoing import SERVERS, Echoing, echoing
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.scripted import extension, settles


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


FIRST, MID, LAST = dm_env.StepType
RUNNING, TERMINATED, INTERRUPTED = 1, 2, 3


@pytest.mark.row(18)
@pytest.mark.parametrize(
    ("states", "text"),
    [
        ([0], "state 0"),
        ([99], "state 99"),
        ([TERMINATED], "JOINED.*TERMINATED"),
        ([INTERRUPTED], "JOINED.*INTERRUPTED"),
        ([RUNNING, 0], "state 0"),
        ([RUNNING, 99], "state 99"),
        ([RUNNING, TERMINATED, TERMINATED], "TERMINATED.*TERMINATED"),
        ([RUNNING, TERMINATED, INTERRUPTED], "TERMINATED.*INTERRUPTED"),
        ([RUNNING, INTERRUPTED, TERMINATED], "INTERRUPTED.*TERMINATED"),
    ],
)
def test_row_18_states_that_the_protocol_does_not_allow_are_told(
    states: list[int], text: str, seen: Seen
) -> None:
    with scripted(*states) as server, make(server.address) as env:
        for _ in states[:-1]:
            env.step({"a": 1})
        with pytest.raises(ProtocolError, match=text):
            env.step({"a": 1})
    seen(refused_states=1)


@pytest.mark.row(19)
def test_row_19_a_reset_that_changes_the_specs_is_adopted(seen: Seen) -> None:
    changed = dm_env_rpc_pb2.ActionObservationSpecs(
        actions={7: dm_env_rpc_pb2.TensorSpec(name="b", dtype=dm_env_rpc_pb2.FLOAT)},
        observations={
            9: dm_env_rpc_pb2.TensorSpec(name="p.q", dtype=dm_env_rpc_pb2.INT32, shape=[-1])
        },
    )
    set_bounds(changed.actions[7], -1, 1)

    def reset(request: Request) -> Response:
        return Response(reset=dm_env_rpc_pb2.ResetResponse(specs=changed))

    with (
        scripted(RUNNING, RUNNING, RUNNING, RUNNING, answers={"reset": reset}) as server,
        make(server.address) as env,
    ):
        env.reset()
        env.step({"a": 1})
        first = env.reset()
        assert first.step_type is FIRST
        assert list(first.observation["p"]["q"]) == [1, 2]
        assert env.action_spec() == {"b": specs.BoundedArray((), np.float32, -1, 1, "b")}
        with pytest.raises(SpecError, match="unknown action 'a'"):
            env.step({"a": 1})
        assert env.step({"b": 0.5}).step_type is MID
    seen(changed_specs=1)
