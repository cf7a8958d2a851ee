"""Access to properties in protocol version 1.0, where they are part of the core protocol.

Every request can contain several keys ("Read/Write/List Property" in the protocol reference).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dm_env_rpc_client._proto import line_1_0_pb2
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.extensions.properties import (
    PropertyAccess,
    PropertySpec,
    property_errors,
    unpack_property,
)
from dm_env_rpc_client.tensors import packing

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection

__all__ = ["LegacyProperties"]


class LegacyProperties(PropertyAccess):
    """The interface of `PropertiesExtension`, plus methods that handle several keys in a request.

    Args:
      connection: a connection to a server that uses version 1.0 of the protocol.
    """

    def __init__(self, connection: Connection):
        super().__init__()
        self._connection = connection

    def read(self, key: str) -> Any:
        """Return the value of the property `key`."""
        return self.read_all([key])[key]

    def read_all(self, keys: Iterable[str]) -> dict[str, Any]:
        """Read several properties in one request.

        Args:
          keys: the keys of the properties.

        Returns:
          Their values by key.

        Raises:
          ProtocolError: the server did not return one of the properties.
          DmEnvRpcClientError: as `read`.
        """
        keys = list(keys)
        with property_errors("read", ", ".join(keys)):
            response = self._connection.send(line_1_0_pb2.ReadPropertyRequest(keys=keys))
        missing = [key for key in keys if key not in response.properties]
        if missing:
            raise ProtocolError(f"the server did not return property {missing[0]!r}")
        limits = self._connection.limits
        return {key: unpack_property(key, response.properties[key], limits) for key in keys}

    def write(self, key: str, value: Any) -> None:
        """Write a value to the property `key`."""
        self.write_all({key: value})

    def write_all(self, values: Mapping[str, Any]) -> None:
        """Write several properties in one request.

        Args:
          values: the values to write, by key.

        Raises:
          As `write`.
        """
        packed = {
            key: packing.as_tensor(value, f"property {key!r}") for key, value in values.items()
        }
        with property_errors("write", ", ".join(packed)):
            self._connection.send(line_1_0_pb2.WritePropertyRequest(properties=packed))

    def list(self, key: str = "") -> Sequence[PropertySpec]:
        """Return the properties directly below `key`."""
        return self.list_all([key])

    def list_all(self, keys: Iterable[str]) -> Sequence[PropertySpec]:
        """List the properties directly below several keys, in one request.

        Args:
          keys: the keys of the properties.

        Returns:
          The combined results of `list` for all keys.

        Raises:
          As `list`.
        """
        keys = list(keys)
        with property_errors("list", ", ".join(keys)):
            response = self._connection.send(line_1_0_pb2.ListPropertyRequest(keys=keys))
        return [
            PropertySpec(
                key,
                each.spec,
                readable=each.is_readable,
                writable=each.is_writeable,
                listable=each.is_listable,
            )
            for key, each in sorted(response.properties.items())
        ]
