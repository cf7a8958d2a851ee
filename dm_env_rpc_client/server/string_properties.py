"""Properties that an environment keeps by itself, as strings.

Some environments, such as those of libraries in C, know their properties only when asked.
They have no registry; the server asks them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

import numpy as np

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.errors import PropertyError, PropertyNotFoundError
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.request_errors import RequestError
from dm_env_rpc_client.tensors import packing

__all__ = ["EnvironmentProperties", "KeepsProperties"]


class Attributes(Protocol):
    """What can be done with a property."""

    @property
    def is_readable(self) -> bool:
        """Whether it has a value."""

    @property
    def is_writable(self) -> bool:
        """Whether it takes a value."""

    @property
    def is_listable(self) -> bool:
        """Whether properties stand below it."""


@runtime_checkable
class KeepsProperties(Protocol):
    """An environment that answers for its properties; PropertyError where it refuses."""

    def read_property(self, key: str) -> str:
        """Returns a value."""

    def write_property(self, key: str, value: str) -> None:
        """Sets a value."""

    def list_properties(self, key: str = "") -> Mapping[str, Attributes]:
        """Returns what stands right below a property, by key; "" is the root."""


class EnvironmentProperties(Properties):
    """The properties of an environment that keeps them itself.

    Args:
      environment: the environment.
    """

    def __init__(self, environment: KeepsProperties):
        super().__init__()
        self._environment = environment

    def read(self, key: str) -> dm_env_rpc_pb2.Tensor:
        """See `Properties.read`; the value is a string."""
        with _refusals():
            return packing.pack_tensor(self._environment.read_property(key))

    def write(self, key: str, tensor: dm_env_rpc_pb2.Tensor) -> None:
        """See `Properties.write`; numbers and bools are written as strings."""
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
        """See `Properties.list`."""
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
        """See `Properties.knows`; any other answer than that there is none will do."""
        try:
            self._environment.read_property(key)
        except PropertyError as error:
            if not isinstance(error, PropertyNotFoundError):
                return True
            # Some have lists without a value, which reading does not find.
            try:
                self._environment.list_properties(key)
            except PropertyError as refusal:
                return not isinstance(refusal, PropertyNotFoundError)
        return True


def _spec(key: str, attributes: Attributes) -> dm_env_rpc_pb2.TensorSpec:
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
