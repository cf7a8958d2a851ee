"""Arrays with one row per environment, and conversion of values that are assigned to a row.

Batches, rollouts and vector environments fill their rows through `Column`. A row accepts the
values that a single environment is allowed to return, and rejects values that would be changed. In
contrast, NumPy's assignment wraps 300 to 44 in a uint8, fills a row with one number, parses "0.5"
and converts NaN to 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from dm_env import specs
from google.protobuf import any_pb2

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting, packing
from dm_env_rpc_client.tensors.specs import (
    VariableArray,
    VariableBoundedArray,
    VariableStringArray,
    bounded_array,
    check_spec,
    codec_of,
    set_bounds,
)

VARIABLE = (VariableArray, VariableBoundedArray, VariableStringArray)
"""The spec types for arrays of variable length, whose rows cannot form one array."""


def batch_spec(spec: specs.Array, count: int) -> specs.Array:
    """Return the spec of `count` stacked values that each conform to `spec`, as in `Rows`."""
    shape = (count, *spec.shape)
    if isinstance(spec, VARIABLE):
        return specs.Array((count,), object, spec.name)
    if isinstance(spec, specs.StringArray):
        return specs.StringArray(shape, spec.string_type, spec.name)
    if isinstance(spec, specs.BoundedArray):
        return bounded_array(shape, spec.dtype, spec.minimum, spec.maximum, spec.name)
    return specs.Array(shape, spec.dtype, spec.name)


def row_tensor_spec(
    tensor_spec: dm_env_rpc_pb2.TensorSpec, count: int
) -> dm_env_rpc_pb2.TensorSpec:
    """Return the spec of one row from the spec of stacked rows.

    Args:
      tensor_spec: the spec of all rows, with shape [count, ...].
      count: the number of rows.

    Raises:
      SpecError: the first axis does not have the length `count`, or the spec is invalid.
    """
    where = f"spec {tensor_spec.name!r}"
    if not tensor_spec.shape or tensor_spec.shape[0] != count:
        raise SpecError(
            f"{where}: has shape {list(tensor_spec.shape)}; expected {count} rows, like the other "
            "specs of the batch"
        )
    low, high = check_spec(tensor_spec, where).bounds
    row = dm_env_rpc_pb2.TensorSpec(
        name=tensor_spec.name, dtype=tensor_spec.dtype, shape=tensor_spec.shape[1:]
    )
    if low is not None or high is not None:
        set_bounds(row, *(side[0] if getattr(side, "ndim", 0) else side for side in (low, high)))
    return row


class Column:
    """An observation, reward or discount of several environments, with one row per environment.

    Args:
      spec: the spec of one row.
      rows: the shape of the rows, such as (N,).
      label: the name of a value in errors, such as "observation 'arm.torque'".
      dtype: the dtype of the array, or None for the dtype on the wire, which is int32 for int16,
        and object for strings.

    Attributes:
      array: the rows, as an array of shape [*rows, *shape] that initially contains zeros, empty
        strings or empty messages.
      dtype: the dtype of the array.
      known_dtype: the dtype of arrays that a row accepts unchecked. A column of objects has a
        dtype here that no array has, because all elements must be checked.
      shape: the shape of one row.
      type: the type of scalars that a row accepts unchecked, or None if a row accepts only arrays.

    Raises:
      SpecError: values of this spec cannot be sent.
    """

    __slots__ = ("_codec", "_label", "_may_round", "array", "dtype", "known_dtype", "shape", "type")

    def __init__(
        self,
        spec: specs.Array,
        rows: tuple[int, ...],
        label: str,
        dtype: np.dtype[Any] | None = None,
    ):
        self._label = label
        self._codec = codec_of(spec, f"spec {spec.name!r}")
        self.dtype: np.dtype[Any] = self._codec.dtype if dtype is None else dtype
        self.shape = tuple(spec.shape)
        self.array: npt.NDArray[Any] = np.zeros((*rows, *self.shape), self.dtype)
        if self.dtype.kind == "O":
            is_text = self._codec.data_type == dm_env_rpc_pb2.STRING
            for place in range(math.prod(self.array.shape)):
                self.array.flat[place] = "" if is_text else any_pb2.Any()
        self.known_dtype = _NO_DTYPE if self.dtype.kind == "O" else self.dtype
        self._may_round = self.dtype == np.float32
        self.type: type | None = None
        if not self.shape and self.dtype.kind in "biuf":
            self.type = float if self.dtype == np.float64 else self.dtype.type

    def taken(self, value: Any) -> Any:
        """Return `value` in a form that a row stores unchanged or rounded to the row's dtype.

        Most values are recognized at once. All other values are converted or rejected by `fitted`.
        """
        if type(value) is np.ndarray:
            if value.shape == self.shape:
                if value.dtype == self.known_dtype:
                    return value
                if self._may_round and value.dtype is _DOUBLE and _is_small(value):
                    return value
        elif type(value) is self.type:
            return value
        return self.fitted(value)

    def fitted(self, value: Any) -> Any:
        """Convert a value to the dtype of a row, and check its shape.

        Args:
          value: the value returned by an environment.

        Raises:
          SpecError: the value has the wrong shape, or the dtype cannot represent an element
            exactly.
        """
        label, codec = self._label, self._codec
        array = packing.to_dtype(casting.as_array(value, label), codec, label)
        if codec.dtype != self.dtype:
            array = casting.exact_cast(array, self.dtype, label)
        if array.shape != self.shape:
            raise SpecError(f"{label}: has shape {list(array.shape)}; expected {list(self.shape)}")
        if codec.data_type == dm_env_rpc_pb2.STRING:
            # Packed here, because an unsendable string would fail the answer of all rows. Read
            # back, because an instance of a subclass may not unpickle in another process.
            strings = packing.pack_array(array, codec, label).strings.array
            array = np.array(strings, self.dtype).reshape(self.shape)
        return array if self.shape else array[()]


_NO_DTYPE = np.dtype([("no array has this dtype", np.void, 1)])

_DOUBLE = np.dtype(np.float64)

_SMALL = float(np.finfo(np.float32).max) ** 2
"""If the sum of the squares of an array's elements is below this value, every element is finite
and within the range of float32."""


def _is_small(array: npt.NDArray[np.float64]) -> bool:
    """Whether an array is small enough to be rounded to float32, tested in a single operation."""
    return bool(np.vdot(array, array) < _SMALL)
