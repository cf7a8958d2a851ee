"""The properties of an environment in this process, such as one of a library in C."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import DmEnvRpcError, PropertyError
from dm_env_rpc_client.extensions.property_access import PropertyAccess
from dm_env_rpc_client.extensions.property_spec import PropertySpec
from dm_env_rpc_client.server.string_properties import HasStringProperties

__all__ = ["LocalProperties"]


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
        """See `PropertyAccess.read`."""
        with _refusals():
            return self._environment.read_property(key)

    def write(self, key: str, value: Any) -> None:
        """See `PropertyAccess.write`."""
        with _refusals():
            self._environment.write_property(key, str(value))

    def list(self, key: str = "") -> Sequence[PropertySpec]:
        """See `PropertyAccess.list`."""
        with _refusals():
            listed = self._environment.list_properties(key)
        return [
            PropertySpec(
                child,
                dm_env_rpc_pb2.TensorSpec(name=child, dtype=dm_env_rpc_pb2.STRING),
                readable=attributes.is_readable,
                writable=attributes.is_writable,
                listable=attributes.is_listable,
            )
            for child, attributes in sorted(listed.items())
        ]


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except PropertyError as error:
        code = code_pb2.Code.Value(error.result)
        raise DmEnvRpcError(status_pb2.Status(code=code, message=str(error))) from error
