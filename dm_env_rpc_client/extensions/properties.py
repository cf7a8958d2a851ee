"""Access to properties (data other than actions and observations) through an extension."""

from __future__ import annotations

import abc
import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from dm_env import specs as dm_env_specs
from google.protobuf import any_pb2
from google.protobuf import message as protobuf_message

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
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
from dm_env_rpc_client.tensors import bounded_parsing, packing, specs
from dm_env_rpc_client.tensors.displays import markup
from dm_env_rpc_client.tensors.displays.spec_tables import spec_text
from dm_env_rpc_client.tensors.displays.values import in_short, show_value
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Budget, Limits

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection

__all__ = [
    "PropertiesExtension",
    "PropertyAccess",
    "PropertyNotFoundError",
    "PropertyPermissionError",
    "PropertySpec",
    "PropertyValueError",
]


class PropertySpec:
    """A server's description of a property.

    Attributes:
      key: the key with which to read, write and list the property.
      readable: whether the property has a value that can be read.
      writable: whether a value can be written to the property.
      listable: whether there are other properties below the property.
      spec: the dm_env spec of the value, or None if the property has no value.
      description: the property's purpose.

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
                raise ProtocolError(f"the spec of property {key!r} is invalid: {error}") from error

    @classmethod
    def of_text(cls, key: str, *, readable: bool, writable: bool, listable: bool) -> PropertySpec:
        """Return the description of a property whose value is a string.

        Args:
          key: see the attributes.
          readable: see the attributes.
          writable: see the attributes.
          listable: see the attributes.
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
    """Raise a PropertyError if the server refuses an operation on a property.

    Errors unrelated to the property, such as UNIMPLEMENTED, are raised unchanged.

    Args:
      operation: "read", "write" or "list".
      key: the key of the property, or several keys separated by commas.
    """
    try:
        yield
    except DmEnvRpcError as error:
        refusal = PropertyError.of_status(operation, key, error.status)
        if type(refusal) is PropertyError:
            raise
        raise refusal from error


class PropertyAccess(abc.ABC):
    """Base class for access to properties by key, with `[key]`, `read`, `write` and `walk`.

    The operator `in` is not supported. In IPython, typing `[` and the Tab key completes the keys
    that `specs`, `walk` and `tree` have returned so far. The completion sends no requests to the
    server.
    """

    def __init__(self) -> None:
        self._seen_keys: dict[str, None] = {}

    @abc.abstractmethod
    def read(self, key: str) -> Any:
        """Return the value of a property, in the form that `unpack_tensor` returns.

        Raises:
          PropertyNotFoundError: the property does not exist. The error is also a KeyError.
          PropertyPermissionError: the property is not readable. The error is also a
            PermissionError.
          Otherwise, the same errors as `Connection.send`.
        """

    @abc.abstractmethod
    def write(self, key: str, value: Any) -> None:
        """Write a value to a property.

        The world decides when the value takes effect ("Read/Write/List Property" in the protocol
        reference).

        Args:
          key: the key of the property.
          value: a Tensor, or any value that `pack_tensor` accepts.

        Raises:
          PropertyValueError: the value is invalid for the property. The error is also a
            ValueError.
          SpecError: the value cannot be packed, so nothing was sent.
          Otherwise as `read`.
        """

    @abc.abstractmethod
    def list(self, key: str = "") -> Sequence[PropertySpec]:
        """Return the properties directly below a property, or below the root if `key` is empty.

        Raises:
          As `read`.
        """

    def specs(self, key: str = "") -> dict[str, PropertySpec]:
        """Return the result of `list` as a dictionary that maps keys to properties."""
        found = {spec.key: spec for spec in self.list(key)}
        self._seen_keys.update(dict.fromkeys(found))
        return found

    def walk(self, key: str = "") -> Iterator[PropertySpec]:
        """Yield all properties below a property, each key once and parents before children."""
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
        """List and read all properties below a property.

        Returns:
          A snapshot, which is printed as a tree and displayed as a table in a notebook. For an
          unreadable property, it shows the reason instead of the value.

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
    """Unpack the value of a property, or raise ProtocolError if it is invalid."""
    try:
        return packing.unpack_tensor(tensor, limits or DEFAULT)
    except SpecError as error:
        raise ProtocolError(f"the value of property {key!r} is invalid: {error}") from error


MAX_PROPERTIES = 1000
"""The maximum number of properties in a tree, because a server could list them endlessly."""

_FEW = 8

Lister = Callable[[str], Sequence[PropertySpec]]


class TreeEntry(NamedTuple):
    """A property in a `PropertyTree`.

    Attributes:
      spec: the server's description of the property.
      depth: the number of properties above this one in the tree.
      value: the value of the property, or None if no value was read.
      refusal: the reason why the property could not be read or listed, or "" if there was no
        error.
    """

    spec: PropertySpec
    depth: int
    value: Any
    refusal: str


class PropertyTree:
    """A snapshot of properties made by `PropertyAccess.tree`; displaying it sends no requests.

    Args:
      list_below: a function that lists the properties directly below a key.
      read: a function that reads the value of the property with a given key.
      key: the key of the tree's root; the empty key is the root of all properties.

    Attributes:
      entries: the properties, parents before their children.
      is_complete: False if there are more than `MAX_PROPERTIES`.
    """

    def __init__(self, list_below: Lister, read: Callable[[str], Any], key: str = ""):
        found = list(itertools.islice(_entries(list_below, read, key), MAX_PROPERTIES + 1))
        self.entries = found[:MAX_PROPERTIES]
        self.is_complete = len(found) == len(self.entries)

    def __repr__(self) -> str:
        lines = [
            "  " * entry.depth + entry.spec.key + _value_text(entry) + _remark(entry)
            for entry in self.entries
        ]
        if not self.is_complete:
            lines.append(f"... and more than {MAX_PROPERTIES} properties")
        return printable("\n".join(lines)) or "no properties"

    def _repr_html_(self) -> str:
        rows = [
            (
                _key_cell(entry),
                _value_cell(entry),
                markup.escape(", ".join(_kinds(entry.spec))),
                markup.escape("" if entry.spec.spec is None else spec_text(entry.spec.spec)),
                markup.escape(entry.spec.description),
            )
            for entry in self.entries
        ]
        if not rows:
            return markup.section("No properties")
        title = "Properties" if self.is_complete else f"The first {len(rows)} properties"
        columns = ("key", "value", "may be", "spec", "description")
        return markup.section(title, markup.table(columns, rows))


def _entries(list_below: Lister, read: Callable[[str], Any], key: str) -> Iterator[TreeEntry]:
    """Yield all properties below a key, using a stack instead of recursion for deep trees."""
    seen = {key}
    levels = [iter(list_below(key))]
    while levels:
        spec = next(levels[-1], None)
        if spec is None:
            levels.pop()
            continue
        if spec.key in seen:
            continue
        seen.add(spec.key)
        value, refusal = None, ""
        depth = len(levels) - 1
        if spec.readable:
            try:
                value = read(spec.key)
            except (DmEnvRpcError, ProtocolError) as error:
                refusal = _reason(error)
        if spec.listable:
            try:
                levels.append(iter(list_below(spec.key)))
            except DmEnvRpcError as error:
                refusal = refusal or _reason(error)
        yield TreeEntry(spec, depth, value, refusal)


def _key_cell(entry: TreeEntry) -> str:
    indent = f"padding-left:{1.2 * min(entry.depth, 20):.1f}em"
    return f'<span style="{indent}"><b>{markup.escape(entry.spec.key, 200)}</b></span>'


def _value_cell(entry: TreeEntry) -> str:
    if entry.refusal:
        return f"<i>{markup.escape(entry.refusal)}</i>"
    if not entry.spec.readable:
        return ""
    is_short = np.ndim(entry.value) == 1 and len(entry.value) <= _FEW
    return markup.escape(in_short(entry.value)) if is_short else show_value(entry.value)


def _reason(error: DmEnvRpcError | ProtocolError) -> str:
    return f"{error.code_name}: {error.message}" if isinstance(error, DmEnvRpcError) else str(error)


def _kinds(spec: PropertySpec) -> list[str]:
    done = {"readable": "read", "writable": "written", "listable": "listed"}
    return [word for kind, word in done.items() if getattr(spec, kind)]


def _value_text(entry: TreeEntry) -> str:
    if entry.refusal:
        return f" ({entry.refusal})"
    if not entry.spec.readable:
        return ""
    text = " ".join(repr(getattr(entry.value, "tolist", lambda: entry.value)()).split())
    return f" = {markup.shorten(text, 60)}"


def _remark(entry: TreeEntry) -> str:
    kinds = ", ".join(_kinds(entry.spec))
    text = f"  ({kinds})" if kinds else ""
    return f"{text}  {entry.spec.description}".rstrip()


class PropertiesExtension(PropertyAccess):
    """The properties of the server itself and, after joining a world, those of the world.

    Properties are read and written like the values of a mapping::

        properties = PropertiesExtension(connection)
        properties["level.seed"] = 3
        for spec in properties.walk():
            print(spec)

    This class can also become an attribute of an environment, with the name given in `make(...,
    extensions=...)`.

    Args:
      connection: a connection to the server.
    """

    def __init__(self, connection: Connection):
        super().__init__()
        self._connection = connection

    def read(self, key: str) -> Any:
        """Return the value of the property `key`."""
        request = properties_pb2.PropertyRequest()
        request.read_property.key = key
        value = self._send(request, "read_property", key).value
        return unpack_property(key, value, self._connection.limits)

    def write(self, key: str, value: Any) -> None:
        """Write a value to the property `key`."""
        request = properties_pb2.PropertyRequest()
        request.write_property.key = key
        request.write_property.value.CopyFrom(packing.as_tensor(value, f"property {key!r}"))
        self._send(request, "write_property", key)

    def list(self, key: str = "") -> Sequence[PropertySpec]:
        """Return the properties directly below `key`."""
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
            raise ProtocolError(
                f"the answer to {field} is invalid: it contains {found or 'no payload'}"
            )
        return getattr(response, field)
