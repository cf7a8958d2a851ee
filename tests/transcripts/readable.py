"""Messages and values as short texts, so that a difference can be read in a review."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

import dm_env
import numpy as np
from google.protobuf import any_pb2, wrappers_pb2
from google.rpc import error_details_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2 as pb
from dm_env_rpc_client._proto import properties_pb2

_MOST = 12
"""So many elements of an array are shown."""

_STATES = {0: "INVALID", 1: "RUNNING", 2: "TERMINATED", 3: "INTERRUPTED"}

_INSIDE: dict[str, Any] = {
    kind.DESCRIPTOR.full_name: kind
    for kind in (
        properties_pb2.PropertyRequest,
        properties_pb2.PropertyResponse,
        error_details_pb2.DebugInfo,
        wrappers_pb2.Int64Value,
        wrappers_pb2.StringValue,
    )
}


def inside(packed: any_pb2.Any) -> Any:
    """Returns the message in an Any; None if its type is not known here."""
    kind = _INSIDE.get(packed.TypeName())
    if kind is None:
        return None
    message = kind()
    packed.Unpack(message)
    return message


def message_text(message: Any) -> str:
    """Returns any message in one line."""
    if isinstance(message, pb.Tensor):
        return _tensor(message)
    if isinstance(message, pb.TensorSpec):
        return _spec(message)
    if isinstance(message, pb.StepRequest):
        requested = ",".join(map(str, message.requested_observations))
        return f"{_map(message.actions)} for [{requested}]"
    if isinstance(message, pb.StepResponse):
        state = _STATES.get(message.state, str(message.state))
        return f"{state} {_map(message.observations)}"
    if isinstance(message, any_pb2.Any):
        content = inside(message)
        name = message.TypeName().rpartition(".")[2]
        return f"{name}({message.value.hex() if content is None else message_text(content)})"
    fields = message.ListFields()
    if [field.name for field, _ in fields] == ["world_name"]:
        return repr(message.world_name)
    parts = []
    for field, value in fields:
        if isinstance(value, Mapping):
            text = _map(value)
        elif field.message_type is not None and not hasattr(value, "DESCRIPTOR"):
            text = "[" + ", ".join(map(message_text, value)) + "]"
        elif field.message_type is not None:
            text = message_text(value)
        elif isinstance(value, str | bytes | int | float):
            text = repr(value)
        else:
            text = "[" + ", ".join(map(repr, value)) + "]"
        parts.append(f"{field.name}={text}")
    return " ".join(parts)


def _map(entries: Mapping[Any, Any]) -> str:
    """Maps have no order on the wire, so they are shown in that of their keys."""
    return "{" + ", ".join(f"{key}: {message_text(entries[key])}" for key in sorted(entries)) + "}"


def _elements(message: Any) -> tuple[str, list[Any]]:
    """The name of a payload, without its "s", and its elements."""
    field = message.WhichOneof("payload")
    if field is None:
        return "nothing", []
    array = getattr(message, field).array
    if isinstance(array, bytes):
        array = np.frombuffer(array, np.int8 if field == "int8s" else np.uint8).tolist()
    return field[:-1], list(array)


def _some(elements: Iterable[Any]) -> str:
    shown = list(elements)
    texts = [_element(each) for each in shown[:_MOST]]
    return " ".join(texts + ["..."] * (len(shown) > _MOST))


def _element(value: Any) -> str:
    if isinstance(value, any_pb2.Any):
        return message_text(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:.9g}"
    return repr(value) if isinstance(value, str | bytes) else str(value)


def _tensor(tensor: pb.Tensor) -> str:
    name, elements = _elements(tensor)
    shape = f"[{','.join(map(str, tensor.shape))}]" if tensor.shape else ""
    return f"{name}{shape}({_some(elements)})"


def _spec(spec: pb.TensorSpec) -> str:
    shape = f"[{','.join(map(str, spec.shape))}]" if spec.shape else ""
    text = f"{spec.name!r} {pb.DataType.Name(spec.dtype)}{shape}"
    if spec.HasField("min") or spec.HasField("max"):
        bounds = (_some(_elements(bound)[1]) for bound in (spec.min, spec.max))
        text += f" {'..'.join(bounds)}"
    return text


def value_text(value: Any) -> str:
    """Returns a value that a client has seen: types, shapes, and the order of mappings."""
    if isinstance(value, dm_env.TimeStep):
        kind = value.step_type
        first = kind.name if isinstance(kind, dm_env.StepType) else value_text(kind)
        fields = (value_text(value.reward), value_text(value.discount))
        return f"{first} {' '.join(fields)} {value_text(value.observation)}"
    if isinstance(value, np.ndarray):
        shape = f"[{','.join(map(str, value.shape))}]"
        return f"{_dtype(value.dtype)}{shape}({_some_values(value.ravel().tolist())})"
    if isinstance(value, np.generic):
        return f"{_dtype(value.dtype)}({_element(value.item())})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields_by_name = {
            field.name: getattr(value, field.name) for field in dataclasses.fields(value)
        }
        return f"{type(value).__name__}{value_text(fields_by_name)}"
    if isinstance(value, Mapping):
        items = (f"{key}: {value_text(each)}" for key, each in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return f"{type(value).__name__}{value_text(value._asdict())}"
    if isinstance(value, list | tuple):
        inner = ", ".join(map(value_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return _element(value) if isinstance(value, float | str | bytes) else repr(value)


def _some_values(elements: list[Any]) -> str:
    if any(not isinstance(each, bool | int | float | str) for each in elements):
        return " ".join(map(value_text, elements))
    return _some(elements)


def _dtype(dtype: np.dtype[Any]) -> str:
    """Names are the same with each NumPy, and texts of any length alike."""
    return "str" if dtype.kind == "U" else str(dtype)
