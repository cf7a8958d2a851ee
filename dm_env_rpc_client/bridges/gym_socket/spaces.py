"""The spaces of gym-socket-api: their JSON form, and dm_env specs of them and for them.

Infinite bounds are written as 1e30, since JSON has no infinity, and read back as infinite
("Spaces" in the protocol document).

A Box has no dtype. If all its bounds are 0 and 255, it is an image and becomes uint8, the type
of byte lists; any other becomes float64, as JSON numbers do.

| space | spec |
| --- | --- |
| Box | BoundedArray |
| Discrete | DiscreteArray, int64 |
| MultiBinary | BoundedArray, int8 [n], 0 to 1 |
| MultiDiscrete | BoundedArray, int64 [n], low to high |
| Tuple | tuple |

The conversion to spaces loses dtypes and names. There is no space for a mapping: it becomes
the Tuple of its values in the mapping's own order, or its value if it has only one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tree
from dm_env import specs

from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import structures
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.variable_specs import bounds_of

MAX_ELEMENTS = 1 << 20
"""Elements of a space, all subspaces together."""

_INFINITE = 1e30
_EXACT = 1 << 53


class Box:
    """Arrays within bounds, each of which is inclusive.

    Args:
      low: float64, of the shape of the arrays.
      high: the same.
    """

    def __init__(self, low: npt.ArrayLike, high: npt.ArrayLike):
        self.low = np.array(low, np.float64)
        self.high = np.array(high, np.float64)
        self.low.setflags(write=False)
        self.high.setflags(write=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the arrays."""
        return self.low.shape

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Box)
            and np.array_equal(self.low, other.low)
            and np.array_equal(self.high, other.high)
        )

    __hash__ = None  # type: ignore[assignment]  # its arrays have no hash either

    def __repr__(self) -> str:
        return f"Box(low={self.low.tolist()}, high={self.high.tolist()})"


@dataclasses.dataclass(frozen=True)
class Discrete:
    """The integers from 0 to n - 1."""

    n: int


@dataclasses.dataclass(frozen=True)
class MultiBinary:
    """Vectors of n elements, each 0 or 1."""

    n: int


@dataclasses.dataclass(frozen=True)
class MultiDiscrete:
    """Vectors of integers, each from its `low` to its `high` inclusive."""

    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Tuple:
    """One element of each subspace."""

    subspaces: tuple[Space, ...]


@dataclasses.dataclass(frozen=True)
class UnknownSpace:
    """A space that the protocol does not describe; only the name of its type is sent."""

    type: str


Space: TypeAlias = "Box | Discrete | MultiBinary | MultiDiscrete | Tuple | UnknownSpace"


def to_json(space: Space) -> dict[str, Any]:
    """Returns the JSON value of a space."""
    if isinstance(space, UnknownSpace):
        return {"type": space.type}
    name = type(space).__name__
    if isinstance(space, Box):
        low, high = _finite(space.low), _finite(space.high)
        return {"type": name, "shape": list(space.shape), "low": low, "high": high}
    if isinstance(space, MultiDiscrete):
        return {"type": name, "low": list(space.low), "high": list(space.high)}
    if isinstance(space, Tuple):
        return {"type": name, "subspaces": [to_json(part) for part in space.subspaces]}
    return {"type": name, "n": space.n}


def from_json(value: Any, where: str) -> Space:
    """Returns the space of a JSON value.

    Args:
      value: what `bounded_json.decode` returned.
      where: the name of the space in error messages.

    Returns:
      The space; an `UnknownSpace` if its type is unknown.

    Raises:
      ProtocolError: it does not describe a space, or one of more than MAX_ELEMENTS elements.
    """
    space = _read(value, where)
    _check_size(_size(space), where)
    return space


def space_to_spec(space: Space, name: str, box_dtype: npt.DTypeLike | None = None) -> Any:
    """Returns the dm_env spec of a space; a tuple of them for a Tuple.

    Args:
      space: the space.
      name: the name of the spec; a subspace appends its index, as in "action.0".
      box_dtype: the dtype of every Box; None for the rule above. Bounds outside its range
        become the limits of the range.

    Raises:
      SpecError: the type of the space is unknown.
    """
    if isinstance(space, Tuple):
        return tuple(
            space_to_spec(part, f"{name}.{index}", box_dtype)
            for index, part in enumerate(space.subspaces)
        )
    if isinstance(space, Discrete):
        return specs.DiscreteArray(space.n, np.int64, name)
    if isinstance(space, MultiBinary):
        return specs.BoundedArray((space.n,), np.int8, 0, 1, name)
    if isinstance(space, MultiDiscrete):
        return specs.BoundedArray((len(space.low),), np.int64, space.low, space.high, name)
    if isinstance(space, UnknownSpace):
        raise SpecError(
            f"{name}: the server's space is of type {space.type!r}, which gym-socket-api does not "
            "describe; known are Box, Discrete, MultiBinary, MultiDiscrete and Tuple"
        )
    is_image = space.low.size > 0 and np.all(space.low == 0) and np.all(space.high == 255)
    dtype = np.dtype(box_dtype or (np.uint8 if is_image else np.float64))
    low, high = _cast_bounds(space.low, dtype), _cast_bounds(space.high, dtype)
    return specs.BoundedArray(space.shape, dtype, low, high, name)


def spec_to_space(spec: Any) -> Space:
    """Returns the space of a dm_env spec, or of a structure of them.

    A spec of other values than numbers, bools and arrays of these is an `UnknownSpace`.

    Raises:
      SpecError: a dimension is of variable length.
    """
    parts = parts_of(spec)
    if parts is not None:
        spaces = tuple(map(spec_to_space, parts.values()))
        return spaces[0] if isinstance(spec, Mapping) and len(spaces) == 1 else Tuple(spaces)
    if any(size < 0 for size in spec.shape):
        raise SpecError(f"gym-socket-api has no arrays of variable length, such as {spec}")
    kind = spec.dtype.kind
    if kind not in "biuf":
        return UnknownSpace(type(spec).__name__)
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(spec.num_values)
    low, high = bounds_of(spec)
    if kind == "b" and spec.shape == ():
        return Discrete(2)
    low, high = np.broadcast_to(low, spec.shape), np.broadcast_to(high, spec.shape)
    if len(spec.shape) == 1:
        # An int8 BoundedArray is what `space_to_spec` makes of a MultiBinary.
        if kind == "b" or (
            isinstance(spec, specs.BoundedArray)
            and spec.dtype == np.int8
            and np.all(low == 0)
            and np.all(high == 1)
        ):
            return MultiBinary(spec.shape[0])
        highs = high.tolist()
        if kind in "iu" and spec.dtype != np.uint8 and max(highs, default=0) < 1 << 63:
            return MultiDiscrete(tuple(low.tolist()), tuple(highs))
    return Box(low, high)


def parts_of(spec: Any) -> dict[Any, Any] | None:
    """Returns the parts of a structure by key, in the order of a Tuple; None for a spec."""
    if isinstance(spec, Mapping):
        return dict(spec)
    return dict(enumerate(spec)) if isinstance(spec, tuple | list) else None


def single_leaf(spec: Any) -> specs.Array | None:
    """Returns the spec whose values are sent as one array; None for a Tuple."""
    _, leaf = structures.single_leaf(spec)
    return None if parts_of(leaf) is not None else leaf


def element_count(spec: Any) -> int:
    """The number of elements of all leaves together."""
    return sum(math.prod(leaf.shape) for leaf in tree.flatten(spec))


def _read(value: Any, where: str) -> Space:
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise ProtocolError(f'{where}: a space is an object with a "type", got {value!r:.60}')
    name = value["type"]
    where = f"{where}: {name}"
    if name == "Box":
        return _read_box(value, where)
    if name == "Discrete":
        return Discrete(_count(value, where, 1, 1 << 63))
    if name == "MultiBinary":
        return MultiBinary(_count(value, where, 0, MAX_ELEMENTS))
    if name == "MultiDiscrete":
        return _read_multi_discrete(value, where)
    if name == "Tuple":
        parts = value.get("subspaces")
        if not isinstance(parts, list):
            raise ProtocolError(f'{where}: "subspaces" is a list of spaces, got {parts!r:.60}')
        return Tuple(tuple(_read(part, f"{where}[{index}]") for index, part in enumerate(parts)))
    return UnknownSpace(name)


def _read_box(value: Mapping[str, Any], where: str) -> Box:
    shape = tuple(_integers(value, "shape", where))
    if len(shape) > MAX_DIMENSIONS or any(size < 0 or size > MAX_ELEMENTS for size in shape):
        raise ProtocolError(f"{where}: invalid shape {list(shape)!r:.60}")
    size = math.prod(shape)
    _check_size(size, where)
    low = _numbers(value, "low", size, where)
    high = _numbers(value, "high", size, where)
    low[low <= -_INFINITE] = -np.inf
    high[high >= _INFINITE] = np.inf
    if not np.all(low <= high):  # NaN fails every comparison.
        raise ProtocolError(f"{where}: a low is above its high, or is not a number")
    return Box(low.reshape(shape), high.reshape(shape))


def _read_multi_discrete(value: Mapping[str, Any], where: str) -> MultiDiscrete:
    low = tuple(_integers(value, "low", where))
    high = tuple(_integers(value, "high", where))
    if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=True)):
        raise ProtocolError(f"{where}: low {low!r:.60} and high {high!r:.60} do not match")
    if any(not -(1 << 63) <= bound < 1 << 63 for bound in low + high):
        raise ProtocolError(f"{where}: a bound does not fit a 64-bit integer")
    return MultiDiscrete(low, high)


def _finite(bounds: npt.NDArray[np.float64]) -> list[int | float]:
    clipped = np.clip(bounds, -_INFINITE, _INFINITE).ravel().tolist()
    return [int(x) if abs(x) < _EXACT and x.is_integer() else x for x in clipped]


def _count(value: Mapping[str, Any], where: str, least: int, most: int) -> int:
    n: Any = value.get("n")
    if not _is_integer(n) or not least <= n <= most:
        raise ProtocolError(f'{where}: "n" is an integer from {least} to {most}, got {n!r:.60}')
    return int(n)


def _integers(value: Mapping[str, Any], key: str, where: str) -> list[int]:
    elements = value.get(key)
    if not isinstance(elements, list) or not all(map(_is_integer, elements)):
        raise ProtocolError(f'{where}: "{key}" is a list of integers, got {elements!r:.60}')
    return [int(element) for element in elements]


def _numbers(value: Mapping[str, Any], key: str, size: int, where: str) -> npt.NDArray[np.float64]:
    elements = value.get(key)
    if not isinstance(elements, list) or len(elements) != size:
        raise ProtocolError(
            f'{where}: "{key}" is a flat list of {size} numbers, according to the shape, got '
            f"{elements!r:.60}"
        )
    if not {type(element) for element in elements} <= {int, float}:
        raise ProtocolError(f'{where}: "{key}" has elements that are not numbers')
    try:
        return np.array(elements, np.float64)
    except OverflowError:
        raise ProtocolError(f'{where}: "{key}" has a number that does not fit a float64') from None


def _is_integer(value: Any) -> bool:
    # Languages with one type of number may write 5.0.
    return type(value) is int or (type(value) is float and value.is_integer())


def _size(space: Space) -> int:
    if isinstance(space, Tuple):
        return 1 + sum(map(_size, space.subspaces))
    if isinstance(space, Box):
        return space.low.size
    if isinstance(space, MultiBinary):
        return space.n
    return len(space.low) if isinstance(space, MultiDiscrete) else 1


def _check_size(size: int, where: str) -> None:
    if size > MAX_ELEMENTS:
        raise ProtocolError(f"{where}: {size} elements; at most {MAX_ELEMENTS} are allowed")


def _cast_bounds(bounds: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            return bounds.astype(dtype)
    info = np.iinfo(dtype)
    # As Python numbers, because float64 cannot represent the limits of int64.
    within = [int(max(info.min, min(info.max, bound))) for bound in bounds.ravel().tolist()]
    return np.array(within, dtype).reshape(bounds.shape)
