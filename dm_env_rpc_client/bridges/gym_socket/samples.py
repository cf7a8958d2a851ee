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
import tree
from dm_env import specs

from dm_env_rpc_client.bridges.gym_socket.spaces import parts_of
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting, sampling
from dm_env_rpc_client.tensors.variable_specs import bounds_of


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
    parts = parts_of(spec)
    if parts is not None:
        if isinstance(spec, Mapping):
            if not isinstance(value, Mapping) or set(value) != set(spec):
                raise SpecError(
                    f"{where}: expected a mapping with keys {', '.join(map(repr, parts))}, "
                    f"got {value!r:.60}"
                )
        elif not isinstance(value, tuple | list | np.ndarray) or len(value) != len(parts):
            raise SpecError(f"{where}: expected {len(parts)} parts, got {value!r:.60}")
        items = [
            to_jsonable(part, value[key], f"{where}.{key}", check_bounds=check_bounds)
            for key, part in parts.items()
        ]
        return items[0] if isinstance(spec, Mapping) and len(items) == 1 else items
    if spec.dtype.kind not in "biuf":
        return np.asarray(value).tolist()
    array = conform(spec, casting.as_array(value, where), where)
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        raise SpecError(f"{where}: {array!r:.60} has a NaN or infinity; JSON has neither")
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
    parts = parts_of(spec)
    if parts is not None:
        values = [value] if isinstance(spec, Mapping) and len(parts) == 1 else value
        if not isinstance(values, list) or len(values) != len(parts):
            raise SpecError(f"{where}: expected a list of {len(parts)} parts, got {value!r:.60}")
        elements = {
            key: from_jsonable(part, item, f"{where}.{key}", check_bounds=check_bounds)
            for (key, part), item in zip(parts.items(), values, strict=True)
        }
        if isinstance(spec, Mapping):
            return elements
        # The sequence may be a named tuple.
        make = getattr(spec, "_make", type(spec))
        return make(elements.values())
    if spec.dtype.kind not in "biuf":
        raise SpecError(f"{where}: gym-socket-api has no encoding for {spec}")
    array = _array(value, where)
    if array.size == 0 and 0 in spec.shape and array.shape == spec.shape[: array.ndim]:
        array = array.reshape(spec.shape)  # Lists end at the first axis without elements.
    if array.dtype.kind == "b" and spec.dtype.kind != "b":
        if spec.dtype == np.int64 and not check_bounds:
            # gym's own Blackjack observes a bool where its space has a Discrete(2).
            return conform(spec, array.astype(np.int64), where)
        raise SpecError(f"{where}: {value!r:.60} is true or false; expected a number")
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
    """Returns a random element."""
    return tree.map_structure(lambda leaf: sampling.sample(leaf, random), spec)


def _array(value: Any, where: str) -> npt.NDArray[Any]:
    """Returns nested lists of numbers, decoded from JSON, as an array."""
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
