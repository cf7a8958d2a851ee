"""Specs with a dimension of any length are dm_env specs in every other way."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.tensors.specs import (
    VariableArray,
    VariableBoundedArray,
    VariableStringArray,
    set_shape,
)

SPECS = [
    VariableArray((2, -1), np.float32, "a"),
    VariableBoundedArray((2, -1), np.float32, -1, 1, "a"),
    VariableStringArray((2, -1), name="a"),
]
each_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: type(spec).__name__)


@each_spec
@pytest.mark.parametrize("length", [0, 1, 3])
def test_every_length_conforms(spec: Any, length: int) -> None:
    value = np.full((2, length), "" if spec.dtype == object else 0, spec.dtype)
    assert spec.validate(value) is value


@each_spec
@pytest.mark.parametrize("shape", [(3, 1), (2,), (2, 1, 1), ()])
def test_another_shape_does_not(spec: Any, shape: Any) -> None:
    with pytest.raises(ValueError, match="shape"):
        spec.validate(np.full(shape, "" if spec.dtype == object else 0, spec.dtype))


def test_another_dtype_or_a_value_out_of_bounds_does_not() -> None:
    array, bounded, strings = SPECS
    with pytest.raises(ValueError, match="dtype"):
        array.validate(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="bounds"):
        bounded.validate(np.full((2, 3), 2, np.float32))
    with pytest.raises(ValueError, match="type"):
        strings.validate(np.zeros((2, 3), object))


@each_spec
@pytest.mark.parametrize(
    "copied", [lambda s: pickle.loads(pickle.dumps(s)), copy.copy, copy.deepcopy]
)
def test_a_copy_is_the_same_spec(spec: Any, copied: Any) -> None:
    twin = copied(spec)
    assert type(twin) is type(spec)
    assert twin == spec
    assert (twin.shape, twin.dtype, twin.name) == ((2, -1), spec.dtype, "a")
    assert getattr(twin, "minimum", -1) == -1
    twin.validate(twin.generate_value())


@each_spec
def test_a_spec_can_be_replaced_and_shown(spec: Any) -> None:
    replaced = spec.replace(name="b", shape=(-1,))
    assert type(replaced) is type(spec)
    assert (replaced.name, replaced.shape) == ("b", (-1,))
    assert "(2, -1)" in repr(spec)
    assert isinstance(spec, specs.Array)


def test_a_shape_is_set_without_arrays_of_that_shape() -> None:
    spec = specs.BoundedArray((), np.int32, 0, 5, "a")
    set_shape(spec, [1 << 40, 3])
    assert spec.shape == (1 << 40, 3)
    assert (spec.minimum.shape, spec.maximum.shape) == ((), ())
