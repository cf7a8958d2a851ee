"""Conversion between TensorSpec messages, with their bounds, and dm_env specs.

Bounds are inclusive. A bound is either one value for all elements of the tensor or one value for
each element (see "Ranges" in the protocol overview). Servers of the 1.0 series send scalar bounds
in fields whose numbers are reserved in the current protocol. These fields are read but never
written.

dm_env has no specs for arrays with a dimension of variable length, and a dm_env spec with -1 in
its shape rejects every array. The subclasses in this module accept any length along an axis whose
length is -1 and otherwise behave like their base classes (see "Variable lengths" in the protocol
overview).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dm_env import specs
from google.protobuf import any_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2, line_1_0_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting, codecs, packing
from dm_env_rpc_client.tensors.memory_limits import Budget


def set_shape(spec: specs.BoundedArray, shape: Iterable[int]) -> None:
    """Set the shape of a new spec that was created with shape () and scalar bounds.

    If dm_env received the shape, it would reject -1 and compare the bounds in arrays of this
    shape, which a server could make gigabytes large. dm_env has no public way to avoid this
    comparison.
    """
    spec._shape = tuple(int(size) for size in shape)


def bounded_array(
    shape: tuple[int, ...], dtype: npt.DTypeLike, minimum: Any, maximum: Any, name: str | None
) -> specs.BoundedArray:
    """Return a `dm_env.specs.BoundedArray` without expanding scalar bounds to its shape."""
    if np.ndim(minimum) or np.ndim(maximum):
        return specs.BoundedArray(shape, dtype, minimum, maximum, name)
    bounded = specs.BoundedArray((), dtype, minimum, maximum, name)
    set_shape(bounded, shape)
    return bounded


def bounds_of(spec: specs.Array) -> tuple[Any, Any]:
    """Return the bounds of a numeric or bool spec, which default to the limits of its dtype."""
    if spec.dtype.kind == "b":
        return 0, 1
    if isinstance(spec, specs.BoundedArray):
        return spec.minimum, spec.maximum
    if spec.dtype.kind == "f":
        return -np.inf, np.inf
    info = np.iinfo(spec.dtype)
    return np.array(info.min, spec.dtype), np.array(info.max, spec.dtype)


class _VariableShape(specs.Array):
    """A spec with one axis of length -1, along which it accepts values of any length."""

    __slots__ = ()

    def _with_length(self, length: int) -> specs.Array:
        shape = tuple(length if size < 0 else size for size in self.shape)
        fixed = next(base for base in type(self).__mro__ if base.__module__ == specs.__name__)
        kwargs = {**self._get_constructor_kwargs(), "shape": shape}
        return fixed(**kwargs)

    def validate(self, value: Any) -> npt.NDArray[Any]:
        """Return `value` as an array, or raise ValueError if it does not conform."""
        array = np.asarray(value)
        axis = next(axis for axis, size in enumerate(self.shape) if size < 0)
        length = array.shape[axis] if array.ndim == len(self.shape) else 1
        conforming: npt.NDArray[Any] = self._with_length(length).validate(value)
        return conforming

    def generate_value(self) -> Any:
        """Return a conforming value with length 1 along the variable axis."""
        return self._with_length(1).generate_value()


class VariableArray(_VariableShape, specs.Array):
    """A `dm_env.specs.Array` whose shape contains -1 once."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        return type(self), (self.shape, self.dtype, self.name)


class VariableBoundedArray(_VariableShape, specs.BoundedArray):
    """A `dm_env.specs.BoundedArray` whose shape contains -1 once and whose bounds are scalars."""

    def __init__(
        self, shape: Any, dtype: Any, minimum: Any, maximum: Any, name: str | None = None
    ) -> None:
        super().__init__((), dtype, minimum, maximum, name)
        set_shape(self, shape)

    def __reduce__(self) -> Any:
        return type(self), (self.shape, self.dtype, self.minimum, self.maximum, self.name)


class VariableStringArray(_VariableShape, specs.StringArray):
    """A `dm_env.specs.StringArray` whose shape contains -1 once."""

    __slots__ = ()


class Bounds(NamedTuple):
    """The inclusive range of a tensor. Each side is a scalar or an array of the tensor's shape."""

    min: Any
    max: Any


_LINE_1_0_DATA_TYPES = {
    field.name: dm_env_rpc_pb2.DataType.Value(field.name.upper())
    for field in line_1_0_pb2.ScalarBound.DESCRIPTOR.fields
}


def bounds(tensor_spec: dm_env_rpc_pb2.TensorSpec) -> Bounds:
    """Return the inclusive bounds of a numeric tensor.

    Args:
      tensor_spec: the spec. A missing bound is replaced by the limit of the dtype.

    Returns:
      `Bounds(min, max)` in the dtype of the spec: NumPy scalars, or arrays of the spec's shape if
      each element has its own bounds.

    Raises:
      SpecError: the dtype is not numeric, or the spec is invalid (see `check_spec`).
    """
    where = _where(tensor_spec)
    codec, _, given = check_spec(tensor_spec, where)
    if not codec.is_numeric:
        raise SpecError(f"{where}: dtype {codec.name} cannot have bounds; expected a numeric dtype")
    return _with_limits(given, codec)


def set_bounds(
    tensor_spec: dm_env_rpc_pb2.TensorSpec, minimum: Any | None, maximum: Any | None
) -> None:
    """Set the inclusive bounds of `tensor_spec`, in place.

    Args:
      tensor_spec: a numeric spec with name, dtype and shape.
      minimum: a scalar, an array-like of the spec's shape, or None for no minimum.
      maximum: a scalar, an array-like of the spec's shape, or None for no maximum.

    Raises:
      SpecError: the dtype is not numeric, a bound is NaN or does not fit the dtype or the shape,
        or the minimum is greater than the maximum. After an error, the spec is unchanged.
    """
    where = _where(tensor_spec)
    codec = codecs.codec_for(tensor_spec.dtype, where)
    if not codec.is_numeric:
        raise SpecError(f"{where}: dtype {codec.name} cannot have bounds; expected a numeric dtype")
    sides = {}
    for side, value in (("min", minimum), ("max", maximum)):
        if value is not None:
            place = f"{where}: {side}"
            array = casting.exact_cast(casting.as_array(value, place), codec.dtype, place)
            if array.size == 1 and array.shape != tuple(tensor_spec.shape):
                array = array.reshape(())
            elif array.shape != tuple(tensor_spec.shape) and array.shape != ():
                raise SpecError(
                    f"{place}: has shape {list(array.shape)}; expected a scalar or the spec's "
                    f"shape {list(tensor_spec.shape)}"
                )
            _check_bound(array, place)
            sides[side] = array
    _check_order(Bounds(sides.get("min"), sides.get("max")), codec, where)
    for side in ("min", "max"):
        tensor_spec.ClearField(side)
        if side in sides:
            codec.pack(getattr(tensor_spec, side), sides[side])


def tensor_spec_to_dm_env_spec(tensor_spec: dm_env_rpc_pb2.TensorSpec) -> specs.Array:
    """Return the dm_env spec that is equivalent to `tensor_spec`.

    Returns:
      `DiscreteArray` for an integer scalar from 0 to a maximum, `BoundedArray` for other bounds,
      `StringArray` for strings, and otherwise `Array` (with dtype object for protos). For a
      negative dimension, the result is an instance of the corresponding `Variable...` subclass.
      The bounds of an array with one element have the shape of the array.

    Raises:
      SpecError: the spec is invalid (see `check_spec`).
    """
    where = _where(tensor_spec)
    codec, shape, given = check_spec(tensor_spec, where)
    name = tensor_spec.name
    variable = any(size < 0 for size in shape)
    if codec.data_type == dm_env_rpc_pb2.STRING:
        return (VariableStringArray if variable else specs.StringArray)(shape, name=name)
    has_max = tensor_spec.HasField("max")
    # A bound that is set without a value stands for the limit of the dtype.
    if not (codec.is_numeric and (has_max or tensor_spec.HasField("min"))):
        return (VariableArray if variable else specs.Array)(shape, codec.dtype, name)
    low, high = _with_limits(given, codec)
    if shape and all(size == 1 for size in shape):
        # A bound for all is a bound for each, and as an array it can be indexed like any other.
        low, high = np.reshape(low, shape), np.reshape(high, shape)
    if shape == () and codec.dtype.kind in "iu" and low == 0 and has_max:
        try:
            return specs.DiscreteArray(int(high) + 1, codec.dtype, name)
        except (ValueError, OverflowError):
            pass  # The number of values exceeds the integer types that dm_env accepts.
    if variable:
        return VariableBoundedArray(shape, codec.dtype, low, high, name)
    return bounded_array(shape, codec.dtype, low, high, name)


def dm_env_spec_to_tensor_spec(spec: specs.Array) -> dm_env_rpc_pb2.TensorSpec:
    """Return the TensorSpec that is equivalent to a dm_env spec.

    A 16-bit dtype becomes the next wider dtype, which represents all its values. An `Array` of
    dtype object becomes PROTO. The bounds of a bool array are omitted, because they restrict
    nothing.

    Raises:
      SpecError: the protocol has no matching dtype, the name is not valid text, a bound is NaN, or
        the spec is invalid (see `check_spec`).
    """
    return named_tensor_spec(spec, spec.name)


def named_tensor_spec(spec: specs.Array, name: str | None) -> dm_env_rpc_pb2.TensorSpec:
    """Convert a spec as `dm_env_spec_to_tensor_spec` does, but with the given name.

    A name of None becomes "".
    """
    where = f"spec {name!r}"
    data_type = codec_of(spec, where).data_type
    try:
        tensor_spec = dm_env_rpc_pb2.TensorSpec(name=name or "", shape=spec.shape)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{where}: its name or shape cannot be packed: {error}") from error
    tensor_spec.dtype = data_type  # type: ignore[assignment]  # the stubs want the enum
    if isinstance(spec, specs.BoundedArray) and spec.dtype.kind in "iuf":
        # dm_env broadcasts bounds; the protocol has one bound for all elements or one for each.
        minimum, maximum = (
            side if side.size == 1 else np.broadcast_to(side, spec.shape)
            for side in (spec.minimum, spec.maximum)
        )
        set_bounds(tensor_spec, minimum, maximum)
    check_spec(tensor_spec, where)
    return tensor_spec


def codec_of(spec: specs.Array, where: str) -> codecs.Codec:
    """Return the codec for the values of a dm_env spec.

    Args:
      spec: the spec.
      where: the name of the spec in error messages.

    Raises:
      SpecError: the protocol has no dtype for the spec.
    """
    if isinstance(spec, specs.StringArray):
        if spec.string_type is not str:
            raise SpecError(
                f"{where}: string_type must be str, not {spec.string_type.__name__}, because "
                "strings in the protocol are text"
            )
        return codecs.codec_for(dm_env_rpc_pb2.STRING)
    if spec.dtype.kind in "OU":
        is_proto = spec.dtype.kind == "O"
        return codecs.codec_for(dm_env_rpc_pb2.PROTO if is_proto else dm_env_rpc_pb2.STRING)
    return codecs.codec_for(casting.protocol_dtype(spec.dtype, where))


class CheckedSpec(NamedTuple):
    """The contents of a valid TensorSpec. A missing bound is None."""

    codec: codecs.Codec
    shape: tuple[int, ...]
    bounds: Bounds


def check_spec(
    tensor_spec: dm_env_rpc_pb2.TensorSpec, where: str, budget: Budget | None = None
) -> CheckedSpec:
    """Validate a TensorSpec and return its contents.

    Args:
      tensor_spec: the spec.
      where: the name of the spec in error messages.
      budget: the memory budget for the bounds of this and other specs; None for specs made in
        this process.

    Raises:
      SpecError: the dtype is unknown; more than one dimension is variable; there are too many
        dimensions, or one is too large; a bound is NaN or has the wrong type or shape; or the
        minimum is greater than the maximum.
    """
    codec = codecs.codec_for(tensor_spec.dtype, where)
    shape = tuple(tensor_spec.shape)
    if len(shape) > casting.MAX_DIMENSIONS:
        raise SpecError(
            f"{where}: has {len(shape)} dimensions; at most {casting.MAX_DIMENSIONS} are allowed"
        )
    if sum(size < 0 for size in shape) > 1:
        raise SpecError(f"{where}: shape {list(shape)} has more than one variable dimension")
    packing.check_size(shape, codec.dtype.itemsize, where)
    minimum = _read_bound(codec, shape, tensor_spec.min, f"{where}: min", budget)
    maximum = _read_bound(codec, shape, tensor_spec.max, f"{where}: max", budget)
    given = Bounds(minimum, maximum)
    _check_order(given, codec, where)
    return CheckedSpec(codec, shape, given)


def _read_bound(
    codec: codecs.Codec,
    shape: tuple[int, ...],
    value: dm_env_rpc_pb2.TensorSpec.Value,
    where: str,
    budget: Budget | None,
) -> Any | None:
    """Return one bound as a NumPy scalar or an array, or None if it is missing."""
    if value.WhichOneof("payload") is None:
        return _read_line_1_0_bound(codec, value, where)
    found = codecs.codec_of_payload(value, where)
    if found is not codec:
        raise SpecError(f"{where}: has dtype {found.name}, but the spec has dtype {codec.name}")
    flat = codec.unpack(value)
    if flat.size == 1:
        bound = flat[0]
    else:
        if budget is not None:
            budget.expand(max(0, flat.nbytes - value.ByteSize()), where)
        if any(size < 0 for size in shape) or flat.size != int(np.prod(shape, dtype=object)):
            raise SpecError(
                f"{where}: has {flat.size} elements; expected one, or one for each element of an "
                f"array of shape {list(shape)}"
            )
        bound = flat.reshape(shape)
    _check_bound(bound, where)
    return bound


def _read_line_1_0_bound(
    codec: codecs.Codec, value: dm_env_rpc_pb2.TensorSpec.Value, where: str
) -> Any | None:
    # The current messages keep the scalar as an unknown field, which protobuf preserves.
    scalar = line_1_0_pb2.ScalarBound.FromString(value.SerializeToString())
    field = scalar.WhichOneof("payload")
    if field is None:
        return None
    if _LINE_1_0_DATA_TYPES[field] != codec.data_type:
        raise SpecError(f"{where}: has type {field}, but the spec has dtype {codec.name}")
    number = np.asarray(getattr(scalar, field))
    bound = casting.exact_cast(number, codec.dtype, where)[()]
    _check_bound(bound, where)
    return bound


def _check_bound(bound: Any, where: str) -> None:
    if np.any(np.isnan(bound)):
        raise SpecError(f"{where}: is NaN; expected a number")


def _with_limits(given: Bounds, codec: codecs.Codec) -> Bounds:
    """Replace bounds that are None with the limits of the codec's numeric dtype."""
    info: Any = (np.iinfo if codec.dtype.kind in "iu" else np.finfo)(codec.dtype)
    # Converted, because the limits of iinfo are Python integers.
    return Bounds(
        codec.dtype.type(info.min) if given.min is None else given.min,
        codec.dtype.type(info.max) if given.max is None else given.max,
    )


def _check_order(given: Bounds, codec: codecs.Codec, where: str) -> None:
    if given.min is None and given.max is None:
        return
    minimum, maximum = _with_limits(given, codec)
    if np.any(minimum > maximum):
        raise SpecError(f"{where}: min {minimum} is above max {maximum}")


def _where(tensor_spec: dm_env_rpc_pb2.TensorSpec) -> str:
    return f"spec {tensor_spec.name!r}"


_WIDEST = 2**31 - 1


def sample(spec: specs.Array, random: np.random.Generator) -> Any:
    """Return a random value that conforms to `spec`.

    Bools, and numbers with bounds, are uniformly distributed. Floats without bounds are normally
    distributed, and integers without bounds are uniformly distributed over 32 bits. For other
    dtypes, the value is the result of the spec's `generate_value`.
    """
    template = spec.generate_value()
    shape, dtype = np.shape(template), spec.dtype
    bounded = isinstance(spec, specs.BoundedArray)
    if dtype.kind == "b":
        return random.integers(2, size=shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = spec.minimum if bounded else max(info.min, -_WIDEST)
        high = spec.maximum if bounded else min(info.max, _WIDEST)
        return random.integers(low, high, size=shape, dtype=dtype, endpoint=True)
    if dtype.kind == "f":
        finite = np.finfo(dtype).max / 2
        low = np.clip(spec.minimum if bounded else -np.inf, -finite, finite)
        high = np.clip(spec.maximum if bounded else np.inf, -finite, finite)
        even = random.random(shape)
        normal = np.clip(random.standard_normal(shape), low, high)
        drawn = np.where(high - low < finite, low + (high - low) * even, normal).astype(dtype)
        return np.clip(drawn, spec.minimum, spec.maximum) if bounded else drawn
    if dtype.kind == "O" and not isinstance(spec, specs.StringArray):
        messages = np.fromiter((any_pb2.Any() for _ in range(template.size)), object, template.size)
        return messages.reshape(shape) if shape else messages[0]
    return template
