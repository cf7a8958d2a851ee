"""Properties: data beside actions and observations, over the properties extension."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from google.protobuf import any_pb2
from google.protobuf import message as protobuf_message

from dm_env_rpc_client._proto import properties_pb2
from dm_env_rpc_client.errors import (
    PropertyNotFoundError,
    PropertyPermissionError,
    PropertyValueError,
    ProtocolError,
)
from dm_env_rpc_client.extensions.property_access import PropertyAccess, unpack_property
from dm_env_rpc_client.extensions.property_spec import PropertySpec, property_errors
from dm_env_rpc_client.tensors import bounded_parsing, packing
from dm_env_rpc_client.tensors.limits import DEFAULT, Budget

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection

__all__ = [
    "PropertiesExtension",
    "PropertyNotFoundError",
    "PropertyPermissionError",
    "PropertySpec",
    "PropertyValueError",
]


class PropertiesExtension(PropertyAccess):
    """The properties of a server: universal ones, and, once joined, those of the world.

    Read, written and listed like a mapping::

        properties = PropertiesExtension(connection)
        properties["level.seed"] = 3
        for spec in properties.walk():
            print(spec)

    It can be an attribute of an environment: `make(..., extensions=...)` takes it by name.

    Args:
      connection: a connection to the server.
    """

    def __init__(self, connection: Connection):
        super().__init__()
        self._connection = connection

    def read(self, key: str) -> Any:
        """Returns the value of the property with a key."""
        request = properties_pb2.PropertyRequest()
        request.read_property.key = key
        value = self._send(request, "read_property", key).value
        return unpack_property(key, value, self._connection.limits)

    def write(self, key: str, value: Any) -> None:
        """Writes a value to the property with a key."""
        request = properties_pb2.PropertyRequest()
        request.write_property.key = key
        request.write_property.value.CopyFrom(packing.as_tensor(value, f"property {key!r}"))
        self._send(request, "write_property", key)

    def list(self, key: str = "") -> Sequence[PropertySpec]:
        """Returns the properties directly below a key."""
        request = properties_pb2.PropertyRequest()
        request.list_property.key = key
        return [
            PropertySpec(
                each.spec.name,
                each.spec,
                readable=each.is_readable,
                writable=each.is_writable,
                listable=each.is_listable,
                description=each.description,
            )
            for each in self._send(request, "list_property", key).values
        ]

    def _send(self, request: properties_pb2.PropertyRequest, field: str, key: str) -> Any:
        packed = any_pb2.Any()
        packed.Pack(request)
        with property_errors(field.removesuffix("_property"), key):
            answer = self._connection.send(packed)
        response = properties_pb2.PropertyResponse()
        is_response = answer.Is(response.DESCRIPTOR)
        if is_response:
            budget = Budget(self._connection.limits or DEFAULT)
            try:
                response = bounded_parsing.parse(
                    type(response), answer.value, budget, f"the answer to {field}"
                )
            except (protobuf_message.DecodeError, ValueError) as error:
                raise ProtocolError(f"the answer to {field} cannot be parsed: {error}") from error
        answered = response.WhichOneof("payload")
        if not is_response or answered != field:
            found = answered if is_response else answer.type_url or "nothing"
            raise ProtocolError(f"the answer to {field} holds {found or 'no payload'}")
        return getattr(response, field)
