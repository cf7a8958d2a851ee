"""Creating, joining, resetting, leaving and destroying worlds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connection import Connection, connect
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
)
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.transports.credentials import Credentials
from dm_env_rpc_client.transports.endpoint import Transport
from dm_env_rpc_client.transports.metadata import Metadata

__all__ = [
    "DmEnvAndWorldName",
    "create_and_join_world",
    "create_world",
    "destroy_world",
    "join_world",
    "leave_world",
    "make",
    "reset_world",
]

_log = logging.getLogger(__name__)

_NONE: Mapping[str, Any] = MappingProxyType({})

CLEAN_UP_SECONDS = 1.0
"""How long each step of undoing a creation may take."""


class DmEnvAndWorldName(NamedTuple):
    """What `create_and_join_world` returns."""

    env: DmEnvAdaptor
    world_name: str


def create_world(connection: Connection, create_world_settings: Mapping[str, Any] = _NONE) -> str:
    """Creates a world.

    Args:
      connection: a connection to the server.
      create_world_settings: values by name, nested or flat; see `pack_settings`.

    Returns:
      The name of the world.

    Raises:
      SpecError: a setting cannot be packed; nothing was sent.
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    request = dm_env_rpc_pb2.CreateWorldRequest(settings=pack_settings(create_world_settings))
    return str(connection.send(request).world_name)


def join_world(
    connection: Connection,
    world_name: str,
    join_world_settings: Mapping[str, Any] = _NONE,
    *,
    adaptor_class: type[DmEnvAdaptor] = DmEnvAdaptor,
    **adaptor_kwargs: Any,
) -> DmEnvAdaptor:
    """Joins a world.

    Args:
      connection: a connection that is not joined to a world. It stays open when the
        environment is closed.
      world_name: the name of the world.
      join_world_settings: values by name, nested or flat; see `pack_settings`.
      adaptor_class: a subclass, for rewards or discounts of your own.
      **adaptor_kwargs: for the adaptor.

    Returns:
      The environment. Where it cannot be made, the world is left again.

    Raises:
      SpecError: a setting cannot be packed, or see `DmEnvAdaptor`.
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    request = dm_env_rpc_pb2.JoinWorldRequest(
        world_name=world_name, settings=pack_settings(join_world_settings)
    )

    def rejoin() -> dm_env_rpc_pb2.ActionObservationSpecs:
        leave_world(connection)
        specs: dm_env_rpc_pb2.ActionObservationSpecs = connection.send(request).specs
        return specs

    specs = connection.send(request).specs
    try:
        return adaptor_class(connection, specs, **{"rejoin": rejoin, **adaptor_kwargs})
    except BaseException:
        if connection.is_usable:
            _undo("leave the world", lambda: _leave(connection))
        raise


def create_and_join_world(
    connection: Connection,
    create_world_settings: Mapping[str, Any] = _NONE,
    join_world_settings: Mapping[str, Any] = _NONE,
    **adaptor_kwargs: Any,
) -> DmEnvAndWorldName:
    """Creates a world and joins it.

    The arguments are those of `create_world` and `join_world`. Where it cannot be
    joined, the world is destroyed again.

    Returns:
      `(env, world_name)`. Closing the environment leaves the world; `destroy_world`
      destroys it.

    Raises:
      As `create_world` and `join_world`.
    """
    join_settings = pack_settings(join_world_settings)
    world_name = create_world(connection, create_world_settings)
    try:
        env = join_world(connection, world_name, join_settings, **adaptor_kwargs)
    except BaseException:
        _destroy(connection, world_name)
        raise
    return DmEnvAndWorldName(env, world_name)


def reset_world(
    connection: Connection, world_name: str, settings: Mapping[str, Any] = _NONE
) -> None:
    """Begins a new sequence for every agent of a world.

    Blocks until every other agent has taken a step, which tells it so.

    Args:
      connection: a connection to the server, joined to the world or not.
      world_name: the name of the world.
      settings: values by name, nested or flat; see `pack_settings`.

    Raises:
      As `create_world`.
    """
    connection.send(
        dm_env_rpc_pb2.ResetWorldRequest(world_name=world_name, settings=pack_settings(settings))
    )


def leave_world(connection: Connection) -> None:
    """Leaves the world that a connection is joined to, if any.

    Raises:
      As `Connection.send`.
    """
    connection.send(dm_env_rpc_pb2.LeaveWorldRequest())


def destroy_world(connection: Connection, world_name: str) -> None:
    """Destroys a world, which the connection is not joined to.

    Raises:
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name))


def make(
    address: str,
    create_world_settings: Mapping[str, Any] = _NONE,
    join_world_settings: Mapping[str, Any] = _NONE,
    *,
    timeout: float | None = 10.0,
    request_timeout: float | None = None,
    credentials: Credentials | None = None,
    insecure: bool = False,
    metadata: Metadata | None = None,
    transport: Transport = "auto",
    **adaptor_kwargs: Any,
) -> DmEnvAdaptor:
    """Connects to a server, creates a world and joins it.

    Args:
      address: as for `connect`, like `timeout`, `request_timeout`, `credentials`,
        `insecure`, `metadata` and `transport`.
      create_world_settings: values by name, nested or flat; see `pack_settings`.
      join_world_settings: the same.
      timeout: seconds until there must be a connection; None for any time.
      request_timeout: seconds that each answer may take; None for any time.
      credentials: TLS credentials; None for plaintext.
      insecure: allow plaintext to an address that is not on this machine.
      metadata: sent with the call.
      transport: how the stream is carried.
      **adaptor_kwargs: for `join_world` and the adaptor, such as
        `requested_observations`.

    Returns:
      The environment. Its `close` leaves and destroys the world and closes the
      connection.

    Raises:
      As `connect`, `create_world` and `join_world`. Nothing is left on the server then.
    """
    connection = connect(
        address,
        timeout=timeout,
        request_timeout=request_timeout,
        credentials=credentials,
        insecure=insecure,
        metadata=metadata,
        transport=transport,
    )
    try:
        env, world_name = create_and_join_world(
            connection, create_world_settings, join_world_settings, **adaptor_kwargs
        )
    except BaseException:
        connection.close()
        raise
    env.on_close(connection.close)
    env.on_close(lambda: _destroy(connection, world_name))
    return env


def _leave(connection: Connection) -> None:
    connection.send(dm_env_rpc_pb2.LeaveWorldRequest(), timeout=CLEAN_UP_SECONDS)


def _destroy(connection: Connection, world_name: str) -> None:
    """Destroys a world, over a connection of its own where this one is dead."""
    if connection.is_usable:
        _undo("destroy the world", lambda: _send_destroy(connection, world_name))
    elif not isinstance(connection.poisoned_by, ConnectionLostError | DeadlineExceededError):
        _undo("destroy the world", lambda: _destroy_anew(connection, world_name))


def _destroy_anew(connection: Connection, world_name: str) -> None:
    deadline = time.monotonic() + CLEAN_UP_SECONDS
    with connection.reopen(timeout=CLEAN_UP_SECONDS) as fresh:
        while True:
            try:
                _send_destroy(fresh, world_name)
                return
            except DmEnvRpcError:
                # The server takes a moment to see that the other connection has gone and
                # its agent with it.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _send_destroy(connection: Connection, world_name: str) -> None:
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
    connection.send(request, timeout=CLEAN_UP_SECONDS)


def _undo(what: str, action: Callable[[], None]) -> None:
    """Cleans up in the wake of another error, or of a close, which is not to be hidden."""
    try:
        action()
    except DmEnvRpcClientError as error:
        _log.warning("could not %s: %s", what, error)
