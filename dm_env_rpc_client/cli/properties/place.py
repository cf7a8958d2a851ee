"""The properties of a server, over one of the two interfaces that it can have."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.errors import DmEnvRpcClientError, DmEnvRpcError

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.extensions.property_access import PropertyAccess


@dataclasses.dataclass(frozen=True, kw_only=True)
class Place(options.World):
    """The server or world whose properties are meant.

    Attributes:
      world_name: Name of an existing world to join, for its properties beside the server's.
      new_world: Create a world, join it for its properties, and destroy it when the command ends.
      interface: How the server offers properties: extension is the current way, legacy the core
        messages of dm_env_rpc 1.0; auto tries both.
    """

    new_world: bool = False
    interface: Literal["auto", "extension", "legacy"] = "auto"

    @contextlib.contextmanager
    def properties(self) -> Iterator[tuple[PropertyAccess, str]]:
        """Connects to the server and finds its properties.

        With `auto` the root is listed over each interface in turn, with a new connection each time,
        because some servers end the stream at an unknown message.

        Yields:
          The properties, and the interface.

        Raises:
          UsageError: there are settings, but no world that they are for.
          DmEnvRpcClientError: the server has neither interface. Otherwise as `connect` and
            `join_world`.
        """
        from dm_env_rpc_client.extensions.legacy_properties import LegacyProperties
        from dm_env_rpc_client.extensions.properties import PropertiesExtension

        self._check()
        access: dict[str, Any] = {"extension": PropertiesExtension, "legacy": LegacyProperties}
        if self.interface != "auto":
            with self._joined() as connection:
                yield access[self.interface](connection), self.interface
            return
        refusals: list[DmEnvRpcClientError] = []
        for interface, opened_with in access.items():
            with self._joined() as connection:
                properties = opened_with(connection)
                try:
                    properties.list()
                except DmEnvRpcClientError as error:
                    refusals.append(error)
                else:
                    yield properties, interface
                    return
        # An error that the server answered says more than a stream that ended.
        said = next((error for error in refusals if isinstance(error, DmEnvRpcError)), refusals[0])
        raise DmEnvRpcClientError(
            f"the server at {self.address} has properties neither as an extension nor as core "
            f"messages of dm_env_rpc 1.0: {said}"
        ) from said

    def _check(self) -> None:
        if self.world_name is not None and self.new_world:
            raise UsageError("--world is for an existing world, --new-world for a new one")
        if self.create_settings and not self.new_world:
            raise UsageError("--create is for a new world: add --new-world")
        if self.join_settings and not self.new_world and self.world_name is None:
            raise UsageError("--join is for joining a world: add --world NAME or --new-world")

    @contextlib.contextmanager
    def _joined(self) -> Iterator[Connection]:
        if self.new_world or self.world_name is not None:
            with self.environment() as env:
                yield env.connection
        else:
            with self.connection() as connection:
                yield connection
