"""Conversion of dm_env specs to Gymnasium spaces, and of values between the two.

| spec | space |
| --- | --- |
| integer scalar with bounds, at most 2**63 - 1 values | Discrete, with `start` |
| bool scalar | Discrete(2) |
| bool array | MultiBinary |
| other integers and floats | Box; unbounded ones have the limits of the dtype, or infinity |
| string | Text of any characters; an array of strings is a Tuple of Texts |
| variable length along the first axis | Sequence |
| dict; list or tuple | Dict; Tuple |

A Discrete has dtype int64 and a MultiBinary int8, as everywhere in Gymnasium. All other values
keep the dtype of their spec. Actions are cast to the dtype of their spec, and a cast that would
change a value is an error.

A few bytes from a peer can describe a Box of any size, for which Gymnasium allocates four arrays
of bounds with the shape of the Box. In this module, the bounds are views of a single element if
full arrays would exceed the memory budget `Room`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, iterate

from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.memory_limits import MAX_MESSAGE_BYTES, Limits, largest_array
from dm_env_rpc_client.tensors.specs import bounds_of

_ARRAY_BYTES = 1 << 20
"""The maximum number of bytes for the bound arrays of all spaces in one description. For a batch of
N rows, the arrays take N times as many bytes."""

_EXPANDED_BYTES = 16 << 20
"""The maximum number of bytes that a description's spaces may take beyond the size of the
description itself."""

_CHARACTER_BYTES = 250
"""The memory to reserve for each character of a Text, in bytes."""

_SIDES = ("low", "high", "bounded_below", "bounded_above")


class Room:
    """The memory budget for the spaces of one description.

    Args:
      limits: the limits of the messages that carry the elements; None for spaces of an
        environment in this process.
    """

    def __init__(self, limits: Limits | None = None):
        self._limits = limits
        self._array_bytes = _ARRAY_BYTES
        self._expanded_bytes = _EXPANDED_BYTES
        self._element_bytes = 0

    @contextlib.contextmanager
    def element(self) -> Iterator[None]:
        """Return a context for reading the spaces of all parts of one element."""
        others, self._element_bytes = self._element_bytes, 0
        yield
        self._element_bytes = others

    def check_element(self, shape: tuple[int, ...], dtype: np.dtype[Any], where: str) -> None:
        """Raise ProtocolError if an element of a space does not fit into a message.

        Args:
          shape: the shape of an element, or of a part of one.
          dtype: the dtype.
          where: the name of the space in error messages.
        """
        # NumPy counts an empty dimension as 1, too.
        size = math.prod(max(length, 1) for length in shape) * dtype.itemsize
        most = MAX_MESSAGE_BYTES if self._limits is None else largest_array(self._limits)
        self._element_bytes += size
        if self._element_bytes > most:
            together = "," if size > most else f" ({self._element_bytes} with earlier parts),"
            raise ProtocolError(
                f"{where}: an element of shape {list(shape)} and dtype {dtype} takes {size} bytes"
                f"{together} but a message that contains it is limited to {most} bytes "
                "(Limits.message_bytes and expanded_bytes); raise the limits, or have the server "
                "use smaller arrays"
            )

    def takes(self, size: int) -> bool:
        """Reserve `size` bytes for arrays of bounds, and return whether the arrays fit."""
        fits = size <= self._array_bytes
        self._array_bytes -= size if fits else 0
        return fits

    def expand(self, size: int) -> None:
        """Reserve `size` bytes beyond the description's own, or raise ValueError if over budget."""
        self._expanded_bytes -= size
        if self._expanded_bytes < 0:
            raise ValueError(
                f"its spaces would take {size} bytes beyond the size of their description, which "
                f"is more than remains of the {_EXPANDED_BYTES} bytes allowed"
            )

    def take_characters(self, count: int) -> None:
        """Reserve memory for `count` characters of a Text, or raise ValueError if over budget."""
        self.expand(count * _CHARACTER_BYTES)


class ExactBox(spaces.Box):
    """A Box of integers that samples integers directly.

    Gymnasium's Box samples floats and rounds them down. As a result, its samples never include
    some large numbers and can exceed the upper bound. A sample without dimensions is a NumPy
    scalar, which the Box itself rejects as an element.
    """

    def sample(self, mask: None = None, probability: None = None) -> npt.NDArray[Any]:
        """Draw integers uniformly from the whole range. A Box does not support masks."""
        low, high, dtype = (cast("Any", value) for value in (self.low, self.high, self.dtype))
        return np.asarray(self.np_random.integers(low, high, dtype=dtype, endpoint=True))


class _Wide(spaces.Box):
    """A Box whose bounds are each a read-only view of a single element.

    The space has the same elements and samples as a Box, and is compared in the same way.

    Args:
      low: the lower bound of all elements.
      high: the upper bound of all elements.
      shape: the shape, with at least one dimension.
      dtype: the dtype.
    """

    def __init__(self, low: Any, high: Any, shape: tuple[int, ...], dtype: Any):
        one = (1,) * len(shape)
        super().__init__(np.full(one, low, dtype), np.full(one, high, dtype), dtype=dtype)
        self._shape = shape
        for side in _SIDES:
            setattr(self, side, np.broadcast_to(getattr(self, side), shape))

    def bound_by(self, side: str, is_bounded: bool) -> None:
        """Set the mask `side`, "bounded_below" or "bounded_above", to `is_bounded` throughout."""
        setattr(self, side, np.broadcast_to(np.array(is_bounded), self.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Wide):
            return super().__eq__(other)
        return (
            self.shape == other.shape
            and self.dtype == other.dtype
            and all(
                np.allclose(getattr(self, side).flat[0], getattr(other, side).flat[0])
                for side in ("low", "high")
            )
        )

    __hash__ = None  # type: ignore[assignment]  # as that of a Box

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickling a view would expand it to all its elements.
        ends = [getattr(self, side).flat[0] for side in _SIDES]
        others = {key: value for key, value in self.__dict__.items() if key not in _SIDES}
        return _wide, (type(self), self.shape, self.dtype, *ends), others


class WideBox(_Wide):
    """A Box of many elements that share one lower and one upper bound."""


class WideExactBox(_Wide, ExactBox):
    """A `WideBox` of integers that samples integers directly."""


def _wide(
    kind: type[_Wide], shape: tuple[int, ...], dtype: Any, low: Any, high: Any, *bounded: Any
) -> _Wide:
    made = kind(low, high, shape, dtype)
    for side, is_bounded in zip(_SIDES[2:], bounded, strict=True):
        made.bound_by(side, bool(is_bounded))
    return made


def uniform_box(
    low: Any, high: Any, shape: tuple[int, ...], dtype: np.dtype[Any], room: Room, exact: bool
) -> spaces.Box:
    """Return a Box with one lower and one upper bound for all elements.

    Args:
      low: the lower bound, which is finite for integers.
      high: the upper bound.
      shape: the shape.
      dtype: the dtype.
      room: the memory budget for the bounds.
      exact: whether to return an `ExactBox`.
    """
    size = 2 * math.prod(shape) * (dtype.itemsize + 1)
    if not shape or room.takes(size):
        lows, highs = np.full(shape, low, dtype), np.full(shape, high, dtype)
        kind: Any = ExactBox if exact else spaces.Box
        made: spaces.Box = kind(lows, highs, dtype=dtype.type)
        return made
    return (WideExactBox if exact else WideBox)(low, high, shape, dtype.type)


def one_bound(space: spaces.Box, side: str) -> Any:
    """Return the attribute `side` of a Box: a single number for a wide Box, otherwise an array."""
    bound = getattr(space, side)
    return bound.flat[0] if isinstance(space, _Wide) else bound


class WideMultiBinary(spaces.MultiBinary):
    """A MultiBinary with many elements, whose batches are `WideBox` spaces."""


def multi_binary(n: Any, shape: tuple[int, ...], room: Room) -> spaces.MultiBinary:
    """Return a MultiBinary.

    Args:
      n: the argument of MultiBinary.
      shape: the resulting shape.
      room: the memory budget for the bounds of a batch of the space.
    """
    is_small = room.takes(4 * math.prod(shape))
    return (spaces.MultiBinary if is_small else WideMultiBinary)(n)


@batch_space.register(WideMultiBinary)
def _batch_wide_multi_binary(space: WideMultiBinary, n: int = 1) -> WideBox:
    return WideBox(0, 1, (n, *space.shape), np.int8)


@batch_space.register(ExactBox)
def _batch_exact_box(space: ExactBox, n: int = 1) -> ExactBox:
    low, high = (np.repeat(bound[np.newaxis], n, axis=0) for bound in (space.low, space.high))
    return ExactBox(low, high, dtype=space.dtype.type)


@batch_space.register(WideBox)
@batch_space.register(WideExactBox)
def _batch_wide_box(space: Any, n: int = 1) -> Any:
    ends = [getattr(space, side).flat[0] for side in _SIDES]
    return _wide(type(space), (n, *space.shape), space.dtype.type, *ends)


for _kind in (ExactBox, WideBox, WideExactBox):
    iterate.register(_kind, iterate.dispatch(spaces.Box))
iterate.register(WideMultiBinary, iterate.dispatch(spaces.MultiBinary))


_TEXT_LENGTH = 64
"""The length, in characters, of the longest sample. Longer strings are valid but never sampled."""

_INT64_MAX = 2**63 - 1


class AnyText(spaces.Text):
    """A Text that accepts any string, but samples only short, alphanumeric strings."""

    def __init__(self) -> None:
        super().__init__(_TEXT_LENGTH, min_length=0)

    def contains(self, x: Any) -> bool:
        """Whether `x` is a string."""
        return isinstance(x, str)


def spec_to_space(spec: Any, name: str, room: Room | None = None) -> spaces.Space[Any]:
    """Convert a spec, or a structure of specs, to a space.

    Args:
      spec: the spec.
      name: the name of the spec in error messages.
      room: the memory budget for the bounds of this and other spaces; None for a separate budget.

    Raises:
      SpecError: no space can represent the values, which are messages, complex numbers, or arrays
        of variable length along an axis other than the first.
    """
    room = room or Room()
    if isinstance(spec, Mapping):
        # As pairs, because Gymnasium sorts the keys of a mapping.
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
                f"{name!r} has shape {list(shape)}, but Gymnasium supports variable length only "
                "along the first axis; use requested_observations to leave out this observation"
            )
        # Specs of variable length have scalar bounds, which fit the shape of an element.
        element = _array_space(spec, shape[1:], name, room)
        is_stacked = len(shape) > 1 and not isinstance(element, spaces.Tuple)
        return spaces.Sequence(element, stack=is_stacked)
    return _array_space(spec, shape, name, room)


def to_space(space: spaces.Space[Any], value: Any) -> Any:
    """Convert a dm_env value to an element of its space, copying arrays only if necessary."""
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
    """Convert an element of an array space, or a stack of elements, to the space's dtype."""
    return np.asarray(value, space.dtype)


def from_space(spec: Any, value: Any, name: str) -> Any:
    """Convert an element of a space to a value that matches its spec; the inverse of `to_space`.

    Raises:
      SpecError: the structure of the value does not match the spec, or a cast would change the
        value.
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
        # The spec may be a named tuple, whose constructor takes no iterable.
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
        "no space; use requested_observations to leave out this observation"
    )


def _text(shape: tuple[int, ...]) -> spaces.Space[Any]:
    if not shape:
        return AnyText()
    return spaces.Tuple(tuple(_text(shape[1:]) for _ in range(shape[0])))


def _integers(spec: specs.Array, shape: tuple[int, ...], room: Room) -> spaces.Space[Any]:
    low, high = bounds_of(spec)
    if isinstance(spec, specs.BoundedArray) and not shape:
        # As Python integers, which do not overflow.
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
    # A bound at the limit of the dtype is no restriction. Beyond half of it, the distance of
    # two bounds would be infinite, and such a Box cannot be sampled.
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
