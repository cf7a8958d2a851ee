"""The properties of a server, over one of the two interfaces that it can have."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from dm_env_rpc_client.cli import arguments
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.errors import DmEnvRpcClientError, DmEnvRpcError

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.extensions.property_access import PropertyAccess

__all__ = ["Interface", "Offered", "Place", "open_properties"]


class Interface(str, enum.Enum):
    """How a server offers its properties."""

    AUTO = "auto"
    EXTENSION = "extension"
    LEGACY = "legacy"


class Place(NamedTuple):
    """The server or world whose properties are meant.

    Attributes:
      address: of the server.
      world: the world to join; None for the properties of the server itself.
      new_world: whether to create a world and join that.
      create: settings of the new world, by name.
      join: settings of the agent, by name.
      timeout: seconds for the connection and for each answer.
      access: how the connection is secured.
    """

    address: str
    world: str | None
    new_world: bool
    create: dict[str, Any]
    join: dict[str, Any]
    timeout: float
    access: arguments.Access


class Offered(NamedTuple):
    """The properties of a server, and how it offers them."""

    properties: PropertyAccess
    interface: Interface


@contextlib.contextmanager
def open_properties(place: Place, interface: Interface) -> Iterator[Offered]:
    """Connects to a server and finds its properties.

    Args:
      place: the server or world.
      interface: the one to use. AUTO lists the root over each in turn, with a new connection
        each time, because some servers end the stream at an unknown message.

    Raises:
      UsageError: `place` has settings, but no world that they are for.
      DmEnvRpcClientError: the server has neither interface. Otherwise as `connect` and
        `join_world`.
    """
    from dm_env_rpc_client.extensions.legacy_properties import LegacyProperties
    from dm_env_rpc_client.extensions.properties import PropertiesExtension

    _check(place)
    access: dict[Interface, Callable[[Connection], PropertyAccess]] = {
        Interface.EXTENSION: PropertiesExtension,
        Interface.LEGACY: LegacyProperties,
    }
    if interface is not Interface.AUTO:
        with _joined(place) as connection:
            yield Offered(access[interface](connection), interface)
        return
    refusals: list[DmEnvRpcClientError] = []
    for candidate, opened_with in access.items():
        with _joined(place) as connection:
            properties = opened_with(connection)
            try:
                properties.list()
            except DmEnvRpcClientError as error:
                refusals.append(error)
            else:
                yield Offered(properties, candidate)
                return
    # An error that the server answered says more than a stream that ended.
    said = next((error for error in refusals if isinstance(error, DmEnvRpcError)), refusals[0])
    raise DmEnvRpcClientError(
        f"the server at {place.address} has properties neither as an extension nor as core "
        f"messages of dm_env_rpc 1.0: {said}"
    ) from said


def _check(place: Place) -> None:
    if place.world is not None and place.new_world:
        raise UsageError("--world is for an existing world, --new-world for a new one")
    if place.create and not place.new_world:
        raise UsageError("--create is for a new world: add --new-world")
    if place.join and not place.new_world and place.world is None:
        raise UsageError("--join is for joining a world: add --world NAME or --new-world")


@contextlib.contextmanager
def _joined(place: Place) -> Iterator[Connection]:
    from dm_env_rpc_client.environment.worlds import (
        create_and_join_world,
        destroy_world,
        join_world,
    )

    with arguments.open_connection(place.address, place.timeout, place.access) as connection:
        if place.new_world:
            env, name = create_and_join_world(connection, place.create, place.join)

            def destroy() -> None:
                # If the connection was lost, the server cleans up the world.
                if connection.is_usable:
                    destroy_world(connection, name)

            env.on_close(destroy)
            with env:
                yield connection
        elif place.world is not None:
            with join_world(connection, place.world, place.join):
                yield connection
        else:
            yield connection
