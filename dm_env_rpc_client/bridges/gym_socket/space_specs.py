"""Spaces of gym-socket-api to dm_env specs, and specs to spaces.

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
the Tuple of its values in the order of their keys, or its value if it has only one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.bridges.gym_socket.space_json import (
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    UnknownSpace,
)
from dm_env_rpc_client.errors import SpecError

__all__ = ["element_count", "leaves", "single_leaf", "space_to_spec", "spec_to_space"]


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
    dtype = _box_dtype(space) if box_dtype is None else np.dtype(box_dtype)
    low, high = _cast_bounds(space.low, dtype), _cast_bounds(space.high, dtype)
    return specs.BoundedArray(space.shape, dtype, low, high, name)


def spec_to_space(spec: Any) -> Space:
    """Returns the space of a dm_env spec, or of a structure of them.

    A spec of other values than numbers, bools and arrays of these is an `UnknownSpace`.

    Raises:
      SpecError: a dimension is of variable length.
    """
    if isinstance(spec, tuple | list | Mapping):
        parts = _parts(spec)
        if isinstance(spec, Mapping) and len(parts) == 1:
            return spec_to_space(parts[0])
        return Tuple(tuple(map(spec_to_space, parts)))
    if any(size < 0 for size in spec.shape):
        raise SpecError(f"gym-socket-api has no arrays of variable length, such as {spec}")
    if spec.dtype.kind not in "biuf":
        return UnknownSpace(type(spec).__name__)
    if isinstance(spec, specs.DiscreteArray):
        return Discrete(spec.num_values)
    low, high = _bounds(spec)
    is_vector = len(spec.shape) == 1
    if spec.dtype.kind == "b" and spec.shape == ():
        return Discrete(2)
    if is_vector and (spec.dtype.kind == "b" or _is_binary(spec)):
        return MultiBinary(spec.shape[0])
    if is_vector and spec.dtype.kind in "iu" and spec.dtype != np.uint8:
        bounds = [np.broadcast_to(bound, spec.shape).tolist() for bound in (low, high)]
        if all(bound < 1 << 63 for bound in bounds[1]):
            return MultiDiscrete(tuple(bounds[0]), tuple(bounds[1]))
    return Box(np.broadcast_to(low, spec.shape), np.broadcast_to(high, spec.shape))


def leaves(spec: Any) -> Iterator[specs.Array]:
    """Yields the specs of a structure, in the order of the parts of a Tuple."""
    if isinstance(spec, tuple | list | Mapping):
        for part in _parts(spec):
            yield from leaves(part)
    else:
        yield spec


def single_leaf(spec: Any) -> specs.Array | None:
    """Returns the spec whose values are sent as one array; None for a Tuple."""
    while isinstance(spec, Mapping) and len(spec) == 1:
        (spec,) = spec.values()
    return None if isinstance(spec, tuple | list | Mapping) else spec


def element_count(spec: Any) -> int:
    """The number of elements of all leaves together."""
    return sum(math.prod(leaf.shape) for leaf in leaves(spec))


def _parts(spec: Any) -> list[Any]:
    return [spec[key] for key in sorted(spec)] if isinstance(spec, Mapping) else list(spec)


def _box_dtype(space: Box) -> np.dtype[Any]:
    is_image = space.low.size > 0 and bool(np.all(space.low == 0) and np.all(space.high == 255))
    return np.dtype(np.uint8 if is_image else np.float64)


def _cast_bounds(bounds: npt.NDArray[np.float64], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    if dtype.kind not in "iu":
        with np.errstate(over="ignore"):
            return bounds.astype(dtype)
    info = np.iinfo(dtype)
    # As Python numbers, because float64 cannot represent the limits of int64.
    within = [int(max(info.min, min(info.max, bound))) for bound in bounds.ravel().tolist()]
    return np.array(within, dtype).reshape(bounds.shape)


def _bounds(spec: specs.Array) -> tuple[Any, Any]:
    if isinstance(spec, specs.BoundedArray) and spec.dtype.kind != "b":
        return spec.minimum, spec.maximum
    if spec.dtype.kind in "iu":
        info = np.iinfo(spec.dtype)
        return np.array(info.min, spec.dtype), np.array(info.max, spec.dtype)
    return (0, 1) if spec.dtype.kind == "b" else (-np.inf, np.inf)


def _is_binary(spec: specs.Array) -> bool:
    """Whether this is the spec that `space_to_spec` makes of a MultiBinary."""
    return bool(
        isinstance(spec, specs.BoundedArray)
        and spec.dtype == np.int8
        and np.all(spec.minimum == 0)
        and np.all(spec.maximum == 1)
    )
