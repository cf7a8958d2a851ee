"""A client that does nothing between two steps, because its program trains, stays connected."""

from __future__ import annotations

import asyncio

import pytest

from dm_env_rpc_client import BatchedEnvironment, Connection, make, make_async
from dm_env_rpc_client.server import Server

IDLE_SECONDS = 45.0
"""More than all intervals of keepalive of both ends together."""


@pytest.mark.slow
async def test_a_client_may_be_idle_between_two_steps(catch_server: Server) -> None:
    with (
        make(catch_server.address) as env,
        BatchedEnvironment(catch_server.address, 4) as envs,
    ):
        async with await make_async(catch_server.address) as awaited:
            env.reset()
            envs.reset()
            await awaited.reset()
            streams = catch_server.stats().streams
            connection: Connection = env.connection
            await asyncio.sleep(IDLE_SECONDS)  # Nothing happens in it.
            for _ in range(3):
                assert env.step({"paddle": 1}).mid()
                assert envs.step({"paddle": [1] * 4}).mid().all()
                assert (await awaited.step({"paddle": 1})).mid()
            # Over the same streams, and none of them anew.
            assert env.connection is connection
            assert catch_server.stats().streams == streams
            assert (catch_server.agent_count, catch_server.world_count) == (3, 3)
