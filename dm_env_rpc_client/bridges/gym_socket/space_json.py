"""Converts Gymnasium spaces and their elements to and from gym-socket-api's JSON.

The protocol defines five types of space ("Spaces" in the protocol document). Infinite bounds are
written as 1e30, since JSON has no infinity, and 1e30 is read back as infinity.

| JSON | written for | read as |
| --- | --- | --- |
| Discrete | integer scalars starting at 0, bool scalars | Discrete |
| MultiBinary | vectors of bools, or of int8 from 0 to 1 | MultiBinary |
| MultiDiscrete | other vectors of integers, except uint8 | MultiDiscrete |
| Box | any other arrays | Box |
| Tuple | Tuple; Dict | Tuple |
| only the type | any other | SpecError |

A Box has no dtype in this protocol. A Box whose low bounds are all 0 and whose high bounds are
all 255 is treated as an image and becomes uint8, the type of byte lists. Any other Box becomes
float64, as JSON numbers do.

The protocol has no space for a mapping. A Dict is therefore written as the Tuple of its spaces, in
the Dict's own order, or as its only space if it has just one.

In dm_env form, elements are the structures described in `adaptors.gymnasium.elements`. The
protocol document ("Actions", "Observations") calls the conversion of an element to JSON
"to_jsonable" and the reverse conversion "from_jsonable". An array is represented in JSON as nested
lists, and an element of a Tuple as the list of its parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium.spaces import ExactBox
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.specs import bounds_of

MAX_ELEMENTS = 1 << 20
"""The maximum total number of elements in a space and its subspaces."""

_INFINITE = 1e30
_EXACT = 1 << 53
_INT64 = np.iinfo(np.int64)


class LargestDiscrete(spaces.Discrete):
    """The largest Discrete space, which contains all nonnegative int64 integers.

    Gymnasium stores the number of values as int64, which cannot represent 2**63.
    """

    def __init__(self) -> None:
        super().__init__(int(_INT64.max))
        count: Any = 1 << 63
        start: Any = 0
        self.n, self.start = count, start


def to_json(space: spaces.Space[Any], name: str) -> dict[str, Any]:
    """Return the JSON value that describes a space.

    Args:
      space: a space of Gymnasium's own types. For types outside the protocol, only the name of the
        type is written.
      name: the name of the space in errors; the key or index of a subspace is appended to it, as in
        "action.0".

    Raises:
      SpecError: the elements are arrays of variable length, or the space has no spec.
    """
    if isinstance(space, spaces.Dict):
        named = [to_json(part, f"{name}.{key}") for key, part in space.spaces.items()]
        return named[0] if len(named) == 1 else {"type": "Tuple", "subspaces": named}
    if isinstance(space, spaces.Tuple):
        parts = [to_json(part, f"{name}.{index}") for index, part in enumerate(space.spaces)]
        return {"type": "Tuple", "subspaces": parts}
    spec = elements.to_spec(space, name)
    if any(size < 0 for size in spec.shape):
        raise SpecError(
            f"gym-socket-api has no encoding for arrays of variable length, such as {spec}"
        )
    if spec.dtype.kind not in "biuf":
        return {"type": type(space).__name__}
    return _array_json(spec)


def from_json(value: Any, where: str, box_dtype: npt.DTypeLike | None = None) -> spaces.Space[Any]:
    """Return the space that a JSON value describes.

    Args:
      value: the result of `bounded_json.decode`.
      where: the name of the space in error messages.
      box_dtype: the dtype of every Box; None for uint8 or float64, depending on the bounds of the
        Box. Bounds outside the range of the dtype become the limits of the range.

    Raises:
      ProtocolError: the value is not a space, or has more than MAX_ELEMENTS elements.
      SpecError: the protocol does not define spaces of its type.
    """
    space = _read(value, where, box_dtype)
    _check_size(size_of(space), where)
    return space


def to_jsonable(spec: Any, structure: Any, where: str, *, check_bounds: bool) -> Any:
    """Return the JSON value that represents an element of a space.

    Args:
      spec: the result of `elements.to_spec` for the space.
      structure: the result of `elements.to_structure` for the element.
      where: the name of the value in error messages.
      check_bounds: whether a value outside its bounds is an error. True for actions, but not for
        observations, which exceed their bounds in many environments.

    Raises:
      SpecError: a shape differs from the spec, or a value is out of bounds, or is NaN or infinite,
        which JSON cannot express. The message contains the path of the value.
    """
    parts = _parts_of(spec)
    if parts is not None:
        items = [
            to_jsonable(part, structure[key], f"{where}.{key}", check_bounds=check_bounds)
            for key, part in parts.items()
        ]
        return items[0] if isinstance(spec, Mapping) and len(items) == 1 else items
    if spec.dtype.kind not in "biuf":
        return structure
    array = conform(spec, structure, where)
    if not np.all(np.isfinite(array)):
        raise SpecError(
            f"{where}: {array!r:.60} contains NaN or infinity, which JSON cannot represent"
        )
    if check_bounds:
        _check_bounds(spec, array, where)
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)  # Discrete and MultiBinary spaces have 0 and 1.
    return array.tolist()


def from_jsonable(spec: Any, value: Any, where: str, *, check_bounds: bool) -> Any:
    """Return the structure that a JSON value represents; the inverse of `to_jsonable`.

    In observations of Discrete and MultiDiscrete spaces, true and false are read as 1 and 0.

    Returns:
      A structure like `spec`, with new arrays of the dtypes and shapes in the specs.

    Raises:
      SpecError: the structure, a shape or a type differs from the spec, or a value is invalid for a
        reason given in `to_jsonable`.
    """
    parts = _parts_of(spec)
    if parts is not None:
        values = [value] if isinstance(spec, Mapping) and len(parts) == 1 else value
        if not isinstance(values, list) or len(values) != len(parts):
            raise SpecError(f"{where}: expected a list of {len(parts)} parts, got {value!r:.60}")
        found = {
            key: from_jsonable(part, item, f"{where}.{key}", check_bounds=check_bounds)
            for (key, part), item in zip(parts.items(), values, strict=True)
        }
        return found if isinstance(spec, Mapping) else tuple(found.values())
    if spec.dtype.kind not in "biuf":
        raise SpecError(f"{where}: gym-socket-api has no encoding for {spec}")
    array = _array(value, where)
    if array.size == 0 and 0 in spec.shape and array.shape == spec.shape[: array.ndim]:
        array = array.reshape(spec.shape)  # Lists end at the first axis without elements.
    if array.dtype.kind == "b" and spec.dtype.kind != "b":
        if spec.dtype == np.int64 and not check_bounds:
            # gym's own Blackjack returns a bool as observation of a Discrete(2).
            return conform(spec, array.astype(np.int64), where)
        raise SpecError(f"{where}: {value!r:.60} is boolean; expected a number")
    array = conform(spec, array, where)
    if check_bounds:
        _check_bounds(spec, array, where)
    return array


def conform(spec: specs.Array, array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Cast `array` to the dtype of `spec`; raise SpecError if its shape or values do not fit."""
    if array.shape != spec.shape:
        raise SpecError(f"{where}: has shape {list(array.shape)}; expected {list(spec.shape)}")
    return casting.exact_cast(array, spec.dtype, where)


def size_of(space: spaces.Space[Any]) -> int:
    """Return the number of elements in a space from `from_json`, plus one for each Tuple."""
    if isinstance(space, spaces.Tuple):
        return 1 + sum(map(size_of, space.spaces))
    return math.prod(space.shape or ())


def _array_json(spec: specs.Array) -> dict[str, Any]:
    dtype, shape = spec.dtype, list(spec.shape)
    low, high = (np.broadcast_to(bound, spec.shape).ravel() for bound in bounds_of(spec))
    lows, highs = low.tolist(), high.tolist()
    is_choice = isinstance(spec, specs.DiscreteArray)
    # A uint8 array is an image, which only a Box can be.
    is_integer = dtype.kind in "biu" and (is_choice or dtype != np.uint8)
    if is_integer and max(highs, default=0) < 1 << 63:
        if not shape and lows == [0]:
            return {"type": "Discrete", "n": highs[0] + 1}
        if len(shape) == 1:
            is_flags = dtype.kind == "b" or (
                dtype == np.int8 and not np.any(low) and bool(np.all(high == 1))
            )
            if is_flags:
                return {"type": "MultiBinary", "n": shape[0]}
            return {"type": "MultiDiscrete", "low": lows, "high": highs}
    return {"type": "Box", "shape": shape, "low": _finite(low), "high": _finite(high)}


def _finite(bounds: npt.NDArray[Any]) -> list[int | float]:
    clipped = np.clip(bounds.astype(np.float64), -_INFINITE, _INFINITE).tolist()
    return [int(x) if abs(x) < _EXACT and x.is_integer() else x for x in clipped]


def _read(value: Any, where: str, box_dtype: npt.DTypeLike | None) -> spaces.Space[Any]:
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise ProtocolError(f'{where}: a space must be an object with a "type", got {value!r:.60}')
    name = value["type"]
    if name not in _TYPES:
        raise SpecError(
            f"{where}: the server's space is of type {name!r:.60}, which gym-socket-api does not "
            f"define; known types are {', '.join(_TYPES)}"
        )
    inside = f"{where}: {name}"
    if name == "Box":
        return _read_box(value, inside, box_dtype)
    if name == "Discrete":
        n = _count(value, inside, 1, 1 << 63)
        return LargestDiscrete() if n > _INT64.max else spaces.Discrete(n)
    if name == "MultiBinary":
        n = _count(value, inside, 0, MAX_ELEMENTS)
        # Gymnasium has no empty MultiBinary.
        return spaces.MultiBinary(n) if n else ExactBox(0, 1, (0,), np.int8)
    if name == "MultiDiscrete":
        return _read_multi_discrete(value, inside)
    parts = value.get("subspaces")
    if not isinstance(parts, list):
        raise ProtocolError(f'{inside}: "subspaces" must be a list of spaces, got {parts!r:.60}')
    return spaces.Tuple(
        [_read(part, f"{inside}[{index}]", box_dtype) for index, part in enumerate(parts)]
    )


_TYPES = ("Box", "Discrete", "MultiBinary", "MultiDiscrete", "Tuple")


def _read_box(value: Mapping[str, Any], where: str, box_dtype: npt.DTypeLike | None) -> spaces.Box:
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
        raise ProtocolError(f"{where}: a low bound is above its high bound, or a bound is NaN")
    is_image = low.size > 0 and np.all(low == 0) and np.all(high == 255)
    dtype: Any = np.dtype(box_dtype or (np.uint8 if is_image else np.float64))
    low, high = _cast_bounds(low.reshape(shape), high.reshape(shape), dtype)
    return (ExactBox if dtype.kind in "iu" else spaces.Box)(low, high, dtype=dtype.type)


def _cast_bounds(
    low: npt.NDArray[Any], high: npt.NDArray[Any], dtype: np.dtype[Any]
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return bounds cast to a dtype and limited to its range."""
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        with np.errstate(over="ignore"):
            low, high = low.astype(dtype), high.astype(dtype)
        # Gymnasium rejects a low of infinity and a high of minus infinity.
        return np.asarray(np.minimum(low, limits.max)), np.asarray(np.maximum(high, limits.min))
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)

    def cast(bounds: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # As Python numbers, because float64 cannot represent the limits of int64.
        within = [int(max(least, min(most, bound))) for bound in bounds.ravel().tolist()]
        return np.array(within, dtype).reshape(bounds.shape)

    return cast(low), cast(high)


def _read_multi_discrete(value: Mapping[str, Any], where: str) -> spaces.Space[Any]:
    low, high = _integers(value, "low", where), _integers(value, "high", where)
    if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=True)):
        raise ProtocolError(
            f"{where}: low {low!r:.60} and high {high!r:.60} differ in length, or a low bound is "
            "above its high bound"
        )
    if any(not _INT64.min <= bound <= _INT64.max for bound in low + high):
        raise ProtocolError(f"{where}: a bound does not fit a 64-bit integer")
    counts = [b - a + 1 for a, b in zip(low, high, strict=True)]
    lows = np.array(low, np.int64)
    if max(counts, default=0) > _EXACT:  # Gymnasium samples a MultiDiscrete through float64.
        return ExactBox(lows, np.array(high, np.int64), dtype=np.int64)
    return spaces.MultiDiscrete(np.array(counts, np.int64), start=lows)


def _count(value: Mapping[str, Any], where: str, least: int, most: int) -> int:
    n: Any = value.get("n")
    if not _is_integer(n) or not least <= n <= most:
        raise ProtocolError(
            f'{where}: "n" must be an integer from {least} to {most}, got {n!r:.60}'
        )
    return int(n)


def _integers(value: Mapping[str, Any], key: str, where: str) -> list[int]:
    found = value.get(key)
    if not isinstance(found, list) or not all(map(_is_integer, found)):
        raise ProtocolError(f'{where}: "{key}" must be a list of integers, got {found!r:.60}')
    return [int(element) for element in found]


def _numbers(value: Mapping[str, Any], key: str, size: int, where: str) -> npt.NDArray[np.float64]:
    found = value.get(key)
    if not isinstance(found, list) or len(found) != size:
        raise ProtocolError(
            f'{where}: "{key}" must be a flat list of {size} numbers to match the shape, got '
            f"{found!r:.60}"
        )
    if not {type(element) for element in found} <= {int, float}:
        raise ProtocolError(f'{where}: "{key}" contains elements that are not numbers')
    try:
        return np.array(found, np.float64)
    except OverflowError:
        raise ProtocolError(
            f'{where}: "{key}" contains a number that does not fit in a float64'
        ) from None


def _is_integer(value: Any) -> bool:
    # Languages with a single numeric type may write 5.0.
    return type(value) is int or (type(value) is float and value.is_integer())


def _check_size(size: int, where: str) -> None:
    if size > MAX_ELEMENTS:
        raise ProtocolError(f"{where}: has {size} elements; at most {MAX_ELEMENTS} are allowed")


def _parts_of(spec: Any) -> dict[Any, Any] | None:
    """Return the parts of a structure by key, in Tuple order, or None for a single spec."""
    if isinstance(spec, Mapping):
        return dict(spec)
    return dict(enumerate(spec)) if isinstance(spec, tuple | list) else None


def _array(value: Any, where: str) -> npt.NDArray[Any]:
    """Convert nested lists of numbers, decoded from JSON, to an array."""
    try:
        array = np.array(value)
    except ValueError as error:
        raise SpecError(f"{where}: {value!r:.60} is not an array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise SpecError(f"{where}: {value!r:.60} is not an array of 64-bit numbers")
    return array


def _check_bounds(spec: specs.Array, array: npt.NDArray[Any], where: str) -> None:
    if array.dtype.kind == "b":
        return
    low, high = bounds_of(spec)
    fits = (array >= low) & (array <= high) & np.isfinite(array)
    if np.all(fits):
        return
    index, element = casting.first_outside(fits)
    low, high = (np.broadcast_to(bound, array.shape)[index].item() for bound in (low, high))
    expected = "a finite number" if array.dtype.kind == "f" else "a number"
    raise SpecError(
        f"{where}: {element} is {array[index].item()!r}; expected {expected} from {low!r} to "
        f"{high!r}"
    )
