"""The interface to properties: reading, writing, listing; the same for both versions."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from typing import Any

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.extensions.property_spec import PropertySpec
from dm_env_rpc_client.extensions.property_tree import PropertyTree
from dm_env_rpc_client.tensors import packing
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits

__all__ = ["PropertyAccess"]


class PropertyAccess(abc.ABC):
    """Properties by key; `[key]` reads and writes, `walk` iterates (there is no `in`).

    In IPython, `[` and the Tab key complete the keys that `specs`, `walk` and `tree` have
    returned so far; completion itself does not ask the server.
    """

    def __init__(self) -> None:
        self._seen_keys: dict[str, None] = {}

    @abc.abstractmethod
    def read(self, key: str) -> Any:
        """Returns the value of a property, as `unpack_tensor` does.

        Raises:
          PropertyNotFoundError: there is no such property; also a KeyError.
          PropertyPermissionError: it is not readable; also a PermissionError.
          Otherwise as `Connection.send`.
        """

    @abc.abstractmethod
    def write(self, key: str, value: Any) -> None:
        """Writes a value: anything that `pack_tensor` takes, or a Tensor.

        The world decides when it takes effect ("Read/Write/List Property" in the protocol
        reference).

        Raises:
          PropertyValueError: the value is invalid for the property; also a ValueError.
          SpecError: it cannot be packed; nothing was sent. Otherwise as `read`.
        """

    @abc.abstractmethod
    def list(self, key: str = "") -> Sequence[PropertySpec]:
        """Returns the properties directly below a property; the empty key is the root.

        Raises:
          As `read`.
        """

    def specs(self, key: str = "") -> dict[str, PropertySpec]:
        """Returns the result of `list` by key."""
        found = {spec.key: spec for spec in self.list(key)}
        self._seen_keys.update(dict.fromkeys(found))
        return found

    def walk(self, key: str = "") -> Iterator[PropertySpec]:
        """Yields all properties below a property, parents first, each key once."""
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
        """Lists and reads all properties below a property.

        Returns:
          A snapshot, which prints as a tree and is a table in a notebook. A property that
          cannot be read has the reason in place of its value.

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

    # With __getitem__ alone Python would iterate over the keys 0, 1, 2, ...
    __iter__ = None
    __contains__ = None


def unpack_property(key: str, tensor: dm_env_rpc_pb2.Tensor, limits: Limits | None) -> Any:
    """Unpacks the value of a property; ProtocolError if it is invalid."""
    try:
        return packing.unpack_tensor(tensor, limits or DEFAULT)
    except SpecError as error:
        raise ProtocolError(f"the value of property {key!r}: {error}") from error
