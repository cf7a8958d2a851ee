"""The properties that a server, or one of its environments, offers.

    properties = Properties()
    properties.add("level.seed", lambda: level.seed, level.set_seed, description="...")
    properties.expose(simulation, "gravity", "physics.timestep")

Periods in keys define a tree, so that listing "level" returns "level.seed". To offer properties to
all clients, pass them to `serve`. To offer them to the clients that have joined an environment or
a game, assign them to its attribute `properties`. For an environment, the attribute can also be a
mapping from keys to functions that return the values.

Some environments, such as those implemented in C libraries, have no registry of properties. For
such an environment, the server calls the methods listed in `HasStringProperties` instead.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeGuard

import numpy as np
from dm_env import specs as dm_env_specs
from google.rpc import code_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.errors import PropertyError, PropertyNotFoundError, SpecError
from dm_env_rpc_client.server.errors import RequestError, in_request
from dm_env_rpc_client.tensors import casting, codecs, nesting, packing, specs
from dm_env_rpc_client.tensors.memory_limits import listed
from dm_env_rpc_client.tensors.spec_manager import TensorField


class _Property(NamedTuple):
    getter: Callable[[], Any] | None
    setter: Callable[[Any], None] | None
    spec: dm_env_specs.Array | None
    description: str


class Properties:
    """A registry of properties by key. Add all properties before serving the registry."""

    def __init__(self) -> None:
        self._properties: dict[str, _Property] = {}

    def add(
        self,
        key: str,
        getter: Callable[[], Any] | None = None,
        setter: Callable[[Any], None] | None = None,
        *,
        spec: dm_env_specs.Array | None = None,
        description: str = "",
    ) -> None:
        """Add a property.

        Args:
          key: a name, with periods between levels.
          getter: returns the value, of any type that `pack_tensor` accepts; None if the property
            is not readable.
          setter: called with a new value: a Python number, bool or string, or an array. It raises
            ValueError if the value is invalid. None if the property is not writable.
          spec: the spec of the values; None derives it from the current value. Required if
            there is no getter.
          description: a description for clients.

        Raises:
          SpecError: the key is taken or empty; getter and setter are both None; or getter
            and spec are both None.
        """
        if not key or key in self._properties:
            raise SpecError(f"property {key!r}: the key is {'already taken' if key else 'empty'}")
        if getter is None and setter is None:
            raise SpecError(f"property {key!r} needs a getter or a setter")
        # A client needs the spec to write, and there is no value to take it from.
        if getter is None and spec is None:
            raise SpecError(f"property {key!r} has no getter to derive a spec from; pass spec=")
        self._properties[key] = _Property(getter, setter, spec, description)

    @classmethod
    def of_getters(cls, getters: Mapping[str, Callable[[], Any]]) -> Properties:
        """Return a registry of read-only properties.

        Args:
          getters: functions that return the values, by key.

        Raises:
          SpecError: a key is empty.
        """
        properties = cls()
        for key, getter in getters.items():
            properties.add(key, getter)
        return properties

    def expose(self, owner: Any, *names: str, prefix: str = "") -> None:
        """Add an object's Python attributes and properties to this registry.

        An attribute is writable unless it is a Python property without a setter. The
        docstring of a Python property becomes the description.

        Args:
          owner: the object.
          *names: names of attributes; "a.b" is the attribute `b` of the attribute `a`.
          prefix: prepended to each name in its key, with a period between them.

        Raises:
          SpecError: an attribute does not exist, or the key is taken.
        """
        for name in names:
            path, _, attribute = name.rpartition(nesting.SEPARATOR)
            holder = owner
            for part in path.split(nesting.SEPARATOR) if path else ():
                holder = getattr(holder, part, None)
            if not hasattr(holder, attribute):
                raise SpecError(f"{type(owner).__name__} has no attribute {name!r}")
            declared = inspect.getattr_static(type(holder), attribute, None)
            is_property = isinstance(declared, property)
            # Plain attributes can be set; a property only if it has a setter.
            is_fixed = is_property and declared.fset is None
            self.add(
                f"{prefix}{nesting.SEPARATOR}{name}" if prefix else name,
                functools.partial(getattr, holder, attribute),
                None if is_fixed else functools.partial(setattr, holder, attribute),
                description=inspect.getdoc(declared) or "" if is_property else "",
            )

    def read(self, key: str) -> dm_env_rpc_pb2.Tensor:
        """Return the packed value of a key, or raise RequestError if it cannot be read."""
        declared = self._find(key)
        if declared.getter is None:
            raise _denied(key, "readable")
        return self._pack(key, declared, declared.getter())

    def write(self, key: str, tensor: dm_env_rpc_pb2.Tensor) -> None:
        """Set a key's value from a tensor; raise RequestError if the key or tensor is refused."""
        declared = self._find(key)
        if declared.setter is None:
            raise _denied(key, "writable")
        # A getter that fails, or a value without a spec, is no fault of the client.
        spec = self._tensor_spec(key, declared)
        try:
            field = TensorField(0, spec, "property")
            value = field.unpack(tensor)
            field.conform(value)
            # Setters receive a scalar as a Python number, bool or str, not as NumPy's.
            declared.setter(value.item() if hasattr(value, "item") and not field.shape else value)
        except (SpecError, TypeError, ValueError) as error:
            raise RequestError.invalid(f"invalid value for property {key!r}: {error}") from error

    def list(self, key: str) -> list[properties_pb2.PropertySpec]:
        """Return the specs of a key's children, or raise RequestError if there are none."""
        prefix = key + nesting.SEPARATOR if key else ""
        children = {
            prefix + name[len(prefix) :].split(nesting.SEPARATOR)[0]
            for name in self._properties
            if name.startswith(prefix)
        }
        if key and not children:
            # NOT_FOUND for an unknown key; only a known one is "not listable".
            self._find(key)
            raise _denied(key, "listable")
        return [self._describe(child) for child in sorted(children)]

    def _keys(self) -> Sequence[str]:
        """Return the keys of all properties, for use in error messages."""
        return [*self._properties]

    def knows(self, key: str) -> bool:
        """Return whether a key is that of a property or of a property's parent."""
        prefix = key + nesting.SEPARATOR
        return key in self._properties or any(name.startswith(prefix) for name in self._properties)

    def _describe(self, key: str) -> properties_pb2.PropertySpec:
        listable = any(name.startswith(key + nesting.SEPARATOR) for name in self._properties)
        declared = self._properties.get(key)
        if declared is None:
            return properties_pb2.PropertySpec(
                spec=dm_env_rpc_pb2.TensorSpec(name=key), is_listable=listable
            )
        try:
            spec = self._tensor_spec(key, declared)
        except Exception:
            # A getter that fails now must not hide the other properties; `read` reports it.
            spec = dm_env_rpc_pb2.TensorSpec(name=key)
        return properties_pb2.PropertySpec(
            spec=spec,
            is_readable=declared.getter is not None,
            is_writable=declared.setter is not None,
            is_listable=listable,
            description=declared.description,
        )

    def _tensor_spec(self, key: str, declared: _Property) -> dm_env_rpc_pb2.TensorSpec:
        if declared.spec is not None:
            return specs.named_tensor_spec(declared.spec, key)
        assert declared.getter is not None, "`add` requires a getter or a spec"
        tensor = self._pack(key, declared, declared.getter())
        codec = codecs.codec_of_payload(tensor, key)
        spec = dm_env_rpc_pb2.TensorSpec(name=key, shape=tensor.shape)
        spec.dtype = codec.data_type  # type: ignore[assignment]  # the stubs want the enum
        return spec

    def _pack(self, key: str, declared: _Property, value: Any) -> dm_env_rpc_pb2.Tensor:
        where = f"property {key!r}"
        if declared.spec is None:
            return packing.pack_value(value, None, where)
        codec = codecs.codec_for(specs.dm_env_spec_to_tensor_spec(declared.spec).dtype)
        array = packing.to_dtype(casting.as_array(value, where), codec, where)
        return packing.pack_array(array, codec, where)

    def _find(self, key: str) -> _Property:
        declared = self._properties.get(key)
        if declared is not None:
            return declared
        if key and self.knows(key):
            raise RequestError(
                code_pb2.PERMISSION_DENIED, f"property {key!r} has no value and can only be listed"
            )
        raise _unknown(key, [self])


def answer_property_request(
    layers: list[Properties], request: properties_pb2.PropertyRequest
) -> properties_pb2.PropertyResponse:
    """Execute a property request on several registries; earlier registries take precedence.

    Args:
      layers: the properties of the world, if any, then the server's.
      request: the request.

    Raises:
      RequestError: see the methods of `Properties`.
    """
    response = properties_pb2.PropertyResponse()
    field = request.WhichOneof("payload")
    if field is None:
        raise RequestError.invalid("the property request is empty")
    key = getattr(request, field).key
    # A key belongs to the first registry that knows it.
    knowing = (layer for layer in layers if layer.knows(key))
    if key and not any(layer.knows(key) for layer in layers):
        raise _unknown(key, layers)
    if field == "list_property":
        found: dict[str, properties_pb2.PropertySpec] = {}
        for layer in (list(knowing) or layers[-1:]) if key else layers:
            for spec in layer.list(key):
                found.setdefault(spec.spec.name, spec)
        response.list_property.values.extend(found.values())
    elif field == "read_property":
        response.read_property.value.CopyFrom(next(knowing, layers[-1]).read(key))
    else:
        response.write_property.SetInParent()
        next(knowing, layers[-1]).write(key, request.write_property.value)
    return response


def _unknown(key: str, layers: Iterable[Properties]) -> RequestError:
    known = listed(sorted({name for layer in layers for name in layer._keys()}))
    return RequestError(code_pb2.NOT_FOUND, f"no property {key!r}; properties: {known}")


def _denied(key: str, what: str) -> RequestError:
    return RequestError(code_pb2.PERMISSION_DENIED, f"property {key!r} is not {what}")


class PropertyAttributes(Protocol):
    """The attributes of a property: whether it can be read, written and listed."""

    @property
    def is_readable(self) -> bool:
        """Whether the property has a value that can be read."""

    @property
    def is_writable(self) -> bool:
        """Whether the property has a value that can be set."""

    @property
    def is_listable(self) -> bool:
        """Whether the property has children."""


class HasStringProperties(Protocol):
    """An environment with methods for properties, which refuse requests with PropertyError."""

    def read_property(self, key: str) -> str:
        """Return the value of a property."""

    def write_property(self, key: str, value: str) -> None:
        """Set the value of a property."""

    def list_properties(self, key: str = "") -> Mapping[str, PropertyAttributes]:
        """Return the attributes of a property's children, by key; the key "" is the root."""


def has_string_properties(environment: Any) -> TypeGuard[HasStringProperties]:
    """Return whether an environment, or the one that it wraps, has methods for properties."""
    # Since Python 3.12, isinstance ignores methods that `__getattr__` returns.
    methods = ("read_property", "write_property", "list_properties")
    return all(hasattr(environment, name) for name in methods)


class StringProperties(Properties):
    """A `Properties` registry that calls an environment's methods for properties.

    Args:
      environment: the environment.
    """

    def __init__(self, environment: HasStringProperties):
        super().__init__()
        self._environment = environment

    def read(self, key: str) -> dm_env_rpc_pb2.Tensor:
        """Return the value of a key, packed as a string."""
        with _refusals():
            return packing.pack_tensor(self._environment.read_property(key))

    def write(self, key: str, tensor: dm_env_rpc_pb2.Tensor) -> None:
        """Set a key to a tensor's value, converted to a string if it is a number or bool."""
        with in_request():
            value = packing.unpack_tensor(tensor)
        if np.ndim(value):
            raise RequestError.invalid(
                f"property {key!r} requires a scalar, got shape {list(np.shape(value))}"
            )
        if isinstance(value, np.ndarray | np.generic):
            value = value.item()
        text = str(value).lower() if isinstance(value, bool) else str(value)
        with _refusals():
            self._environment.write_property(key, text)

    def list(self, key: str) -> list[properties_pb2.PropertySpec]:
        with _refusals():
            listed = self._environment.list_properties(key)
        return [
            properties_pb2.PropertySpec(
                spec=_spec(child, attributes),
                is_readable=attributes.is_readable,
                is_writable=attributes.is_writable,
                is_listable=attributes.is_listable,
            )
            for child, attributes in sorted(listed.items())
        ]

    def knows(self, key: str) -> bool:
        """Return whether a key can be read or listed without a NOT_FOUND error."""
        try:
            self._environment.read_property(key)
        except PropertyError as error:
            if not isinstance(error, PropertyNotFoundError):
                return True
            # Reading does not find a property that has children but no value.
            try:
                self._environment.list_properties(key)
            except PropertyError as refusal:
                return not isinstance(refusal, PropertyNotFoundError)
        return True


def _spec(key: str, attributes: PropertyAttributes) -> dm_env_rpc_pb2.TensorSpec:
    spec = dm_env_rpc_pb2.TensorSpec(name=key)
    if attributes.is_readable or attributes.is_writable:
        spec.dtype = dm_env_rpc_pb2.STRING
    return spec


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn a PropertyError into a RequestError with the same code and message."""
    try:
        yield
    except PropertyError as error:
        raise RequestError(error.code, str(error)) from error


def properties_of(
    environment: Any, allowed: tuple[Sequence[str], Sequence[str]]
) -> Properties | None:
    """Return the properties of an environment, or None if it has none.

    Args:
      environment: the environment.
      allowed: the names that clients may call, and the names that they may set.
    """
    properties = getattr(environment, "properties", None)
    if isinstance(properties, Properties):
        return properties
    if isinstance(properties, Mapping):
        offered = Properties.of_getters(properties)
        offer_calls = getattr(environment, "offer_calls", None)
        if offer_calls is not None and any(allowed):
            offer_calls(offered, *allowed)
        return offered
    return StringProperties(environment) if has_string_properties(environment) else None
