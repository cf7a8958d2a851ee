"""The properties extension, if the server implements it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import any_pb2
from google.protobuf import message as protobuf_message
from google.rpc import status_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.compliance.check import reference
from dm_env_rpc_client.compliance.outcome import NotOfferedError
from dm_env_rpc_client.compliance.probe import Probe, describe
from dm_env_rpc_client.compliance.trial import Trial
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.spec_manager import TensorField

_HEADING = "Read/Write/List Property"
_UNKNOWN = "no.such.property"
_MAX_PROPERTIES = 200
"""The number of properties of a tree that are checked."""


def _ask(probe: Probe, **payload: protobuf_message.Message) -> Any:
    """Returns the answer to a PropertyRequest: its own payload, or an error Status."""
    packed = any_pb2.Any()
    packed.Pack(properties_pb2.PropertyRequest(**payload))  # type: ignore[arg-type]
    (field,) = payload
    answer = probe.ask(packed, f"an answer to {field}")
    if isinstance(answer, status_pb2.Status):
        return answer
    response = properties_pb2.PropertyResponse()
    if not answer.Unpack(response) or response.WhichOneof("payload") != field:
        raise probe.violation(f"a PropertyResponse with {field}", describe(answer))
    return getattr(response, field)


def _list(probe: Probe, key: str) -> Any:
    return _ask(probe, list_property=properties_pb2.ListPropertyRequest(key=key))


def _read(probe: Probe, key: str) -> Any:
    return _ask(probe, read_property=properties_pb2.ReadPropertyRequest(key=key))


def _offered(trial: Trial) -> tuple[Probe, Any]:
    probe = trial.connect()
    root = _list(probe, "")
    if isinstance(root, status_pb2.Status):
        raise NotOfferedError(f"the server does not list properties: {root.message}")
    return probe, root


def _walk(probe: Probe, root: Any) -> Iterator[properties_pb2.PropertySpec]:
    """Yields the properties of the tree, each once, and checks that they can be listed."""
    waiting = list(root.values)
    seen: set[str] = set()
    while waiting and len(seen) < _MAX_PROPERTIES:
        found = waiting.pop()
        key = found.spec.name
        if key in seen:
            raise probe.violation("a unique key for each property", f"{key!r} twice")
        seen.add(key)
        yield found
        if found.is_listable:
            listed = _list(probe, key)
            if isinstance(listed, status_pb2.Status):
                raise probe.violation(
                    f"the properties below the listable {key!r}", describe(listed)
                )
            waiting.extend(listed.values)


@reference(_HEADING, "Properties are a tree whose nodes have unique keys.")
def properties_can_be_listed(trial: Trial) -> None:
    """Walks the tree from the root."""
    probe, root = _offered(trial)
    for _ in _walk(probe, root):
        pass


@reference(_HEADING, "A readable property has a value of its spec, others are refused.")
def readable_properties_can_be_read(trial: Trial) -> None:
    """Reads each one."""
    probe, root = _offered(trial)
    for found in _walk(probe, root):
        key = found.spec.name
        answer = _read(probe, key)
        is_error = isinstance(answer, status_pb2.Status)
        if is_error == found.is_readable:
            expected = "a value" if found.is_readable else "an error"
            raise probe.violation(
                f"{expected}, because is_readable of {key!r} is {found.is_readable}",
                describe(answer),
            )
        if not is_error:
            try:
                TensorField(0, found.spec, "property").unpack(answer.value)
            except SpecError as error:
                raise probe.violation(
                    f"a tensor for {describe(found.spec)}: {error}", describe(answer)
                ) from None


@reference(_HEADING, "What can be read and written takes its own value.")
def writable_properties_can_be_written(trial: Trial) -> None:
    """Writes to each one the value that was read; an error if it is not writable."""
    probe, root = _offered(trial)
    for found in _walk(probe, root):
        if not found.is_readable:
            continue
        key = found.spec.name
        value = _read(probe, key).value
        request = properties_pb2.WritePropertyRequest(key=key, value=value)
        answer = _ask(probe, write_property=request)
        if isinstance(answer, status_pb2.Status) == found.is_writable:
            expected = "a WritePropertyResponse" if found.is_writable else "an error"
            raise probe.violation(
                f"{expected}, because is_writable of {key!r} is {found.is_writable}",
                describe(answer),
            )


@reference(_HEADING, "A property that does not exist is refused.")
def unknown_properties_are_refused(trial: Trial) -> None:
    """Reads, writes and lists an unknown key."""
    probe, _ = _offered(trial)
    value = dm_env_rpc_pb2.Tensor()
    value.floats.array.append(0.0)
    write = properties_pb2.WritePropertyRequest(key=_UNKNOWN, value=value)
    for answer in (
        _read(probe, _UNKNOWN),
        _ask(probe, write_property=write),
        _list(probe, _UNKNOWN),
    ):
        if not isinstance(answer, status_pb2.Status):
            raise probe.violation("an error, because there is no such property", describe(answer))
