"""Environments that nobody closes, or not to the end; `test_exit.py` has the ends of programs.

The server keeps worlds for ever, so that what ends them is the client.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import warnings

import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcError,
    connect,
    connect_async,
    create_world,
    dm_env_rpc_pb2,
    join_world,
    make,
    make_async,
)
from dm_env_rpc_client.environment import world_ends
from dm_env_rpc_client.server import Server
from tests.environment.ends import ctrl_c_in_close
from tests.reliability.scorecard import counts
from tests.support.environments import Echo
from tests.support.programs import run_python
from tests.support.scripted import settles, settles_async
from tests.support.serving import serving


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine it may take long to end a world."""
    monkeypatch.setattr(world_ends, "CLEAN_UP_SECONDS", 30.0)


server = serving(Echo, idle_world_seconds=None, scope="function", checks_errors=True)


def is_empty(server: Server) -> bool:
    return (server.world_count, server.agent_count) == (0, 0)


def test_an_environment_that_is_forgotten_ends_its_world(server: Server) -> None:
    def use() -> None:
        env = make(server.address)
        env.reset()
        env.step({"value": 1})

    for _ in range(3):
        use()
        assert settles(lambda: is_empty(server))
    envs = BatchedEnvironment(server.address, 4)
    envs.reset()
    del envs
    assert settles(lambda: gc.collect() >= 0 and is_empty(server))
    assert settles(lambda: not world_ends._running)


def test_a_poisoned_environment_that_is_forgotten_ends_its_world(server: Server) -> None:
    env = make(server.address)
    env.reset()
    env.connection._poison(KeyboardInterrupt())
    del env
    assert settles(lambda: gc.collect() >= 0 and is_empty(server))


def test_a_connection_that_outlives_its_environment_keeps_the_world(server: Server) -> None:
    connection = make(server.address).connection
    gc.collect()
    assert connection.send(dm_env_rpc_pb2.StepRequest()).state == dm_env_rpc_pb2.RUNNING
    assert server.world_count == 1
    del connection
    assert settles(lambda: gc.collect() >= 0 and is_empty(server))


def test_what_make_did_not_create_stays(server: Server) -> None:
    with connect(server.address) as connection:
        env = join_world(connection, create_world(connection))
        env.reset()
        del env
        gc.collect()
        assert (server.world_count, server.agent_count) == (1, 1)


async def test_a_coroutine_that_forgets_its_environment_ends_its_world(server: Server) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        env = await make_async(server.address)
        await env.reset()
        del env
        gc.collect()
        assert await settles_async(lambda: is_empty(server))


async def test_an_async_close_that_is_cancelled_ends_the_world_all_the_same(
    server: Server,
) -> None:
    env = await make_async(server.address, {"seconds": 1.0})
    await env.reset()
    step = asyncio.ensure_future(env.step({"value": 1}))
    closing = asyncio.ensure_future(env.close())
    for _ in range(10):  # Both have begun, and wait for the server.
        await asyncio.sleep(0)
    assert not closing.done()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.gather(step, return_exceptions=True)
    assert await settles_async(lambda: is_empty(server))


@pytest.mark.timeout(300)
@counts(40, 400, seconds=300)
def test_ctrl_c_at_any_moment_of_close_ends_the_world(count: int) -> None:
    finished = run_python("-m", ctrl_c_in_close.__name__, count, timeout=280)
    assert int(finished.stdout) > 0


async def test_a_connection_that_is_freed_is_not_logged_as_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dm_env_rpc_client")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        connection = await connect_async(server.address)
        pipeline = connection._pipeline
        with pytest.raises(DmEnvRpcError):
            await connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name="none"))
        del connection
        gc.collect()
        assert await settles_async(lambda: pipeline.poisoned_by is not None)
    assert "unusable" not in caplog.text
