from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.tensors.displays.spec_tables import (
    are_specs,
    bounds_text,
    dtype_text,
    spec_table,
    value_range,
)
from dm_env_rpc_client.tensors.specs import VariableArray


@pytest.mark.parametrize(
    ("spec", "dtype", "bounds"),
    [
        (specs.Array((), np.float32), "float32", ""),
        (specs.DiscreteArray(3), "int32", "0 … 2"),
        (specs.BoundedArray((), np.uint8, 0, 255), "uint8", "0 … 255"),
        (specs.BoundedArray((2,), np.float64, -1, np.inf), "float64", "-1 … inf"),
        (specs.BoundedArray((2,), np.int32, [0, 1], [2, 3]), "int32", "[0, 1] … [2, 3]"),
        (specs.BoundedArray((2,), np.int32, [0, 0], [3, 3]), "int32", "0 … 3"),
        (specs.BoundedArray((9,), np.int32, range(9), 20), "int32", "[0, 1, 2, 3, …] … 20"),
        (specs.StringArray(()), "string", ""),
        (specs.Array((), object), "proto", ""),
        (specs.Array((), bool), "bool", ""),
    ],
)
def test_a_spec_in_words(spec: specs.Array, dtype: str, bounds: str) -> None:
    assert dtype_text(spec) == dtype
    assert bounds_text(spec) == bounds


def test_a_table_has_a_row_for_each_spec_with_its_name_dtype_shape_and_bounds() -> None:
    html = spec_table(
        {
            "arm": {"torque": specs.BoundedArray((3,), np.float32, -1, 1)},
            "path": VariableArray((-1, 2), np.int64),
        }
    )
    for part in ("arm.torque", "float32", "-1 … 1", "path", "any x 2", "int64"):
        assert part in html
    assert html.count("<tr") == 3
    assert "paddle" in spec_table(specs.DiscreteArray(3, name="paddle"))
    assert "none" in spec_table({})


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"a": specs.Array((), int)}, True),
        ({"a": {"b": specs.Array((), int)}, "c": [specs.Array((), int)]}, True),
        ({"a": 1}, False),
        ({"a": specs.Array((), int), "b": 1}, False),
        ({}, False),
    ],
)
def test_which_dictionaries_are_specs(value: Any, expected: bool) -> None:
    assert are_specs(value) is expected


def test_a_dictionary_that_holds_itself_is_no_spec() -> None:
    endless: dict[str, Any] = {}
    endless["self"] = endless
    assert not are_specs(endless)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (specs.BoundedArray((2,), np.float32, [0, -3], [1, 5]), (-3, 5)),
        (specs.BoundedArray((), np.float32, 0, np.inf), (0, None)),
        (specs.Array((), np.float32), (None, None)),
        (specs.DiscreteArray(4), (0, 3)),
    ],
)
def test_the_range_of_a_spec(spec: specs.Array, expected: tuple[Any, Any]) -> None:
    assert value_range(spec) == expected
