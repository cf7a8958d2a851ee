"""Times: what counts as one, over both transports, and what 0 means."""

from __future__ import annotations

import asyncio
import fractions
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import arguments, server
from dm_env_rpc_client.server import Catch

# Also what type checkers refuse.
rpc: Any = dm_env_rpc_client
serve: Any = server.serve


@pytest.fixture(scope="module")
def catch() -> Iterator[str]:
    with server.serve(Catch) as running:
        yield running.address


GOOD_SECONDS = [
    5, 5.0, np.float32(5), np.float64(5), np.float16(5), np.int8(5), np.uint64(5),
    fractions.Fraction(5), arguments.MOST_SECONDS, None,
]  # fmt: skip


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("seconds", GOOD_SECONDS, ids=repr)
def test_numbers_of_python_and_numpy_are_times_on_both_transports(
    catch: str, transport: str, seconds: Any
) -> None:
    times = {"timeout": seconds, "request_timeout": seconds, "keepalive_timeout": seconds}
    with rpc.make(catch, transport=transport, **times) as env:
        assert env.reset().first()
    with rpc.connect(catch, transport=transport, **times) as connection:
        connection.send(rpc.dm_env_rpc_pb2.LeaveWorldRequest(), seconds)
        with connection.reopen(seconds) as other:
            other.send(rpc.dm_env_rpc_pb2.LeaveWorldRequest())
    with rpc.BatchedEnvironment(catch, np.int64(2), transport=transport, **times) as envs:
        assert envs.reset().first().all()

    async def run() -> None:
        async with await rpc.make_async(catch, transport=transport, **times) as env:
            assert (await env.reset()).first()
        async with await rpc.connect_async(catch, transport=transport, **times) as connection:
            await connection.send(rpc.dm_env_rpc_pb2.LeaveWorldRequest(), seconds)

    asyncio.run(run())


@pytest.mark.parametrize("seconds", [0, 0.0, np.float32(0), np.int64(0)], ids=repr)
def test_a_grace_and_a_look_may_take_no_time(seconds: Any) -> None:
    with server.serve(Catch, idle_world_seconds=seconds) as running:
        assert not running.wait(seconds)
        running.stop(seconds)
        assert running.wait(seconds)


def test_numbers_of_numpy_are_counts() -> None:
    options: Any = {
        "max_connections": np.int64(2),
        "max_worlds": np.uint8(1),
        "step_timeout": np.float32(5),
        "limits": rpc.Limits(strings=np.int32(1000)),
        "insecure": np.True_,
    }
    with serve(Catch, **options) as running, rpc.make(running.address) as env:
        assert env.reset().first()
        with pytest.raises(rpc.DmEnvRpcError, match="1"):
            rpc.make(running.address)
