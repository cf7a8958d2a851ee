"""AsyncDmEnvAdaptor: the adaptor, awaited."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dm_env
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    make_async,
)
from dm_env_rpc_client.server import Catch, Server, serve
from tests.support.environments import Echo
from tests.support.scripted import settles_async

FIRST, MID, LAST = dm_env.StepType


async def test_steps_that_are_gathered_are_taken_in_order(catch_server: Server) -> None:
    async with await make_async(catch_server.address, {"rows": 3}) as env:
        steps = await asyncio.gather(*(env.step({"paddle": 1}) for _ in range(7)))
        assert [step.step_type for step in steps] == [FIRST, MID, LAST, FIRST, MID, LAST, FIRST]
        pending = [asyncio.create_task(env.step({"paddle": 1})) for _ in range(4)]
        await asyncio.sleep(0)
        assert (await env.reset()).first()
        await asyncio.gather(*pending)


async def test_a_cancelled_step_still_has_its_world_destroyed() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    class Held(Echo):
        def step(self, action: Any) -> dm_env.TimeStep:
            has_begun.set()
            assert may_end.wait(20)
            return super().step(action)

    with serve(Held) as server:
        async with await make_async(server.address) as env:
            await env.reset()
            step = asyncio.create_task(env.step({"value": 1}))
            assert await settles_async(has_begun.is_set)
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
            with pytest.raises(ConnectionLostError, match="CancelledError"):
                await env.step({"value": 1})
            may_end.set()
        assert await settles_async(lambda: (server.agent_count, server.world_count) == (0, 0))


async def test_the_bodys_own_error_survives_a_close_that_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise OSError("cannot clean up")

    async def body() -> None:
        async with await make_async(server.address) as env:
            env.on_close(fail)
            server.stop(0)
            raise ZeroDivisionError

    server = serve(Catch)
    with pytest.raises(ZeroDivisionError):
        await body()
    assert "clean up" in caplog.text
