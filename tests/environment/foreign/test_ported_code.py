"""What code that was written for dm-env-rpc does with connections and environments."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import (
    AsyncConnection,
    Connection,
    DmEnvAdaptor,
    DmEnvRpcError,
    SpecError,
    connect,
    connect_async,
    create_and_join_world,
    create_and_join_world_async,
    create_world,
    join_world,
    make,
)
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Catch, Properties, Server, serve
from dm_env_rpc_client.testing import ScriptedServer
from tests.environment.one_world import RUNNING, joining, refuse, scripted

TRANSPORTS = ["http2"]

pytestmark = pytest.mark.usefixtures("no_warnings")


@pytest.fixture
def no_warnings(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Fails if a clean-up was logged as failed."""
    caplog.set_level(logging.WARNING, "dm_env_rpc_client")
    yield
    records = caplog.get_records("call")
    assert [record for record in records if record.name.startswith("dm_env_rpc_client")] == []


class EngineError(Exception):
    """What a suite makes of the errors of a connection."""


def replace_send(connection: Connection) -> list[str]:
    """Replaces `send` as the suites do; returns the names of the requests that go through it."""
    original, sent = connection.send, []

    def send(request: Any) -> Any:
        sent.append(type(request).__name__)
        try:
            return original(request)
        except DmEnvRpcError as error:
            raise EngineError(str(error)) from error

    connection.send = send  # type: ignore[method-assign, assignment]
    return sent


def test_closing_leaves_the_world_if_send_was_replaced(catch_server: Server) -> None:
    closed: list[str] = []
    with connect(catch_server.address) as connection:
        sent = replace_send(connection)
        env, _ = create_and_join_world(connection, {}, {})
        env.on_close(lambda: closed.append("closed"))
        env.reset()
        env.step({"paddle": 1})
        env.close()
        assert (closed, catch_server.agent_count) == (["closed"], 0)
    assert sent == ["CreateWorldRequest", "JoinWorldRequest"]


def test_a_world_is_left_if_the_adaptor_refuses_and_send_was_replaced(
    catch_server: Server,
) -> None:
    with connect(catch_server.address) as connection:
        replace_send(connection)
        world_name = create_world(connection, {})
        with pytest.raises(SpecError, match="bord"):
            join_world(connection, world_name, {}, requested_observations=["bord"])
        assert catch_server.agent_count == 0


def without_reset(joins: int) -> ScriptedServer:
    """A server that refuses Reset, and every join after the first `joins`."""
    return scripted(*[RUNNING] * 9, answers={"reset": refuse, "join_world": joining(joins)})


def test_a_reset_that_joins_again_does_so_if_send_was_replaced() -> None:
    with without_reset(joins=2) as server, connect(server.address) as connection:
        sent = replace_send(connection)
        with create_and_join_world(connection, {}, {}).env as env:
            assert env.reset().first()
            assert env.step({}).mid()
            assert env.reset().first()
            # The second time it is refused; what is raised is why.
            assert env.step({}).mid()
            with pytest.raises(DmEnvRpcError, match="there is no reset") as caught:
                env.reset()
            assert "there is no join_world" in str(caught.value.__cause__)
    assert sent == ["CreateWorldRequest", "JoinWorldRequest"]


def replace_send_async(connection: AsyncConnection) -> None:
    original = connection.send

    async def send(request: Any) -> Any:
        try:
            return await original(request)
        except DmEnvRpcError as error:
            raise EngineError(str(error)) from error

    connection.send = send  # type: ignore[method-assign, assignment]


async def test_the_same_for_asyncio(catch_server: Server) -> None:
    closed = []

    async def callback() -> None:
        closed.append("closed")

    async with await connect_async(catch_server.address) as connection:
        replace_send_async(connection)
        env, _ = await create_and_join_world_async(connection, {}, {})
        env.on_close(callback)
        await env.reset()
        await env.close()
        with pytest.raises(EngineError, match="seat"):
            await create_and_join_world_async(connection, {}, {"seat": 3})
    assert closed == ["closed"]
    assert (catch_server.agent_count, catch_server.world_count) == (0, 1)


def test_a_server_may_be_stopped_on_close() -> None:
    server = serve(Catch)
    counts = []
    env = make(server.address)
    env.on_close(server.stop)
    env.on_close(lambda: counts.append((server.agent_count, server.world_count)))
    env.reset()
    env.close()
    assert counts == [(0, 0)]


class KeepsItsConnection(DmEnvAdaptor):
    """Assigns the attribute before and after, as subclasses for dm-env-rpc do."""

    def __init__(self, connection: Connection, specs: Any, **kwargs: Any):
        self.connection = connection
        super().__init__(connection, specs, **kwargs)
        self.connection = connection

    def close(self) -> None:
        super().close()
        self.connection.close()


def test_a_subclass_may_have_an_attribute_called_connection(catch_server: Server) -> None:
    connection = connect(catch_server.address)
    env, _ = create_and_join_world(connection, {}, {}, adaptor_class=KeepsItsConnection)
    assert env.connection is connection
    env.reset()
    env.close()
    assert not connection.is_usable
    assert catch_server.agent_count == 0


def test_an_unknown_action_is_a_key_error(catch_server: Server) -> None:
    with make(catch_server.address) as env:
        env.reset()
        with pytest.raises(KeyError, match="did you mean 'paddle'"):
            env.step({"padle": 1})
        assert env.step({"paddle": np.int32(1)}).mid()


class Tunable(Catch):
    gravity = 9.81

    def __init__(self, **settings: Any):
        super().__init__(**settings)
        self.properties = Properties()
        self.properties.expose(self, "gravity")


def test_make_has_extensions_of_its_own_connection() -> None:
    with serve(Tunable) as server:
        env: Any = make(
            server.address,
            extensions=lambda connection: {"properties": PropertiesExtension(connection)},
        )
        with env:
            env.properties["gravity"] = 1.62
            assert env.properties["gravity"] == 1.62
        assert env.properties is None
