"""Rows 15 and 34: what nobody closes is freed, and programs that forget to close exit."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import textwrap
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import (
    AsyncConnection,
    ConnectionLostError,
    ProtocolError,
    connect_async,
    make,
)
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.programs import ROOT
from tests.support.scripted import (
    descriptor_count,
    extension,
    settles,
    settles_async,
)
from tests.support.stopwatch import ends_within


@pytest.mark.parametrize("how", ["used", "poisoned", "stepped"])
def test_what_is_forgotten_is_freed(echo_environment_server: Server, how: str) -> None:
    def use() -> weakref.ref[Any]:
        env = make(echo_environment_server.address)
        connection = env._connection
        assert connection is not None
        if how == "stepped":
            env.reset()
            env.step_async({"value": 1}).result(20)
        if how == "poisoned":
            connection._poison(KeyboardInterrupt())
            with pytest.raises(ConnectionLostError):
                env.reset()
        return weakref.ref(connection)

    forgotten = use()
    assert settles(lambda: gc.collect() >= 0 and forgotten() is None)
    assert settles(lambda: echo_environment_server.agent_count == 0)


@pytest.mark.row(15)
@pytest.mark.parametrize(
    "body",
    [
        "connection = connect(address)",
        "connection = connect(address); connection.send(LEAVE)",
        "connection = connect(address); connection.submit(LEAVE)",
        "env = make(address); env.reset()",
        "env = make(address); env.reset(); env.step_async({'value': 1})",
        "env = make(address); env.reset(); raise SystemExit(0)",
        "server = serve(Echo); env = make(server.address); env.reset()",
    ],
)
def test_row_15_a_process_that_forgets_to_close_exits(
    echo_environment_server: Server, body: str
) -> None:
    program = textwrap.dedent(
        f"""
        import sys
        from dm_env_rpc_client import connect, make
        from dm_env_rpc_client.server import serve
        from tests.support.both_transports import obey
        from tests.support.environments import Echo
        from dm_env_rpc_client import dm_env_rpc_pb2
        obey()
        LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()
        address = sys.argv[1]
        try:
            {body}
        finally:
            print("it only has to exit", flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, echo_environment_server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "it only has to exit\n"
            with ends_within(5, process):
                pass
            _, said = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said
    assert settles(lambda: echo_environment_server.agent_count == 0)


@pytest.mark.row(34)
async def test_row_34_an_idle_connection_is_poisoned_by_the_first_message_not_asked_for() -> None:
    sent: list[Response] = []
    unasked = Response(extension=extension(1))

    def script(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        while context.is_active():
            sent.append(unasked)
            yield unasked

    with ScriptedServer(script) as server:
        async with await connect_async(server.address) as connection:
            while connection.is_usable:
                await asyncio.sleep(0.01)  # The loop reads meanwhile.
            assert isinstance(connection.poisoned_by, ProtocolError)
            with pytest.raises(ConnectionLostError):
                await connection.send(extension(2))
    assert sent


@pytest.mark.row(34)
@counts(20, 400)
def test_row_34_forgotten_connections_are_freed_with_a_warning(
    echo_environment_server: Server, count: int, seen: Seen
) -> None:
    async def one(address: str) -> None:
        connection = await connect_async(address)
        world = await connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        await connection.send(dm_env_rpc_pb2.JoinWorldRequest(world_name=world.world_name))

    async def scenario() -> None:
        await one(echo_environment_server.address)
        gc.collect()
        await asyncio.sleep(0.1)  # What is collected ends in the loop.
        before = descriptor_count()
        for _ in range(count):
            await one(echo_environment_server.address)
            gc.collect()
        await settles_async(
            lambda: echo_environment_server.agent_count == 0 and descriptor_count() <= before + 2
        )
        assert echo_environment_server.agent_count == 0
        left = [each for each in gc.get_objects() if isinstance(each, AsyncConnection)]
        seen(forgotten=count, not_freed=len(left))
        assert left == []
        assert descriptor_count() <= before + 2

    texts: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", ResourceWarning)
        # What records warnings itself would hold what they are about.
        warnings.showwarning = lambda message, *_: texts.append(str(message))
        asyncio.run(scenario())
    warned = sum("was not closed" in text for text in texts)
    seen(warnings=warned)
    assert warned >= count
