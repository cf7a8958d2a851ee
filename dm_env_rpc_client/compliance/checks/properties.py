"""Checks of the properties offered by the extension, by the core of protocol 1.0, or by both."""

from __future__ import annotations

import abc
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

from google.protobuf import any_pb2
from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, line_1_0_pb2, properties_pb2
from dm_env_rpc_client.compliance.check import reference
from dm_env_rpc_client.compliance.checks.foundations import a_failed_request_is_answered
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import Probe, describe
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.spec_manager import TensorField

_of_properties = functools.partial(reference, "Read/Write/List Property")

_UNKNOWN = "no.such.property"
_MAX_PROPERTIES = 200
"""The maximum number of properties that are checked in each tree."""

_FOLLOWS_ATTRIBUTES = "a client that follows the attributes of a property does not try it"

Tensor: TypeAlias = dm_env_rpc_pb2.Tensor


class _Property(NamedTuple):
    """A server's description of a property."""

    key: str
    spec: dm_env_rpc_pb2.TensorSpec
    is_readable: bool
    is_writable: bool
    is_listable: bool


class _Properties(abc.ABC):
    """The properties of a server, in the dialect of the extension or of protocol 1.0.

    Args:
      trial: the check.
      probe: the connection.
      world_name: the world that the connection has joined, or None.
    """

    def __init__(self, trial: Trial, probe: Probe, world_name: str | None):
        self._trial = trial
        self._world_name = world_name
        self.probe = probe

    @abc.abstractmethod
    def ask(self, verb: str, key: str, value: Tensor | None = None) -> Any:
        """List, read or write properties with one request.

        Args:
          verb: "list", "read" or "write".
          key: the property.
          value: the value to write.

        Returns:
          The properties directly below `key` (for "list"), its value (for "read") or None (for
          "write"), or the error Status.
        """

    def walk(self) -> Iterator[_Property]:
        """Yield each property of the tree once, and check that properties can be listed."""
        waiting = self._listed("")
        seen: set[str] = set()
        while waiting and len(seen) < _MAX_PROPERTIES:
            found = waiting.pop()
            if found.key in seen:
                raise self.probe.violation("a unique key for each property", f"{found.key!r} twice")
            seen.add(found.key)
            yield found
            if found.is_listable:
                waiting.extend(self._listed(found.key))

    def _listed(self, key: str) -> list[_Property]:
        listed = self.ask("list", key)
        if isinstance(listed, status_pb2.Status):
            raise self.probe.violation(
                f"the list of properties below {key!r}, which is listable", listed
            )
        return list(listed)

    def _answer(self, request: Any, expected: str) -> Any:
        before = self.probe
        self.probe = self._trial.usable(before)
        if self.probe is not before and self._world_name is not None:
            self.probe, _ = self._trial.rejoin(self.probe, self._world_name)
        return self.probe.ask(request, expected)


class _OfExtension(_Properties):
    """The dialect of the extension, which packs each request and each answer into an Any."""

    def ask(self, verb: str, key: str, value: Tensor | None = None) -> Any:
        field = f"{verb}_property"
        content = {"key": key} if value is None else {"key": key, "value": value}
        packed = any_pb2.Any()
        packed.Pack(properties_pb2.PropertyRequest(**{field: content}))
        answer = self._answer(packed, f"an answer to {field}")
        if isinstance(answer, status_pb2.Status):
            return answer
        response = properties_pb2.PropertyResponse()
        if not answer.Unpack(response) or response.WhichOneof("payload") != field:
            raise self.probe.violation(f"a PropertyResponse with {field}", answer)
        if verb == "list":
            return [
                _Property(
                    each.spec.name, each.spec, each.is_readable, each.is_writable, each.is_listable
                )
                for each in response.list_property.values
            ]
        return response.read_property.value if verb == "read" else None


class _OfLine10(_Properties):
    """The dialect of protocol version 1.0, whose core requests accept several keys."""

    def ask(self, verb: str, key: str, value: Tensor | None = None) -> Any:
        name = f"{verb.capitalize()}Property"
        content: Any = {"keys": [key]} if value is None else {"properties": {key: value}}
        request = getattr(line_1_0_pb2, f"{name}Request")(**content)
        answer = self._answer(request, f"a {name}Response")
        if isinstance(answer, status_pb2.Status):
            return answer
        if verb == "list":
            return [
                _Property(name, each.spec, each.is_readable, each.is_writeable, each.is_listable)
                for name, each in answer.properties.items()
            ]
        if verb == "read" and set(answer.properties) != {key}:
            raise self.probe.violation(f"an answer with only the value of {key!r}", answer)
        return answer.properties[key] if verb == "read" else None


def _offered(trial: Trial) -> list[_Properties]:
    """Return the dialects in which the server lists properties before or after a join."""
    dialects: list[type[_Properties]] = [_OfExtension]
    if trial.facts.refuses_empty_requests:
        # Servers of other lines see a 1.0 request as one without a payload.
        dialects.append(_OfLine10)
    offered: list[_Properties] = []
    refusal = ""
    probe = trial.connect()
    for is_joined in (False, True):
        world_name = trial.join(probe).world_name if is_joined else None
        for dialect in dialects:
            found = dialect(trial, probe, world_name)
            root = found.ask("list", "")
            if not isinstance(root, status_pb2.Status):
                offered.append(found)
            refusal = refusal or getattr(root, "message", "")
            probe = found.probe
        if offered:
            return offered
        probe = trial.usable(probe)
    raise NotOfferedError(f"the server does not list properties: {refusal}")


def _walked(trial: Trial) -> Iterator[tuple[_Properties, _Property]]:
    """Yield all properties in each dialect that the server supports."""
    for properties in _offered(trial):
        for found in properties.walk():
            yield properties, found


def _own_values(trial: Trial) -> Iterator[tuple[_Properties, _Property, Tensor]]:
    """Yield the readable properties with their values."""
    for properties, found in _walked(trial):
        value = properties.ask("read", found.key) if found.is_readable else None
        if isinstance(value, Tensor):
            yield properties, found, value


@_of_properties(
    "Properties are a tree whose nodes have unique keys.",
    needs=(a_failed_request_is_answered,),
    otherwise="properties cannot be listed",
)
def properties_can_be_listed(trial: Trial) -> None:
    """List the whole tree of properties from the root.

    A violation is an error because a client cannot find the properties.
    """
    for _ in _walked(trial):
        pass


@_of_properties(
    "A readable property has a value that conforms to its spec.",
    needs=(properties_can_be_listed,),
    otherwise="readable properties cannot be read",
)
def readable_properties_can_be_read(trial: Trial) -> None:
    """Read each readable property.

    A violation is an error because a client cannot read the property, or cannot unpack its value.
    """
    for properties, found in _walked(trial):
        if not found.is_readable:
            continue
        value = properties.ask("read", found.key)
        if isinstance(value, status_pb2.Status):
            raise properties.probe.violation(f"a value, because {found.key!r} is readable", value)
        try:
            TensorField(0, found.spec, "property").unpack(value)
        except SpecError as error:
            raise properties.probe.violation(
                f"a tensor that conforms to {describe(found.spec)}: {error}", value
            ) from None


@_of_properties(
    "A property that is not readable cannot be read.",
    leniency=_FOLLOWS_ATTRIBUTES,
    needs=(properties_can_be_listed,),
)
def unreadable_properties_are_refused(trial: Trial) -> None:
    """Try to read each unreadable property.

    A violation is a warning because only a client that ignores the attributes reads an unreadable
    property.
    """
    for properties, found in _walked(trial):
        value = None if found.is_readable else properties.ask("read", found.key)
        if isinstance(value, Tensor):
            raise properties.probe.violation(
                f"an error, because {found.key!r} is not readable", value
            )


@_of_properties(
    "A readable and writable property accepts its own value.",
    needs=(readable_properties_can_be_read,),
)
def writable_properties_can_be_written(trial: Trial) -> None:
    """Write the current value of each writable property back to it.

    A violation is an error because a client cannot write the property.
    """
    for properties, found, value in _own_values(trial):
        refusal = properties.ask("write", found.key, value) if found.is_writable else None
        if refusal is not None:
            raise properties.probe.violation(
                f"a WritePropertyResponse, because {found.key!r} is writable", refusal
            )


@_of_properties(
    "A property that is not writable cannot be written.",
    leniency=_FOLLOWS_ATTRIBUTES,
    needs=(readable_properties_can_be_read,),
)
def unwritable_properties_are_refused(trial: Trial) -> None:
    """Try to write the current value of each read-only property back to it.

    A violation is a warning because only a client that ignores the attributes writes to a read-only
    property.
    """
    for properties, found, value in _own_values(trial):
        if not found.is_writable and properties.ask("write", found.key, value) is None:
            raise properties.probe.violation(
                f"an error, because {found.key!r} is not writable", "a WritePropertyResponse"
            )


@_of_properties(
    "Requests for unknown properties are refused.",
    leniency="a client lists the properties to find out which ones exist",
    needs=(properties_can_be_listed,),
)
def unknown_properties_are_refused(trial: Trial) -> None:
    """Try to read, write and list a property with an unknown key.

    A violation is a warning because only a client that guesses keys sends an unknown key.
    """
    value = Tensor()
    value.floats.array.append(0.0)
    for properties in _offered(trial):
        for verb in ("read", "write", "list"):
            answer = properties.ask(verb, _UNKNOWN, value if verb == "write" else None)
            if not isinstance(answer, status_pb2.Status):
                raise properties.probe.violation(
                    "an error, because there is no such property",
                    f"the response to the {verb} request",
                )
