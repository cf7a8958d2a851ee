"""Creating, joining, resetting, leaving and destroying worlds, for asyncio; see `worlds.py`."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.async_connection import AsyncConnection, connect_with_async
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.connecting import open_again
from dm_env_rpc_client.environment.async_dm_env_adaptor import AsyncDmEnvAdaptor
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.exchanges import adrive
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.restarting import Restart
from dm_env_rpc_client.environment.server_location import Address, Site, is_address
from dm_env_rpc_client.environment.world_ends import checked_name, end_unclosed_async
from dm_env_rpc_client.environment.worlds import (
    creating,
    creating_and_joining,
    joining,
    making,
    resetting,
)
from dm_env_rpc_client.system.keywords import takes
from dm_env_rpc_client.system.waiting import in_thread
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.transports.endpoint import Endpoint

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import (
        AsyncAdaptorKeywords,
        AsyncJoinKeywords,
        AsyncMakeKeywords,
    )


class AsyncDmEnvAndWorldName(NamedTuple):
    """The result of `create_and_join_world_async`."""

    env: AsyncDmEnvAdaptor
    world_name: str


async def create_world_async(
    connection: AsyncConnection, create_world_settings: Mapping[str, Any] = NO_SETTINGS
) -> str:
    """Create a world from asyncio; see `create_world` for the arguments, result and errors."""
    return await adrive(creating(connection, create_world_settings))


async def join_world_async(
    connection: AsyncConnection,
    world_name: str,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    adaptor_class: type[AsyncDmEnvAdaptor] = AsyncDmEnvAdaptor,
    **adaptor_kwargs: Unpack[AsyncAdaptorKeywords],
) -> AsyncDmEnvAdaptor:
    """Join a world from asyncio; see `join_world` for the arguments, result and errors."""
    joining_it = joining(
        adrive, connection, world_name, join_world_settings, adaptor_class, adaptor_kwargs
    )
    env: AsyncDmEnvAdaptor = await adrive(joining_it)
    return env


async def create_and_join_world_async(
    connection: AsyncConnection,
    create_world_settings: Mapping[str, Any] = NO_SETTINGS,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    **adaptor_kwargs: Unpack[AsyncJoinKeywords],
) -> AsyncDmEnvAndWorldName:
    """Create a world from asyncio and join it; see `create_and_join_world` for the arguments."""
    adaptor_kwargs.setdefault("adaptor_class", AsyncDmEnvAdaptor)
    settings = (create_world_settings, join_world_settings)
    return AsyncDmEnvAndWorldName(
        *await adrive(creating_and_joining(adrive, connection, *settings, adaptor_kwargs))
    )


async def reset_world_async(
    connection: AsyncConnection, world_name: str, settings: Mapping[str, Any] = NO_SETTINGS
) -> None:
    """Reset a world from asyncio; see `reset_world` for the arguments and errors."""
    await adrive(resetting(connection, world_name, settings))


async def leave_world_async(connection: AsyncConnection) -> None:
    """Leave a world from asyncio; see `leave_world` for the errors."""
    await connection.send(dm_env_rpc_pb2.LeaveWorldRequest())


async def destroy_world_async(connection: AsyncConnection, world_name: str) -> None:
    """Destroy a world from asyncio; see `destroy_world` for the errors."""
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
    """Make an environment for asyncio; see `make` for the arguments and errors.

    Returns:
      The environment. Its `close` leaves and destroys the world and closes the
      connection. Without `close`, that happens, with a ResourceWarning, when the environment is
      garbage-collected or when the interpreter exits.
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
        # A server launched here has no other owner.
        await _close(site)
        raise
    # Called after the world is destroyed: the server ends last.
    env.on_close(lambda: _close(site))
    return env


async def _make_on(
    site: Site[Endpoint],
    create_settings: Mapping[str, Any],
    join_settings: Mapping[str, Any],
    options: MakeOptions,
) -> AsyncDmEnvAdaptor:
    """Make an environment for asyncio on a server, from packed settings; see `worlds.make_on`."""
    # A clean-up connection has a deadline of its own, and no limit for each request.
    without_limit = dataclasses.replace(options.connect, request_timeout=None)

    async def connect(first: dm_env_rpc_pb2.CreateWorldRequest) -> tuple[AsyncConnection, Any]:
        return await connect_with_async(first, site.target, options.connect)

    def if_not_closed(connection: AsyncConnection, name: str) -> None:
        reopen = functools.partial(open_again, site.target, without_limit)
        connection.if_not_closed(functools.partial(end_unclosed_async, name, site, reopen))

    settings = (create_settings, join_settings)
    env: AsyncDmEnvAdaptor
    env = await adrive(making(adrive, site, connect, *settings, options, if_not_closed))
    return env


async def _site(address: Address, *args: Any, **kwargs: Any) -> Site[Endpoint]:
    # Only a launch starts a process, which must not block the event loop.
    if is_address(address):
        return Site(address, *args, **kwargs)
    return await in_thread(Site, address, *args, **kwargs)


async def _close(site: Site[Endpoint]) -> None:
    # Ending a process waits for it, in a thread; an address has nothing to end.
    if site.launch is not None:
        await in_thread(site.close)
