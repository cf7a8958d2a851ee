"""AsyncDmEnvAdaptor: the adaptor, awaited."""

from __future__ import annotations

import asyncio

import dm_env
import pytest

from dm_env_rpc_client import (
    make_async,
)
from dm_env_rpc_client.server import Catch, Server, serve

FIRST, MID, LAST = dm_env.StepType


async def test_steps_that_are_gathered_are_taken_in_order(catch_server: Server) -> None:
    async with await make_async(catch_server.address, {"rows": 3}) as env:
        steps = await asyncio.gather(*(env.step({"paddle": 1}) for _ in range(7)))
        assert [step.step_type for step in steps] == [FIRST, MID, LAST, FIRST, MID, LAST, FIRST]
        pending = [asyncio.create_task(env.step({"paddle": 1})) for _ in range(4)]
        await asyncio.sleep(0)
        assert (await env.reset()).first()
        await asyncio.gather(*pending)


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
