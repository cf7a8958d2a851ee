"""Leaving and destroying worlds in the end, whatever has happened to the connection."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from google.rpc import code_pb2

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.base_connection import BaseConnection
from dm_env_rpc_client.client.connection import Connection, Reopen
from dm_env_rpc_client.client.remains import Remains
from dm_env_rpc_client.environment import forgotten
from dm_env_rpc_client.environment.base_adaptor import CLEAN_UP_SECONDS
from dm_env_rpc_client.environment.sites import Site
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.protocol.envelopes import encode_request
from dm_env_rpc_client.tensors.limits import DEFAULT

_log = logging.getLogger(__name__)

DESTROY_AGAIN_SECONDS = 0.02
"""Between two attempts to destroy a world that its agent is still leaving."""


def checked_name(world_name: str) -> str:
    """Returns the name of a world, which may be empty; SpecError if it is not text."""
    return arguments.instance("world_name", world_name, str, "the name of a world")


def received_name(connection: BaseConnection, response: dm_env_rpc_pb2.CreateWorldResponse) -> str:
    """Returns the name of a new world; ProtocolError if it is too long."""
    try:
        (connection.limits or DEFAULT).check_name(response.world_name, "the name of the new world")
    except SpecError as error:
        raise ProtocolError(f"the server at {connection.address} sent too much: {error}") from error
    return str(response.world_name)


def may_reopen(cause: type[object]) -> bool:
    """Whether a new connection can be expected to work, by why the former one is unusable."""
    return not issubclass(cause, ConnectionLostError | DeadlineExceededError)


def leave(connection: Connection) -> None:
    """Leaves the world that a connection is joined to; errors are those of `Connection.wait`."""
    connection.wait(connection.start(dm_env_rpc_pb2.LeaveWorldRequest(), None, CLEAN_UP_SECONDS))


def destroy(connection: Connection, world_name: str) -> None:
    """Destroys a world, over a new connection if this one is unusable."""
    if connection.is_usable:
        undo("destroy the world", lambda: _send_destroy(connection, world_name))
    elif may_reopen(type(connection.poisoned_by)):
        undo("destroy the world", lambda: destroy_anew(connection.reopen, world_name))


def destroy_and_close(connection: Connection, world_name: str) -> None:
    """Destroys a world that the connection is not joined to, as `leave_destroy_and_close`."""
    try:
        destroy(connection, world_name)
    except BaseException:  # Ctrl-C
        destroy(connection, world_name)
        raise
    finally:
        connection.close()


def end_unclosed(
    world_name: str,
    site: Site[Any],
    connection: Connection | None,
    remains: Remains,
    reopen: Reopen,
) -> None:
    """Leaves and destroys a world whose environment nobody has closed, and ends its server."""

    def end() -> None:
        try:
            if connection is None:
                _destroy_forgotten(world_name, remains, reopen)
            else:
                leave_destroy_and_close(connection, world_name)
        finally:
            site.forget()

    (forgotten.in_background if connection is None else forgotten.at_exit)(end)


def _destroy_forgotten(world_name: str, remains: Remains, reopen: Reopen) -> None:
    if remains.cause is None:
        # The same stream, so that it is the same server, also behind a load balancer.
        leave = dm_env_rpc_pb2.LeaveWorldRequest()
        destroy = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
        messages = [encode_request(request).message for request in (leave, destroy)]
        remains.end_with(messages, CLEAN_UP_SECONDS)
        return
    remains.abort()
    if may_reopen(remains.cause):
        undo("destroy the world", lambda: destroy_anew(reopen, world_name))


def leave_destroy_and_close(connection: Connection, world_name: str) -> None:
    """Leaves a world, destroys it and closes the connection; errors are logged, not raised.

    All of it takes one round trip. The world is destroyed over a new connection if this one is
    unusable, so that a second call ends what an interrupt has left.
    """
    try:
        if connection.is_usable:
            undo("leave and destroy the world", lambda: _end_world(connection, world_name))
        if connection.poisoned_by is not None:
            destroy(connection, world_name)
    finally:
        connection.close()


def _end_world(connection: Connection, world_name: str) -> None:
    leave = dm_env_rpc_pb2.LeaveWorldRequest()
    leaving = connection.start(leave, None, CLEAN_UP_SECONDS)
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
    destroying = connection.start(request, None, CLEAN_UP_SECONDS)
    connection._finish()
    undo("leave the world", lambda: connection.wait(leaving))
    if connection.poisoned_by is None:  # Otherwise it was said why.
        undo("destroy the world", lambda: connection.wait(destroying))


def destroy_anew(reopen: Reopen, world_name: str) -> None:
    """Destroys a world over a new connection, as soon as the agent of the former one has left.

    Args:
      reopen: opens the connection, in so many seconds at most.
      world_name: the world.

    Raises:
      DmEnvRpcError: the server refuses, also after `CLEAN_UP_SECONDS`. Otherwise as `reopen` and
        `Connection.send`.
    """
    deadline = time.monotonic() + CLEAN_UP_SECONDS
    with reopen(CLEAN_UP_SECONDS) as fresh:
        while True:
            try:
                _send_destroy(fresh, world_name)
                return
            except DmEnvRpcError as error:
                if error.code == code_pb2.NOT_FOUND:
                    return
                # The server may not have noticed yet that the other connection was closed and
                # its agent has left.
                if time.monotonic() > deadline:
                    raise
                time.sleep(DESTROY_AGAIN_SECONDS)


def _send_destroy(connection: Connection, world_name: str) -> None:
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
    connection.wait(connection.start(request, None, CLEAN_UP_SECONDS))


def undo(what: str, action: Callable[[], None]) -> None:
    """Cleans up after another error or in `close`; its own errors are logged, not raised."""
    try:
        action()
    except DmEnvRpcClientError as error:
        _log.warning("could not %s: %s", what, error)
