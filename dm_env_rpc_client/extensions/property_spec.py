"""What a server says of a property, and its refusals as Python's own errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from dm_env import specs as dm_env_specs
from google.rpc import code_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError, SpecError
from dm_env_rpc_client.tensors import specs

__all__ = [
    "PropertyNotFoundError",
    "PropertyPermissionError",
    "PropertySpec",
    "PropertyValueError",
]


class PropertyNotFoundError(DmEnvRpcError, KeyError):
    """There is no such property (NOT_FOUND)."""


class PropertyPermissionError(DmEnvRpcError, PermissionError):
    """The property cannot be read, written or listed (PERMISSION_DENIED)."""


class PropertyValueError(DmEnvRpcError, ValueError):
    """The property does not take the value (INVALID_ARGUMENT)."""


_ERRORS: dict[int, type[DmEnvRpcError]] = {
    code_pb2.NOT_FOUND: PropertyNotFoundError,
    code_pb2.PERMISSION_DENIED: PropertyPermissionError,
    code_pb2.INVALID_ARGUMENT: PropertyValueError,
}


class PropertySpec:
    """What a server says of a property.

    Attributes:
      key: the key to read, write and list it by.
      readable: whether it has a value to read.
      writable: whether a value can be written to it.
      listable: whether properties stand below it.
      spec: the dm_env spec of its value; None where it has none.
      description: what it is for.

    Raises:
      ProtocolError: the server's TensorSpec cannot be.
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

    def __repr__(self) -> str:
        kinds = [kind for kind in ("readable", "writable", "listable") if getattr(self, kind)]
        text = f", {self.description!r}" if self.description else ""
        return f"PropertySpec({self.key!r}: {', '.join(kinds) or 'nothing'}, {self.spec}{text})"


@contextlib.contextmanager
def property_errors() -> Iterator[None]:
    """Gives refusals the types that dictionaries and files have for them."""
    try:
        yield
    except DmEnvRpcError as error:
        kind = _ERRORS.get(error.code)
        if kind is None:
            raise
        raise kind(error.status) from error
