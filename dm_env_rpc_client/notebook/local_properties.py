"""The properties of an environment in this process, such as one of a library in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dm_env_rpc_client.extensions.property_access import PropertyAccess
from dm_env_rpc_client.extensions.property_spec import PropertySpec
from dm_env_rpc_client.server.properties.strings import HasStringProperties


class LocalProperties(PropertyAccess):
    """The interface of `PropertiesExtension` for an environment in this process.

    Values are strings. If the environment refuses, the error is the one that a server would send.

    Args:
      environment: the environment.
    """

    def __init__(self, environment: HasStringProperties):
        super().__init__()
        self._environment = environment

    def read(self, key: str) -> Any:
        return self._environment.read_property(key)

    def write(self, key: str, value: Any) -> None:
        self._environment.write_property(key, str(value))

    def list(self, key: str = "") -> Sequence[PropertySpec]:
        listed = self._environment.list_properties(key)
        return [
            PropertySpec.of_text(
                child,
                readable=attributes.is_readable,
                writable=attributes.is_writable,
                listable=attributes.is_listable,
            )
            for child, attributes in sorted(listed.items())
        ]
