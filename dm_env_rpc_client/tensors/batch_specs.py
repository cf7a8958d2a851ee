"""Specs of values that are stacked along a new first axis, one row for each environment."""

from __future__ import annotations

from dm_env import specs

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.specs import check_spec, set_bounds
from dm_env_rpc_client.tensors.variable_specs import (
    VariableArray,
    VariableBoundedArray,
    VariableStringArray,
    bounded_array,
)

VARIABLE = (VariableArray, VariableBoundedArray, VariableStringArray)
"""Specs of arrays of variable length, whose rows are not one array."""


def batch_spec(spec: specs.Array, count: int) -> specs.Array:
    """Returns the spec of `count` values of a spec, as `Rows` holds them."""
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
    """Returns the spec of one row of values that are stacked along a first axis.

    Args:
      tensor_spec: of all rows, [count, ...].
      count: the number of rows.

    Raises:
      SpecError: the first axis has another length, or the spec is invalid.
    """
    where = f"spec {tensor_spec.name!r}"
    if not tensor_spec.shape or tensor_spec.shape[0] != count:
        raise SpecError(
            f"{where}: has shape {list(tensor_spec.shape)}; expected {count} rows, as the other "
            "specs of the batch have"
        )
    low, high = check_spec(tensor_spec, where).bounds
    row = dm_env_rpc_pb2.TensorSpec(
        name=tensor_spec.name, dtype=tensor_spec.dtype, shape=tensor_spec.shape[1:]
    )
    if low is not None or high is not None:
        set_bounds(row, *(side[0] if getattr(side, "ndim", 0) else side for side in (low, high)))
    return row
