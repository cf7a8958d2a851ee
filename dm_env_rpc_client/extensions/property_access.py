"""What reading, writing and listing properties have in common in both dialects."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from dm_env import specs as dm_env_specs
from google.rpc import code_pb2

from dm_env_rpc_client import specs, tensors
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError, SpecError
from dm_env_rpc_client.extensions.property_tree import PropertyTree

__all__ = [
    "PropertyAccess",
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


class PropertyAccess(abc.ABC):
    """Properties by key; `[key]` reads and writes, `in` and iteration are left to `walk`.

    In IPython, `[` and the Tab key complete the keys that `specs`, `walk` and `tree` have
    come upon so far; only those three ask the server.
    """

    def __init__(self) -> None:
        self._seen_keys: dict[str, None] = {}

    @abc.abstractmethod
    def read(self, key: str) -> Any:
        """Returns the value of a property, as `unpack_tensor` does.

        Raises:
          PropertyNotFoundError: there is none; a KeyError too.
          PropertyPermissionError: it is not readable; a PermissionError too.
          Otherwise as `Connection.send`.
        """

    @abc.abstractmethod
    def write(self, key: str, value: Any) -> None:
        """Writes a value, which may be anything that `pack_tensor` takes, or a Tensor.

        When it takes effect is the world's to decide ("Read/Write/List Property" in the
        protocol reference).

        Raises:
          PropertyValueError: the property does not take it; a ValueError too.
          SpecError: it cannot be packed; nothing was sent. Otherwise as `read`.
        """

    @abc.abstractmethod
    def list(self, key: str = "") -> Sequence[PropertySpec]:
        """Returns what stands right below a property; the empty key is the root.

        Raises:
          As `read`.
        """

    def specs(self, key: str = "") -> dict[str, PropertySpec]:
        """Returns what `list` does, by key."""
        found = {spec.key: spec for spec in self.list(key)}
        self._seen_keys.update(dict.fromkeys(found))
        return found

    def walk(self, key: str = "") -> Iterator[PropertySpec]:
        """Yields everything below a property, parents first, each key once."""
        seen = {key}
        pending = [key]
        while pending:
            for spec in self.list(pending.pop()):
                if spec.key not in seen:
                    seen.add(spec.key)
                    self._seen_keys[spec.key] = None
                    yield spec
                    if spec.listable:
                        pending.append(spec.key)

    def tree(self, key: str = "") -> PropertyTree:
        """Lists and reads everything below a property.

        Returns:
          A snapshot, which prints as a tree and is a table in a notebook. What cannot be
          read says why in it.

        Raises:
          As `list`.
        """
        tree = PropertyTree(self, key)
        self._seen_keys.update((entry.spec.key, None) for entry in tree.entries)
        return tree

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: [key] reads and writes, tree() shows all>"

    def _ipython_key_completions_(self) -> Sequence[str]:
        return [*self._seen_keys]

    def __getitem__(self, key: str) -> Any:
        return self.read(key)

    def __setitem__(self, key: str, value: Any) -> None:
        self.write(key, value)

    # With __getitem__ alone Python would count keys up from 0.
    __iter__ = None
    __contains__ = None


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


def pack_property(key: str, value: Any) -> dm_env_rpc_pb2.Tensor:
    """Packs the value for a property."""
    if isinstance(value, dm_env_rpc_pb2.Tensor):
        return value
    return tensors.pack_value(value, None, f"property {key!r}")


def unpack_property(key: str, tensor: dm_env_rpc_pb2.Tensor) -> Any:
    """Unpacks the value of a property; ProtocolError where it is none."""
    try:
        return tensors.unpack_tensor(tensor)
    except SpecError as error:
        raise ProtocolError(f"the value of property {key!r}: {error}") from error
