"""Elements of a space as JSON values and as arrays that conform to dm_env specs.

The protocol document uses the names "to_jsonable" and "from_jsonable" ("Actions",
"Observations"). The JSON value of an array is nested lists, that of an element of a Tuple the
list of its parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting

__all__ = ["conform", "from_jsonable", "sample", "to_jsonable"]


def to_jsonable(spec: Any, value: Any, where: str, *, check_bounds: bool) -> Any:
    """Returns the JSON value of an element of a space.

    Args:
      spec: a dm_env spec, or a structure of them.
      value: a value that conforms to it, or can be cast to it without a change of value.
      where: the name of the value in error messages.
      check_bounds: whether a value outside its bounds is an error. It is for actions.
        Observations of many environments exceed their bounds, so theirs are not checked.

    Raises:
      SpecError: the structure, shape or type differs, a value is outside its bounds, or a
        value is NaN or infinite, which JSON cannot express. The message contains the path.
    """
    if isinstance(spec, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(spec):
            raise SpecError(
                f"{where}: expected a mapping with keys {', '.join(map(repr, sorted(spec)))}, "
                f"got {_describe(value)}"
            )
        parts = [
            to_jsonable(spec[key], value[key], f"{where}.{key}", check_bounds=check_bounds)
            for key in sorted(spec)
        ]
        return parts[0] if len(parts) == 1 else parts
    if isinstance(spec, tuple | list):
        if not isinstance(value, tuple | list | np.ndarray) or len(value) != len(spec):
            raise SpecError(f"{where}: expected {len(spec)} parts, got {_describe(value)}")
        return [
            to_jsonable(part, item, f"{where}.{index}", check_bounds=check_bounds)
            for index, (part, item) in enumerate(zip(spec, value, strict=True))
        ]
    if spec.dtype.kind not in "biuf":
        return np.asarray(value).tolist()
    array = conform(spec, casting.as_array(value, where), where)
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise SpecError(f"{where}: {_describe(array)} has a NaN or infinity; JSON has neither")
    if check_bounds:
        _check_bounds(spec, array, where)
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)  # Its space is Discrete or MultiBinary: 0 and 1.
    return array.tolist()


def from_jsonable(spec: Any, value: Any, where: str, *, check_bounds: bool) -> Any:
    """Returns the element of a space that a JSON value represents: `to_jsonable` reversed.

    In observations of Discrete and MultiDiscrete spaces, true and false are 1 and 0.

    Returns:
      The structure of `spec`, with new arrays of its dtypes and shapes.

    Raises:
      SpecError: as `to_jsonable`.
    """
    if isinstance(spec, Mapping):
        keys = sorted(spec)
        values = [value] if len(keys) == 1 else _list_of(value, len(keys), where)
        return {
            key: from_jsonable(spec[key], item, f"{where}.{key}", check_bounds=check_bounds)
            for key, item in zip(keys, values, strict=True)
        }
    if isinstance(spec, tuple | list):
        items = zip(spec, _list_of(value, len(spec), where), strict=True)
        return _like(
            spec,
            [
                from_jsonable(part, item, f"{where}.{index}", check_bounds=check_bounds)
                for index, (part, item) in enumerate(items)
            ],
        )
    if spec.dtype.kind not in "biuf":
        raise SpecError(f"{where}: gym-socket-api has no encoding for {spec}")
    array = _array(value, where)
    if array.size == 0 and 0 in spec.shape and array.shape == spec.shape[: array.ndim]:
        array = array.reshape(spec.shape)  # Lists end at the first axis without elements.
    if array.dtype.kind == "b" and spec.dtype.kind != "b":
        if spec.dtype == np.int64 and not check_bounds:
            # gym's own Blackjack observes a bool where its space has a Discrete(2).
            return conform(spec, array.astype(np.int64), where)
        raise SpecError(f"{where}: {_describe(value)} is true or false; expected a number")
    array = conform(spec, array, where)
    if check_bounds:
        _check_bounds(spec, array, where)
    return array


def conform(spec: specs.Array, array: npt.NDArray[Any], where: str) -> npt.NDArray[Any]:
    """Returns `array` in the dtype of `spec`; SpecError if its shape or a value does not fit."""
    if array.shape != spec.shape:
        raise SpecError(f"{where}: has shape {list(array.shape)}; expected {list(spec.shape)}")
    return casting.exact_cast(array, spec.dtype, where)


def sample(spec: Any, random: np.random.Generator) -> Any:
    """Returns a random element.

    Integers are uniform within their bounds, and so are floats with two finite bounds. The
    distance of a float to a single finite bound is exponential; without one it is normal.
    """
    if isinstance(spec, Mapping):
        return {key: sample(part, random) for key, part in spec.items()}
    if isinstance(spec, tuple | list):
        return _like(spec, [sample(part, random) for part in spec])
    if spec.dtype.kind == "b":
        return random.integers(2, size=spec.shape).astype(bool)
    if spec.dtype.kind in "iu":
        info = np.iinfo(spec.dtype)
        is_bounded = isinstance(spec, specs.BoundedArray)
        low, high = (spec.minimum, spec.maximum) if is_bounded else (info.min, info.max)
        return np.asarray(
            random.integers(low, high, size=spec.shape, dtype=spec.dtype, endpoint=True)
        )
    if spec.dtype.kind != "f":
        raise SpecError(f"cannot sample {spec}")
    low, high = -np.inf, np.inf
    if isinstance(spec, specs.BoundedArray):
        low, high = spec.minimum, spec.maximum
    low, high = (np.broadcast_to(bound, spec.shape).astype(np.float64) for bound in (low, high))
    value = random.standard_normal(spec.shape)
    distance = random.exponential(size=spec.shape)
    fraction = random.random(spec.shape)
    with np.errstate(invalid="ignore", over="ignore"):
        value = np.where(np.isfinite(low), low + distance, value)
        value = np.where(np.isfinite(high) & ~np.isfinite(low), high - distance, value)
        # A weighted sum, because high - low may overflow.
        inside = low * (1 - fraction) + high * fraction
        value = np.where(np.isfinite(low) & np.isfinite(high), inside, value)
    return np.clip(value, low, high).astype(spec.dtype)


def _like(spec: Any, parts: list[Any]) -> Any:
    """A sequence of the type of `spec`, which may be a named tuple."""
    return spec._make(parts) if hasattr(spec, "_make") else type(spec)(parts)


def _array(value: Any, where: str) -> npt.NDArray[Any]:
    """Returns nested lists of numbers, decoded from JSON, as an array."""
    try:
        array = np.array(value)
    except ValueError as error:
        raise SpecError(f"{where}: {_describe(value)} is not an array: {error}") from None
    if array.dtype.kind not in "biuf":
        raise SpecError(f"{where}: {_describe(value)} is not an array of 64-bit numbers")
    return array


def _check_bounds(spec: specs.Array, array: npt.NDArray[Any], where: str) -> None:
    if not isinstance(spec, specs.BoundedArray) or array.dtype.kind == "b":
        if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
            raise SpecError(f"{where}: {_describe(array)} is not finite")
        return
    fits = (array >= spec.minimum) & (array <= spec.maximum)
    if array.dtype.kind == "f":
        fits &= np.isfinite(array)
    if np.all(fits):
        return
    index = tuple(int(i) for i in np.argwhere(~np.asarray(fits))[0])
    element = f"element {list(index)}" if index else "the value"
    low, high = (
        np.broadcast_to(bound, array.shape)[index].item() for bound in (spec.minimum, spec.maximum)
    )
    raise SpecError(
        f"{where}: {element} is {array[index].item()!r}; expected a number from {low!r} to {high!r}"
    )


def _list_of(value: Any, length: int, where: str) -> list[Any]:
    if not isinstance(value, list) or len(value) != length:
        raise SpecError(f"{where}: expected a list of {length} parts, got {_describe(value)}")
    return value


def _describe(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
