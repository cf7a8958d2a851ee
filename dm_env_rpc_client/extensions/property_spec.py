"""The description of a property by a server, and refusals as errors of the right class."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dm_env import specs as dm_env_specs

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import (
    DmEnvRpcError,
    PropertyError,
    PropertyNotFoundError,
    PropertyPermissionError,
    PropertyValueError,
    ProtocolError,
    SpecError,
)
from dm_env_rpc_client.plain_text import printable
from dm_env_rpc_client.tensors import specs

__all__ = [
    "PropertyNotFoundError",
    "PropertyPermissionError",
    "PropertySpec",
    "PropertyValueError",
]


class PropertySpec:
    """The description of a property by a server.

    Attributes:
      key: the key to read, write and list it by.
      readable: whether it has a value to read.
      writable: whether a value can be written to it.
      listable: whether there are properties below it.
      spec: the dm_env spec of its value; None if it has no value.
      description: what it is for.

    Raises:
      ProtocolError: the server's TensorSpec is invalid.
    """

    def __init__(
        self,
        key: str,
        tensor_spec: dm_env_rpc_pb2.TensorSpec,
        *,
        readable: bool,
        writable: bool,
        listable: bool,
        description: str = "",
    ):
        self.key = key
        self.readable = readable
        self.writable = writable
        self.listable = listable
        self.description = description
        self.spec: dm_env_specs.Array | None = None
        if tensor_spec.dtype != dm_env_rpc_pb2.INVALID_DATA_TYPE:
            try:
                self.spec = specs.tensor_spec_to_dm_env_spec(tensor_spec)
            except SpecError as error:
                raise ProtocolError(f"the spec of property {key!r}: {error}") from error

    @classmethod
    def of_text(cls, key: str, *, readable: bool, writable: bool, listable: bool) -> PropertySpec:
        """Returns the description of a property whose value is a string.

        Args:
          key: as in the attributes, like the others.
          readable: the same.
          writable: the same.
          listable: the same.
        """
        text = dm_env_rpc_pb2.TensorSpec(name=key, dtype=dm_env_rpc_pb2.STRING)
        return cls(key, text, readable=readable, writable=writable, listable=listable)

    def __repr__(self) -> str:
        kinds = [kind for kind in ("readable", "writable", "listable") if getattr(self, kind)]
        text = f", {self.description!r}" if self.description else ""
        named = f"{self.key!r}: {', '.join(kinds) or 'nothing'}, {self.spec}{text}"
        return printable(f"PropertySpec({named})")


@contextlib.contextmanager
def property_errors(operation: str, key: str) -> Iterator[None]:
    """Raises a PropertyError if the server refuses an operation on a property.

    An error that says nothing about the property, such as UNIMPLEMENTED, stays as it is.

    Args:
      operation: "read", "write" or "list".
      key: the key of the property; several keys are separated by commas.
    """
    try:
        yield
    except DmEnvRpcError as error:
        refusal = PropertyError.of_status(operation, key, error.status)
        if type(refusal) is PropertyError:
            raise
        raise refusal from error
