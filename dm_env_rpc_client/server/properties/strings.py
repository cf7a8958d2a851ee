"""Properties that an environment reads and writes itself, as strings.

Some environments, such as those of libraries in C, have no registry of their properties. The
server calls their methods instead.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeGuard

import numpy as np

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.errors import PropertyError, PropertyNotFoundError
from dm_env_rpc_client.server.properties.offered import Properties
from dm_env_rpc_client.server.request_errors import RequestError, in_request
from dm_env_rpc_client.tensors import packing


class PropertyAttributes(Protocol):
    """Whether a property can be read, written and listed."""

    @property
    def is_readable(self) -> bool:
        """Whether it has a value."""

    @property
    def is_writable(self) -> bool:
        """Whether it has a value that can be set."""

    @property
    def is_listable(self) -> bool:
        """Whether it has children."""


class HasStringProperties(Protocol):
    """An environment with methods for its properties; they raise PropertyError to refuse."""

    def read_property(self, key: str) -> str:
        """Returns the value of a property."""

    def write_property(self, key: str, value: str) -> None:
        """Sets the value of a property."""

    def list_properties(self, key: str = "") -> Mapping[str, PropertyAttributes]:
        """Returns the attributes of the children of a property, by key; "" is the root."""


def has_string_properties(environment: Any) -> TypeGuard[HasStringProperties]:
    """Whether an environment has these methods; those of one that it wraps are its own, too."""
    # isinstance does not find what `__getattr__` returns, from Python 3.12 on.
    methods = ("read_property", "write_property", "list_properties")
    return all(hasattr(environment, name) for name in methods)


class StringProperties(Properties):
    """`Properties` that calls the methods of an environment.

    Args:
      environment: the environment.
    """

    def __init__(self, environment: HasStringProperties):
        super().__init__()
        self._environment = environment

    def read(self, key: str) -> dm_env_rpc_pb2.Tensor:
        """Returns the value of a property, a string."""
        with _refusals():
            return packing.pack_tensor(self._environment.read_property(key))

    def write(self, key: str, tensor: dm_env_rpc_pb2.Tensor) -> None:
        """Changes a property; numbers and bools are converted to strings."""
        with in_request():
            value = packing.unpack_tensor(tensor)
        if np.ndim(value):
            raise RequestError.invalid(
                f"property {key!r} takes a scalar, got shape {list(np.shape(value))}"
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
        """Whether there is a property: not if reading and listing it say NOT_FOUND."""
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
    """Answers with the code and the text of a refusal."""
    try:
        yield
    except PropertyError as error:
        raise RequestError(error.code, str(error)) from error
