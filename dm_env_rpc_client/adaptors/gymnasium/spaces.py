"""Converts dm_env specs to Gymnasium spaces, and values of the one to values of the other.

| spec | space |
| --- | --- |
| integer scalar with bounds, at most 2**63 - 1 values | Discrete, with `start` |
| bool scalar | Discrete(2) |
| bool array | MultiBinary |
| other integers and floats | Box; without bounds that of the dtype, or infinite |
| string | Text of any characters; an array of strings is a Tuple of them |
| variable length along the first axis | Sequence |
| dict; list or tuple | Dict; Tuple |

A Discrete is int64 and a MultiBinary int8, as everywhere in Gymnasium; every other value
keeps its dtype. A value of a space is cast to the dtype of its spec exactly; a cast that would
change it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium.boxes import ExactBox, Room, multi_binary, uniform_box
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.variable_specs import bounds_of

__all__ = ["AnyText", "from_space", "spec_to_space", "to_space"]

_TEXT_LENGTH = 64
"""The length of the longest sample; other texts may be longer."""

_INT64_MAX = 2**63 - 1


class AnyText(spaces.Text):
    """A Text of any characters and any length; samples are short and alphanumeric."""

    def __init__(self) -> None:
        super().__init__(_TEXT_LENGTH, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)


def spec_to_space(spec: Any, name: str, room: Room | None = None) -> spaces.Space[Any]:
    """Returns the space of a spec, or of a structure of them.

    Args:
      spec: the spec.
      name: how error messages name it.
      room: what the bounds of this and other spaces may take as arrays; None for this one alone.

    Raises:
      SpecError: no space has its values: messages, complex numbers, arrays of variable
        length along another axis than the first.
    """
    room = room or Room()
    if isinstance(spec, Mapping):
        # Pairs keep their order; a mapping would be sorted.
        return spaces.Dict(
            [(key, spec_to_space(part, f"{name}.{key}", room)) for key, part in spec.items()]
        )
    if isinstance(spec, list | tuple):
        return spaces.Tuple(
            tuple(spec_to_space(part, f"{name}.{index}", room) for index, part in enumerate(spec))
        )
    shape = tuple(spec.shape)
    if any(size < 0 for size in shape):
        if shape[0] >= 0:
            raise SpecError(
                f"{name!r} has shape {list(shape)}; Gymnasium has spaces of variable length along "
                "the first axis only: leave it out with requested_observations"
            )
        # Bounds of an array of variable length are scalars.
        element = _array_space(spec, shape[1:], name, room)
        is_stacked = len(shape) > 1 and not isinstance(element, spaces.Tuple)
        return spaces.Sequence(element, stack=is_stacked)
    return _array_space(spec, shape, name, room)


def to_space(space: spaces.Space[Any], value: Any) -> Any:
    """Converts a dm_env value to an element of its space; copies arrays only if needed."""
    if isinstance(space, spaces.Dict):
        return {key: to_space(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(to_space, space.spaces, value))
    if isinstance(space, spaces.Sequence):
        if space.stack:
            return to_space_array(space.feature_space, value)
        return tuple(to_space(space.feature_space, element) for element in value)
    if isinstance(space, spaces.Text):
        return value.item() if isinstance(value, np.ndarray) else value
    array = to_space_array(space, value)
    return array[()] if isinstance(space, spaces.Discrete) else array


def to_space_array(space: spaces.Space[Any], value: Any) -> npt.NDArray[Any]:
    """Converts an element of a space of arrays, or a stack of them, to the space's dtype."""
    return np.asarray(value, space.dtype)


def from_space(spec: Any, value: Any, name: str) -> Any:
    """Converts an element of a spec's space to a value of the spec; the inverse of `to_space`.

    Raises:
      SpecError: the value has another structure, or a cast would change it.
    """
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or value.keys() != spec.keys():
            found = list(value) if isinstance(value, Mapping) else type(value).__name__
            raise SpecError(f"{name!r}: expected a mapping with keys {list(spec)}, got {found}")
        return {key: from_space(part, value[key], f"{name}.{key}") for key, part in spec.items()}
    if isinstance(spec, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(spec):
            raise SpecError(f"{name!r}: expected a tuple of {len(spec)} values, got {value!r}")
        parts = zip(spec, value, strict=True)
        # The sequence may be a named tuple.
        make = getattr(spec, "_make", type(spec))
        return make(
            from_space(part, own, f"{name}.{index}") for index, (part, own) in enumerate(parts)
        )
    dtype = spec.dtype if spec.dtype.kind in "biuf" else np.dtype(object)
    if dtype.kind == "O" and isinstance(value, list | tuple) and not value:
        return np.empty(tuple(max(size, 0) for size in spec.shape), object)
    return casting.exact_cast(casting.as_array(value, repr(name)), dtype, repr(name))


def _array_space(
    spec: specs.Array, shape: tuple[int, ...], name: str, room: Room
) -> spaces.Space[Any]:
    kind = spec.dtype.kind
    if isinstance(spec, specs.StringArray) and spec.string_type is str and 0 not in shape:
        return _text(shape)
    if kind == "b" and 0 in shape:
        return spaces.Box(0, 1, shape, np.int8)  # A MultiBinary cannot be empty.
    if kind == "b":
        return multi_binary(shape, shape, room) if shape else spaces.Discrete(2)
    if kind in "iu":
        return _integers(spec, shape, room)
    if kind == "f":
        return _floats(spec, shape, room)
    raise SpecError(
        f"{name!r} is an array of {spec.dtype} with shape {list(shape)}, for which Gymnasium has "
        "no space: leave it out with requested_observations"
    )


def _text(shape: tuple[int, ...]) -> spaces.Space[Any]:
    if not shape:
        return AnyText()
    return spaces.Tuple(tuple(_text(shape[1:]) for _ in range(shape[0])))


def _integers(spec: specs.Array, shape: tuple[int, ...], room: Room) -> spaces.Space[Any]:
    low, high = bounds_of(spec)
    if isinstance(spec, specs.BoundedArray) and not shape:
        # Python integers, because they do not overflow.
        start, count = int(low), int(high) - int(low) + 1
        if count <= _INT64_MAX and start + count - 1 <= _INT64_MAX:
            return spaces.Discrete(count, start=start)
    if np.size(low) == np.size(high) == 1:
        return uniform_box(low.item(), high.item(), shape, spec.dtype, room, exact=True)
    return ExactBox(
        np.array(np.broadcast_to(low, shape), spec.dtype),
        np.array(np.broadcast_to(high, shape), spec.dtype),
        dtype=spec.dtype.type,
    )


def _floats(spec: specs.Array, shape: tuple[int, ...], room: Room) -> spaces.Box:
    low, high = bounds_of(spec)
    # A bound at the limit of the dtype is no restriction; and the distance of two bounds beyond
    # half of it would be infinite, which cannot be sampled.
    largest = np.finfo(spec.dtype).max / 2
    low = np.where(low < -largest, -np.inf, low)
    high = np.where(high > largest, np.inf, high)
    if np.size(low) == np.size(high) == 1:
        return uniform_box(low.item(), high.item(), shape, spec.dtype, room, exact=False)
    return spaces.Box(
        np.array(np.broadcast_to(low, shape), spec.dtype),
        np.array(np.broadcast_to(high, shape), spec.dtype),
        dtype=spec.dtype.type,
    )
