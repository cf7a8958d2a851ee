"""Specs of values that are stacked along a new first axis, one row for each environment."""

from __future__ import annotations

from dm_env import specs

from dm_env_rpc_client.tensors.variable_specs import (
    VariableArray,
    VariableBoundedArray,
    VariableStringArray,
    set_shape,
)

__all__ = ["VARIABLE", "batch_spec"]

VARIABLE = (VariableArray, VariableBoundedArray, VariableStringArray)
"""Specs of arrays of variable length, whose rows are not one array."""


def batch_spec(spec: specs.Array, count: int) -> specs.Array:
    """Returns the spec of `count` values of a spec, as `Rows` holds them."""
    shape = (count, *spec.shape)
    if isinstance(spec, VARIABLE):
        return specs.Array((count,), object, spec.name)
    if isinstance(spec, specs.StringArray):
        return specs.StringArray(shape, spec.string_type, spec.name)
    if isinstance(spec, specs.BoundedArray) and not (spec.minimum.ndim or spec.maximum.ndim):
        bounded = specs.BoundedArray((), spec.dtype, spec.minimum, spec.maximum, spec.name)
        set_shape(bounded, shape)
        return bounded
    if isinstance(spec, specs.BoundedArray):
        return specs.BoundedArray(shape, spec.dtype, spec.minimum, spec.maximum, spec.name)
    return specs.Array(shape, spec.dtype, spec.name)
