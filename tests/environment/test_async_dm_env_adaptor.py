"""AsyncDmEnvAdaptor: the adaptor, awaited."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import (
    ConnectionClosedError,
    ConnectionLostError,
    DmEnvRpcError,
    SpecError,
    make_async,
)
from dm_env_rpc_client.server import Catch, Server, serve
from tests.support.environments import Echo
from tests.support.scripted import settles_async

FIRST, MID, LAST = dm_env.StepType


async def test_an_episode_equals_the_local_one(catch_server: Server) -> None:
    local = Catch(rows=4, seed=3)
    async with await make_async(catch_server.address, {"rows": 4, "seed": 3}) as env:
        assert env.action_spec() == local.action_spec()
        assert env.observation_spec() == local.observation_spec()
        assert env.reward_spec() == local.reward_spec()
        assert env.discount_spec() == local.discount_spec()
        assert "paddle" in repr(env)
        for step in range(9):
            expected = local.reset() if step == 0 else local.step({"paddle": 1})
            timestep = await (env.reset() if step == 0 else env.step({"paddle": 1}))
            assert timestep.step_type is expected.step_type
            assert timestep.reward == expected.reward
            np.testing.assert_array_equal(
                timestep.observation["board"], expected.observation["board"]
            )
        assert (await env.reset()).first()
        assert (await env.reset({"rows": 7})).observation["board"].shape == (7, 5)
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


async def test_steps_that_are_gathered_are_taken_in_order(catch_server: Server) -> None:
    async with await make_async(catch_server.address, {"rows": 3}) as env:
        steps = await asyncio.gather(*(env.step({"paddle": 1}) for _ in range(7)))
        assert [step.step_type for step in steps] == [FIRST, MID, LAST, FIRST, MID, LAST, FIRST]
        pending = [asyncio.create_task(env.step({"paddle": 1})) for _ in range(4)]
        await asyncio.sleep(0)
        assert (await env.reset()).first()
        await asyncio.gather(*pending)


async def test_a_rollout_that_is_left_early_leaves_the_environment_in_step(
    catch_server: Server,
) -> None:
    async with await make_async(catch_server.address) as env:
        rollout = env.rollout(({"paddle": 1} for _ in iter(int, 1)), ahead=8)
        kinds = [(await anext(rollout)).step_type for _ in range(15)]
        assert [kind.name for kind in kinds] == ["FIRST", *["MID"] * 8, "LAST", "FIRST",
                                                 *["MID"] * 4]  # fmt: skip
        await rollout.aclose()
        assert (await env.reset()).first()
        assert (await env.step({"paddle": 1})).mid()


async def test_errors_are_those_of_the_other_adaptor(echo_environment_server: Server) -> None:
    async with await make_async(echo_environment_server.address) as env:
        with pytest.raises(SpecError, match="unknown action 'valu'"):
            await env.step({"valu": 1})
        await env.reset()
        with pytest.raises(DmEnvRpcError, match="missing action"):
            await env.unroll([{"value": 1}, {}, {"value": 3}])
        assert (await env.step({"value": 4})).observation["value"] == 4
        with pytest.raises(DmEnvRpcError, match="settings"):
            await env.reset({"nonsense": 1})
    await env.close()
    with pytest.raises(ConnectionClosedError):
        await env.step({"value": 1})
    assert "closed" in repr(env)


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
