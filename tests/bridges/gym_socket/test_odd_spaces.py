"""What travels of odd specs and spaces, as JSON, and what becomes of it at the other end."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.bridges.gym_socket import spaces

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TYPE, LOW, HIGH = "type", "low", "high"


def box(shape: list[int], low: list[Any], high: list[Any]) -> dict[str, Any]:
    return {TYPE: "Box", "shape": shape, LOW: low, HIGH: high}


def integers(low: list[int], high: list[int]) -> dict[str, Any]:
    return {TYPE: "MultiDiscrete", LOW: low, HIGH: high}


def discrete(n: int) -> dict[str, Any]:
    return {TYPE: "Discrete", "n": n}


def parts(*subspaces: Any) -> dict[str, Any]:
    return {TYPE: "Tuple", "subspaces": list(subspaces)}


def bounded(shape: tuple[int, ...], dtype: Any, low: Any, high: Any) -> specs.BoundedArray:
    return specs.BoundedArray(shape, dtype, low, high, "o")


WRITTEN: dict[str, tuple[Any, Any]] = {
    "a number of values": (specs.DiscreteArray(7, np.uint8), discrete(7)),
    "as many values as int64 has": (specs.DiscreteArray(INT64_MAX, np.int64), discrete(INT64_MAX)),
    "an integer from another number on": (bounded((), np.int32, 3, 5), box([], [3], [5])),
    "an integer from 0 on that is no DiscreteArray": (
        bounded((), np.int8, 0, 2),
        box([], [0], [2]),
    ),
    "a flag": (specs.Array((), bool), discrete(2)),
    "no flags": (specs.Array((0,), bool), {TYPE: "MultiBinary", "n": 0}),
    "int8 from 0 to 1": (bounded((2,), np.int8, 0, 1), {TYPE: "MultiBinary", "n": 2}),
    "no int8": (bounded((0,), np.int8, 0, 1), {TYPE: "MultiBinary", "n": 0}),
    "int8 from 0 to 1 without bounds": (specs.Array((1,), np.int8), integers([-128], [127])),
    "int32 from 0 to 1": (bounded((2,), np.int32, 0, 1), integers([0, 0], [1, 1])),
    "int64": (specs.Array((1,), np.int64), integers([INT64_MIN], [INT64_MAX])),
    "uint64 below 2**63": (bounded((1,), np.uint64, 0, INT64_MAX), integers([0], [INT64_MAX])),
    "uint64 beyond": (bounded((1,), np.uint64, 0, 2**63), box([1], [0], [float(2**63)])),
    "uint8": (specs.Array((2,), np.uint8), box([2], [0, 0], [255, 255])),
    "integers in rows": (bounded((1, 2), np.int32, -1, [3, 4]), box([1, 2], [-1, -1], [3, 4])),
    "no integers": (specs.Array((0,), np.int32), integers([], [])),
    "floats": (specs.Array((1,), np.float32), box([1], [-1e30], [1e30])),
    "bounds of float64 beyond 1e30": (bounded((), np.float64, -1e300, 2), box([], [-1e30], [2])),
    "no floats": (specs.Array((0, 3), np.float32), box([0, 3], [], [])),
    "a text": (specs.StringArray(()), {TYPE: "StringArray"}),
    "a message in a tuple": ((specs.Array((), object),), parts({TYPE: "Array"})),
    "a mapping in its order": (
        OrderedDict(b=specs.DiscreteArray(2), a=specs.DiscreteArray(3)),
        parts(discrete(2), discrete(3)),
    ),
    "a mapping with indices in its order": (
        {1: specs.DiscreteArray(2), 0: specs.DiscreteArray(3)},
        parts(discrete(2), discrete(3)),
    ),
    "mappings of one": ({"a": {"b": specs.DiscreteArray(2)}}, discrete(2)),
    "a mapping of one tuple": ({"a": (specs.DiscreteArray(2),)}, parts(discrete(2))),
    "nothing": ((), parts()),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_of_a_spec(name: str) -> None:
    spec, expected = WRITTEN[name]
    found = spaces.to_json(spaces.spec_to_space(spec))
    assert found == expected
    assert list(found) == list(expected)


READ: dict[str, tuple[Any, Any]] = {
    "as many values as int64 has": (discrete(2**63), specs.DiscreteArray(2**63, np.int64, "o")),
    "no flags": ({TYPE: "MultiBinary", "n": 0}, bounded((0,), np.int8, 0, 1)),
    "int64": (integers([INT64_MIN], [INT64_MAX]), bounded((1,), np.int64, INT64_MIN, INT64_MAX)),
    "no integers": (integers([], []), bounded((0,), np.int64, (), ())),
    "one number": (box([], [-1], [1.5]), bounded((), np.float64, -1, 1.5)),
    "no numbers": (
        box([0, 3], [], []),
        bounded((0, 3), np.float64, np.empty((0, 3)), np.empty((0, 3))),
    ),
    "a pixel": (box([], [0], [255]), bounded((), np.uint8, 0, 255)),
    "nearly an image": (box([2], [0, 0], [255, 254]), bounded((2,), np.float64, 0, [255, 254])),
    "infinite": (box([1], [-1e31], [1e30]), bounded((1,), np.float64, -np.inf, np.inf)),
    "nothing": (parts(), ()),
}


@pytest.mark.parametrize("name", READ)
def test_the_spec_of_what_was_written(name: str) -> None:
    value, expected = READ[name]
    found = spaces.space_to_spec(spaces.from_json(value, "the space"), "o")
    assert found == expected
    if isinstance(found, specs.Array):
        assert (type(found), found.dtype, found.name) == (type(expected), expected.dtype, "o")


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        (np.uint8, 0, 255),
        (np.int8, -128, 127),
        (np.int64, -1000, 1000),
        (np.float32, -1000.0, 1000.0),
        (np.float64, -1000.0, 1000.0),
    ],
)
def test_boxes_have_the_dtype_that_is_asked_for_and_bounds_within_it(
    dtype: Any, low: Any, high: Any
) -> None:
    space = spaces.from_json(parts(box([1], [-1000], [1000]), discrete(3)), "the space")
    wide, number = spaces.space_to_spec(space, "o", dtype)
    assert (wide.dtype, wide.minimum.tolist(), wide.maximum.tolist()) == (dtype, [low], [high])
    assert number == specs.DiscreteArray(3, np.int64, "o.1")


def test_a_frame_in_mappings_is_one_array_and_travels_as_a_byte_list() -> None:
    frame = specs.Array((2, 3), np.uint8)
    assert spaces.single_leaf({"a": {"b": frame}}) is frame
    assert spaces.single_leaf({"a": (frame,)}) is None
