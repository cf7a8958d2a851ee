"""Conversion between Tensor messages and NumPy arrays.

Elements are sent in row-major order in the payload message for their type (see `codecs`).

See "Tensors" in the protocol overview for the rules. A shape can have at most one negative
dimension, whose length is inferred from the number of elements. A single element can represent an
array of any shape whose elements are all equal. An empty shape denotes a scalar.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf import message as protobuf_message

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.codecs import (
    Array,
    Codec,
    DTypeLike,
    PayloadMessage,
    codec_for,
    codec_of_payload,
    codec_of_plain_value,
    codec_of_value,
)
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, MAX_MESSAGE_BYTES, Budget, Limits


def pack_tensor(
    value: Any, dtype: DTypeLike | None = None, try_compress: bool = False
) -> dm_env_rpc_pb2.Tensor:
    """Pack a value into a Tensor message.

    Args:
      value: a number, bool, string, protobuf message (packed into an Any unless it already is
        one), NumPy scalar or array of any memory layout, or nested lists of these.
      dtype: the target type: a DataType, or a NumPy dtype or type. With None, the type is derived
        from the value. Python floats become DOUBLE, and Python integers become INT64 (or UINT64 if
        they are too large for INT64).
      try_compress: whether to send a single element if all elements are equal.

    Returns:
      The Tensor, with the shape of the value.

    Raises:
      SpecError: the value is ragged or mixes kinds of elements, the protocol has no matching type,
        or a cast to `dtype` would change an element (see `casting`).
    """
    return pack_value(value, None if dtype is None else codec_for(dtype), "value", try_compress)


def pack_value(
    value: Any, codec: Codec | None, where: str, try_compress: bool = False
) -> dm_env_rpc_pb2.Tensor:
    """Pack `value` as `pack_tensor` does, with a given `codec` and the name `where` in errors."""
    own = codec_of_plain_value(value)
    if own is not None and (codec is None or codec is own):
        if type(value) is not np.ndarray:
            tensor = dm_env_rpc_pb2.Tensor()
            try:
                own.pack_one(tensor, value.item() if isinstance(value, np.generic) else value)
            except ValueError as error:  # From a lone surrogate.
                raise SpecError(f"{where}: cannot be packed: {error}") from error
            return tensor
        if value.ndim <= MAX_DIMENSIONS:
            return pack_array(value, own, where, try_compress)
    array = casting.as_array(value, where)
    if codec is None:
        codec = codec_of_value(value, array)
    return pack_array(to_dtype(array, codec, where), codec, where, try_compress)


def as_tensor(value: Any, where: str) -> dm_env_rpc_pb2.Tensor:
    """Pack a value according to its own type, or return a Tensor unchanged."""
    if isinstance(value, dm_env_rpc_pb2.Tensor):
        return value
    return pack_value(value, None, where)


def to_dtype(array: Array, codec: Codec, where: str) -> Array:
    """Cast the result of `casting.as_array` to the dtype of `codec`."""
    array = casting.exact_cast(array, codec.dtype, where)
    if codec.dtype.kind == "O" and array.size:
        is_string = isinstance(array.flat[0], str)
        if is_string != (codec.data_type == dm_env_rpc_pb2.STRING):
            found = "strings" if is_string else "protobuf messages"
            raise SpecError(f"{where}: expected {codec.field}, got {found}")
    return array


def pack_array(
    array: Array, codec: Codec, where: str, try_compress: bool = False
) -> dm_env_rpc_pb2.Tensor:
    """Pack an array that already has the dtype of `codec`."""
    shape = array.shape
    if try_compress and array.size > 1 and _is_uniform(array):
        array = array[(slice(1),) * array.ndim]
    check_packable(array, where)
    try:
        tensor = dm_env_rpc_pb2.Tensor(shape=shape)
        codec.pack(tensor, array)
    except (ValueError, protobuf_message.EncodeError) as error:
        # From a length beyond int32, a lone surrogate, or a message without a required field.
        raise SpecError(f"{where}: cannot be packed: {error}") from error
    return tensor


def check_packable(array: Array, where: str) -> None:
    """Raise SpecError if an array is too large for a message."""
    if array.nbytes > MAX_MESSAGE_BYTES:
        raise SpecError(
            f"{where}: takes {array.nbytes} bytes; a message holds at most {MAX_MESSAGE_BYTES}"
        )


def unpack_tensor(tensor: dm_env_rpc_pb2.Tensor, limits: Limits = DEFAULT) -> Any:
    """Unpack a Tensor message.

    Args:
      tensor: the message.
      limits: the limits on the memory that the value can take.

    Returns:
      For a nonempty shape, a new writable array. Arrays of strings and protos have the dtype
      object, with elements of type `str` and `Any`. For an empty shape, the only element, as a
      NumPy scalar, a `str` or an `Any`.

    Raises:
      SpecError: there is no payload; the number of elements does not fit the shape; more than one
        dimension is negative; or one element, repeated over the shape, would take more memory than
        `limits` allow.
    """
    codec = codec_of_payload(tensor, "tensor")
    return unpack_payload(tensor, codec, tensor.shape, "tensor", Budget(limits))


def unpack_payload(
    message: PayloadMessage, codec: Codec, shape: Sequence[int], where: str, budget: Budget
) -> Any:
    """Unpack the payload of `message` into an array of `shape`, with the type of `codec`."""
    if not shape:
        element = codec.unpack_one(message)
        if element is None:
            size = codec.unpack(message).size
            raise SpecError(f"{where}: a scalar must have one element, got {size}")
        return element
    flat = codec.unpack(message)
    full_shape = shape_for(shape, flat.size, where)
    if flat.size == 1:
        if math.prod(full_shape) == 1:
            return flat.reshape(full_shape)
        return codec.broadcast(flat[0], full_shape, where, budget)
    return flat.reshape(full_shape)


def check_size(shape: Sequence[int], itemsize: int, where: str) -> None:
    """Raise SpecError if an array of the given shape is too large for a message.

    NumPy cannot create arrays of these shapes either, not even empty arrays.
    """
    size = math.prod(max(length, 1) for length in shape) * itemsize
    if size > MAX_MESSAGE_BYTES:
        raise SpecError(
            f"{where}: an array of shape {list(shape)} takes {size} bytes; a message holds at "
            f"most {MAX_MESSAGE_BYTES}"
        )


def shape_for(shape: Sequence[int], size: int, where: str) -> tuple[int, ...]:
    """Return the shape of a tensor with `size` elements, resolving a variable dimension.

    Args:
      shape: the shape in the message, in which one dimension can be negative.
      size: the number of elements in the message.
      where: the name of the tensor in error messages.

    Raises:
      SpecError: the elements do not fit the shape.
    """
    shape = tuple(shape)
    if len(shape) > MAX_DIMENSIONS:
        raise SpecError(
            f"{where}: has {len(shape)} dimensions; at most {MAX_DIMENSIONS} are allowed"
        )
    variable = [axis for axis, length in enumerate(shape) if length < 0]
    if len(variable) > 1:
        raise SpecError(f"{where}: shape {list(shape)} has more than one variable dimension")
    if variable:
        axis = variable[0]
        rest = math.prod(shape[:axis] + shape[axis + 1 :])
        if size == 1:
            # A single element fills the other dimensions; the variable one has length 1.
            length = 1
        elif rest and size % rest == 0:
            length = size // rest
        else:
            raise SpecError(
                f"{where}: {size} elements cannot fill shape {list(shape)}, whatever the length "
                f"of dimension {axis}"
            )
        shape = (*shape[:axis], length, *shape[axis + 1 :])
    elif size != 1 and size != math.prod(shape):
        raise SpecError(
            f"{where}: shape {list(shape)} requires {math.prod(shape)} elements (or one for all), "
            f"got {size}"
        )
    if 0 in shape:
        # Only empty arrays: others are limited by their elements or by the budget.
        check_size(shape, 1, where)
    return shape


def _is_uniform(array: Array) -> bool:
    if array.dtype.kind == "O":
        # Element by element, because NumPy treats messages such as ListValue as sequences.
        return all(element == array.flat[0] for element in array.flat)
    if array.dtype.kind == "f":
        # By bits, because 0.0 == -0.0 although they differ, and NaN != NaN.
        array = np.ascontiguousarray(array).view(f"u{array.itemsize}")
    return bool(np.all(array == array.flat[0]))
