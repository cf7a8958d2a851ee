"""Creating, joining, resetting, leaving and destroying worlds, for asyncio; see `worlds.py`."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import logging
import os
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from google.rpc import code_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.async_connection import AsyncConnection, open_connection_async
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.connection import Reopen, open_again
from dm_env_rpc_client.environment import forgotten
from dm_env_rpc_client.environment.async_dm_env_adaptor import AsyncDmEnvAdaptor, AsyncJoined
from dm_env_rpc_client.environment.base_adaptor import CLEAN_UP_SECONDS, NO_SETTINGS
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.requested import check_adapting
from dm_env_rpc_client.environment.restarting import Restart
from dm_env_rpc_client.environment.sites import Address, Site, is_address
from dm_env_rpc_client.environment.world_ends import (
    DESTROY_AGAIN_SECONDS,
    checked_name,
    destroy_anew,
    may_reopen,
    received_name,
    undo,
)
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DmEnvRpcClientError,
    DmEnvRpcError,
)
from dm_env_rpc_client.system.keywords import takes
from dm_env_rpc_client.system.threads import in_thread
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.transports.endpoint import Endpoint

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import (
        AsyncAdaptorKeywords,
        AsyncJoinKeywords,
        AsyncMakeKeywords,
    )

__all__ = [
    "AsyncDmEnvAndWorldName",
    "create_and_join_world_async",
    "create_world_async",
    "destroy_world_async",
    "join_world_async",
    "leave_world_async",
    "make_async",
    "reset_world_async",
]

_log = logging.getLogger(__name__)


class AsyncDmEnvAndWorldName(NamedTuple):
    """What `create_and_join_world_async` returns."""

    env: AsyncDmEnvAdaptor
    world_name: str


async def create_world_async(
    connection: AsyncConnection, create_world_settings: Mapping[str, Any] = NO_SETTINGS
) -> str:
    """`create_world` for asyncio; arguments, result and errors are the same."""
    request = dm_env_rpc_pb2.CreateWorldRequest(
        settings=pack_settings(create_world_settings, "create_world_settings")
    )
    return received_name(connection, await connection.send(request))


async def join_world_async(
    connection: AsyncConnection,
    world_name: str,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    adaptor_class: type[AsyncDmEnvAdaptor] = AsyncDmEnvAdaptor,
    **adaptor_kwargs: Unpack[AsyncAdaptorKeywords],
) -> AsyncDmEnvAdaptor:
    """`join_world` for asyncio; arguments, result and errors are the same."""
    check_adapting({"adaptor_class": adaptor_class, **adaptor_kwargs})
    joined = await _join(connection, world_name, join_world_settings)
    try:
        adaptor_kwargs.setdefault("rejoin", joined.rejoin)
        env = adaptor_class(connection, joined.specs, **adaptor_kwargs)
    except BaseException:
        if connection.is_usable:
            await _undo("leave the world", _leave(connection))
        raise
    env.world_name = world_name
    return env


async def _join(
    connection: AsyncConnection, world_name: str, settings: Mapping[str, Any]
) -> AsyncJoined:
    request = dm_env_rpc_pb2.JoinWorldRequest(
        world_name=checked_name(world_name),
        settings=pack_settings(settings, "join_world_settings"),
    )

    async def rejoin() -> dm_env_rpc_pb2.ActionObservationSpecs:
        # Part of a reset, so not by `send`, which the program may have replaced.
        await connection.send_with(dm_env_rpc_pb2.LeaveWorldRequest(), None)
        specs: dm_env_rpc_pb2.ActionObservationSpecs
        specs = (await connection.send_with(request, None)).specs
        return specs

    return AsyncJoined(connection, (await connection.send(request)).specs, world_name, rejoin)


async def create_and_join_world_async(
    connection: AsyncConnection,
    create_world_settings: Mapping[str, Any] = NO_SETTINGS,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    **adaptor_kwargs: Unpack[AsyncJoinKeywords],
) -> AsyncDmEnvAndWorldName:
    """`create_and_join_world` for asyncio; arguments, result and errors are the same."""
    check_adapting(adaptor_kwargs)
    join_settings = pack_settings(join_world_settings, "join_world_settings")
    world_name = await create_world_async(connection, create_world_settings)
    try:
        env = await join_world_async(connection, world_name, join_settings, **adaptor_kwargs)
    except BaseException:
        await _destroy(connection, world_name)
        raise
    return AsyncDmEnvAndWorldName(env, world_name)


async def reset_world_async(
    connection: AsyncConnection, world_name: str, settings: Mapping[str, Any] = NO_SETTINGS
) -> None:
    """`reset_world` for asyncio; arguments and errors are the same."""
    await connection.send(
        dm_env_rpc_pb2.ResetWorldRequest(
            world_name=checked_name(world_name), settings=pack_settings(settings)
        )
    )


async def leave_world_async(connection: AsyncConnection) -> None:
    """`leave_world` for asyncio; errors are the same."""
    await connection.send(dm_env_rpc_pb2.LeaveWorldRequest())


async def destroy_world_async(connection: AsyncConnection, world_name: str) -> None:
    """`destroy_world` for asyncio; errors are the same."""
    await connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=checked_name(world_name)))


@takes(ConnectOptions, more=True)
async def make_async(
    address: Address,
    create_world_settings: Mapping[str, Any] = NO_SETTINGS,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    restart: Restart | bool | None = None,
    python: str | os.PathLike[str] | None = None,
    **make_kwargs: Unpack[AsyncMakeKeywords],
) -> AsyncDmEnvAdaptor:
    """`make` for asyncio; arguments and errors are the same.

    Returns:
      The environment. Its `close` leaves and destroys the world and closes the
      connection. If nobody calls it, that happens, with a ResourceWarning, when the environment is
      garbage-collected, or when the interpreter exits.
    """
    make_kwargs.setdefault("adaptor_class", AsyncDmEnvAdaptor)
    options = MakeOptions.of({**make_kwargs, "restart": restart, "python": python})
    settings = (
        pack_settings(create_world_settings, "create_world_settings"),
        pack_settings(join_world_settings, "join_world_settings"),
    )
    connecting = options.connect
    site = await _site(address, connecting.endpoint, connecting, python=python)
    try:
        env = await _make_on(site, *settings, options)
    except BaseException:
        await _close(site)
        raise
    env.on_close(lambda: _close(site))
    return env


async def _make_on(
    site: Site[Endpoint],
    create_settings: Mapping[str, Any],
    join_settings: Mapping[str, Any],
    options: MakeOptions,
) -> AsyncDmEnvAdaptor:
    """`make_async` at a server, after the settings have been checked; see `worlds.make_on`."""
    connection = await open_connection_async(site.target, options.connect)
    try:
        env, world_name = await create_and_join_world_async(
            connection, create_settings, join_settings, **options.adapt.keywords
        )
    except BaseException:
        await connection.close()
        raise
    env._site = site
    world = _OwnWorld(site, options.connect)
    world.begin(connection, world_name)
    env._on_leave.push_async_callback(world.end)

    async def join_again() -> AsyncJoined:
        await world.give_up()
        if site.launch is not None:
            await in_thread(site.renew, False)
        connection = await open_connection_async(site.target, options.connect)
        try:
            name = await create_world_async(connection, create_settings)
        except BaseException:
            await connection.close()
            raise
        world.begin(connection, name)
        joined = await _join(connection, name, join_settings)
        await world.check_not_over()
        return joined

    if options.restart is not None:
        env._supervise(options.restart, join_again)
    return env


async def _site(address: Address, *args: Any, **kwargs: Any) -> Site[Endpoint]:
    if is_address(address):
        return Site(address, *args, **kwargs)
    return await in_thread(Site, address, *args, **kwargs)


async def _close(site: Site[Endpoint]) -> None:
    if site.launch is not None:
        await in_thread(site.close)


class _OwnWorld:
    """The world that an environment has created, and the connection to it."""

    def __init__(self, site: Site[Endpoint], options: ConnectOptions):
        self._site = site
        self._is_over = False
        site.use()
        self._options = dataclasses.replace(options, request_timeout=None)
        self._connection: AsyncConnection | None = None
        self._name = ""

    def begin(self, connection: AsyncConnection, name: str) -> None:
        self._connection, self._name = connection, name
        reopen = functools.partial(open_again, self._site.target, self._options)
        connection.if_not_closed(functools.partial(_end_unclosed, name, self._site, reopen))

    async def end(self) -> None:
        """Destroys the world, which was left, and closes the connection; for the last time."""
        self._is_over = True
        await self._end()

    async def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _destroy_and_close(connection, self._name)

    async def give_up(self) -> None:
        """Does the same for a world that is lost, or that an attempt to restart has joined."""
        connection = self._connection
        if connection is not None and connection.is_usable:
            await _undo("leave the world", _leave(connection))
        await self._end()

    async def check_not_over(self) -> None:
        """Gives up the world, and raises ConnectionClosedError, if the environment was closed.

        Another coroutine may do that while this one joins.
        """
        if self._is_over:
            await self.give_up()
            raise ConnectionClosedError("the environment was closed while it was restarted")


async def _leave(connection: AsyncConnection) -> None:
    await connection.send_with(dm_env_rpc_pb2.LeaveWorldRequest(), None, CLEAN_UP_SECONDS)


async def _destroy(connection: AsyncConnection, world_name: str) -> None:
    """Destroys a world, over a new connection if this one is unusable."""
    if connection.is_usable:
        await _undo("destroy the world", _send_destroy(connection, world_name))
    elif may_reopen(type(connection.poisoned_by)):
        await _undo("destroy the world", _destroy_anew(connection, world_name))


async def _destroy_and_close(connection: AsyncConnection, world_name: str) -> None:
    try:
        await _destroy(connection, world_name)
    except BaseException:  # It was cancelled.
        await _destroy(connection, world_name)
        raise
    finally:
        await connection.close()


def _end_unclosed(
    world_name: str,
    site: Site[Endpoint],
    reopen: Reopen,
    is_exit: bool,
    cause: type[BaseException] | None,
) -> None:
    """Destroys a world whose environment nobody has closed, without the event loop."""

    def end() -> None:
        try:
            if cause is None or may_reopen(cause):
                undo("destroy the world", lambda: destroy_anew(reopen, world_name))
        finally:
            site.forget()

    (forgotten.at_exit if is_exit else forgotten.in_background)(end)


async def _destroy_anew(connection: AsyncConnection, world_name: str) -> None:
    now = asyncio.get_running_loop().time
    deadline = now() + CLEAN_UP_SECONDS
    async with await connection.reopen(timeout=CLEAN_UP_SECONDS) as fresh:
        while True:
            try:
                await _send_destroy(fresh, world_name)
                return
            except DmEnvRpcError as error:
                if error.code == code_pb2.NOT_FOUND:
                    return
                # The server may not have noticed yet that the other connection was closed and
                # its agent has left.
                if now() > deadline:
                    raise
                await asyncio.sleep(DESTROY_AGAIN_SECONDS)


async def _send_destroy(connection: AsyncConnection, world_name: str) -> None:
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
    await connection.send_with(request, None, CLEAN_UP_SECONDS)


async def _undo(what: str, action: Awaitable[None]) -> None:
    """Cleans up after another error or in `close`; its own errors are logged, not raised."""
    try:
        await action
    except DmEnvRpcClientError as error:
        _log.warning("could not %s: %s", what, error)
