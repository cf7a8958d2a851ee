"""What reading, writing and listing properties have in common in both dialects."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.extensions.property_spec import PropertySpec
from dm_env_rpc_client.extensions.property_tree import PropertyTree
from dm_env_rpc_client.tensors import packing

__all__ = ["PropertyAccess"]


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
        tree = PropertyTree(self.list, self.read, key)
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


def pack_property(key: str, value: Any) -> dm_env_rpc_pb2.Tensor:
    """Packs the value for a property."""
    if isinstance(value, dm_env_rpc_pb2.Tensor):
        return value
    return packing.pack_value(value, None, f"property {key!r}")


def unpack_property(key: str, tensor: dm_env_rpc_pb2.Tensor) -> Any:
    """Unpacks the value of a property; ProtocolError where it is none."""
    try:
        return packing.unpack_tensor(tensor)
    except SpecError as error:
        raise ProtocolError(f"the value of property {key!r}: {error}") from error
