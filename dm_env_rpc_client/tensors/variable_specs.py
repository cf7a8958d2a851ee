"""dm_env specs of arrays with a dimension of variable length.

dm_env has no such specs; its own, with -1 in their shape, refuse every array. These subclasses
accept any length along that axis and otherwise behave like their base classes ("Variable lengths"
in the protocol overview).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs


def set_shape(spec: specs.BoundedArray, shape: Iterable[int]) -> None:
    """Gives a shape to a new spec that was made with shape () and scalar bounds.

    Given the shape, dm_env would refuse -1, and would compare the two bounds in arrays of that
    shape, which a server may have made gigabytes. It has no public way to avoid that.
    """
    spec._shape = tuple(int(size) for size in shape)


def bounded_array(
    shape: tuple[int, ...], dtype: npt.DTypeLike, minimum: Any, maximum: Any, name: str | None
) -> specs.BoundedArray:
    """Returns `dm_env.specs.BoundedArray`; scalar bounds take no arrays of the shape."""
    if np.ndim(minimum) or np.ndim(maximum):
        return specs.BoundedArray(shape, dtype, minimum, maximum, name)
    bounded = specs.BoundedArray((), dtype, minimum, maximum, name)
    set_shape(bounded, shape)
    return bounded


def bounds_of(spec: specs.Array) -> tuple[Any, Any]:
    """Returns the bounds of a spec of numbers or bools; without any, those of its dtype."""
    if spec.dtype.kind == "b":
        return 0, 1
    if isinstance(spec, specs.BoundedArray):
        return spec.minimum, spec.maximum
    if spec.dtype.kind == "f":
        return -np.inf, np.inf
    info = np.iinfo(spec.dtype)
    return np.array(info.min, spec.dtype), np.array(info.max, spec.dtype)


class _VariableShape(specs.Array):
    """Validates a value with a spec that has the value's length along the -1 axis."""

    __slots__ = ()

    def _with_length(self, length: int) -> specs.Array:
        shape = tuple(length if size < 0 else size for size in self.shape)
        fixed = next(base for base in type(self).__mro__ if base.__module__ == specs.__name__)
        kwargs = {**self._get_constructor_kwargs(), "shape": shape}
        return fixed(**kwargs)

    def validate(self, value: Any) -> npt.NDArray[Any]:
        """Returns `value` as an array; ValueError if it does not conform."""
        array = np.asarray(value)
        axis = next(axis for axis, size in enumerate(self.shape) if size < 0)
        length = array.shape[axis] if array.ndim == len(self.shape) else 1
        conforming: npt.NDArray[Any] = self._with_length(length).validate(value)
        return conforming

    def generate_value(self) -> Any:
        """Returns a conforming value with length 1 along the variable axis."""
        return self._with_length(1).generate_value()


class VariableArray(_VariableShape, specs.Array):
    """`dm_env.specs.Array` whose shape has one -1."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return type(self), (self.shape, self.dtype, self.name)


class VariableBoundedArray(_VariableShape, specs.BoundedArray):
    """`dm_env.specs.BoundedArray` whose shape has one -1 and whose bounds are scalars."""

    def __init__(
        self, shape: Any, dtype: Any, minimum: Any, maximum: Any, name: str | None = None
    ) -> None:
        super().__init__((), dtype, minimum, maximum, name)
        set_shape(self, shape)

    def __reduce__(self) -> Any:
        return type(self), (self.shape, self.dtype, self.minimum, self.maximum, self.name)


class VariableStringArray(_VariableShape, specs.StringArray):
    """`dm_env.specs.StringArray` whose shape has one -1."""

    __slots__ = ()
