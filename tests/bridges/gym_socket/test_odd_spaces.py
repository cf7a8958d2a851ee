"""What travels of odd specs and spaces, as JSON, and what becomes of it at the other end."""

from __future__ import annotations

import functools
import inspect
import json
from collections import OrderedDict
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest
import tree
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.bridges.gym_socket import packets, space_json
from dm_env_rpc_client.bridges.gym_socket.hosted_environment import as_hosted
from dm_env_rpc_client.bridges.gym_socket.server_session import Options, ServerSession
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.bridges.gym_socket import hosted

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


class Word(spaces.Space[Any]):
    """Elements are strings."""

    def __init__(self) -> None:
        super().__init__((), np.str_)


class Angles(spaces.Space[Any]):
    """Elements are arrays of one shape."""

    def __init__(self) -> None:
        super().__init__((2,), np.float32)


def bounded(shape: tuple[int, ...], dtype: Any, low: Any, high: Any) -> specs.BoundedArray:
    return specs.BoundedArray(shape, dtype, low, high, "o")


WRITTEN: dict[str, tuple[Any, Any]] = {
    "a number of values": (specs.DiscreteArray(7, np.uint8), discrete(7)),
    "as many values as int64 has": (specs.DiscreteArray(INT64_MAX, np.int64), discrete(INT64_MAX)),
    "an integer from another number on": (bounded((), np.int32, 3, 5), box([], [3], [5])),
    "an integer from 0 on that is no DiscreteArray": (bounded((), np.int8, 0, 2), discrete(3)),
    "an integer from 0 on without bounds": (specs.Array((), np.uint16), discrete(1 << 16)),
    "all of int64 from 0 on": (bounded((), np.int64, 0, INT64_MAX), discrete(2**63)),
    "an integer that is not from 0 on": (specs.Array((), np.int8), box([], [-128], [127])),
    "an integer beyond int64": (specs.Array((), np.uint64), box([], [0], [float(2**64)])),
    "uint8 without bounds": (specs.Array((), np.uint8), box([], [0], [255])),
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
    "flags in rows": (specs.Array((1, 2), bool), box([1, 2], [0, 0], [1, 1])),
    "a text": (specs.StringArray(()), {TYPE: "Text"}),
    "texts": (specs.StringArray((2,)), parts({TYPE: "Text"}, {TYPE: "Text"})),
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


def observing(environment: Any) -> Any:
    """What a session of an environment sends as its observation space."""
    session = ServerSession(as_hosted(environment), Options())
    return json.loads(session.answer(packets.GetSpace(packets.WhichSpace.OBSERVATION))[4:])


class Odd(hosted.Counter):
    def __init__(self, spec: Any):
        super().__init__()
        self._spec = spec

    def observation_spec(self) -> Any:
        return self._spec


@pytest.mark.parametrize("name", WRITTEN)
def test_what_is_written_of_a_spec(name: str) -> None:
    spec, expected = WRITTEN[name]
    found = observing(Odd(spec))
    assert found == expected
    assert list(found) == list(expected)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ((specs.Array((), object),), "'observation.0' is an array of object"),
        ({"a": VariableArray((-1, 3), np.float32)}, "no encoding for arrays of variable length"),
        ({"a": VariableArray((3, -1), np.float32)}, "variable length only along the first axis"),
    ],
)
def test_specs_without_a_space_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        observing(Odd(spec))


OF_GYMNASIUM: dict[str, tuple[spaces.Space[Any], Any]] = {
    "a number of values from another number on": (
        spaces.Discrete(3, start=-1),
        box([], [-1], [1]),
    ),
    "flags in rows": (spaces.MultiBinary([1, 2]), box([1, 2], [0, 0], [1, 1])),
    "a Box of flags": (spaces.Box(0, 1, (3,), np.int8), {TYPE: "MultiBinary", "n": 3}),
    "a Box of bools": (spaces.Box(0, 1, (2,), np.bool_), {TYPE: "MultiBinary", "n": 2}),
    "a bool": (spaces.Box(0, 1, (), np.bool_), discrete(2)),
    "a Box of integers": (spaces.Box(-1, 4, (2,), np.int32), integers([-1, -1], [4, 4])),
    "numbers of values from others on": (
        spaces.MultiDiscrete([2, 3], start=[5, -1]),
        integers([5, -1], [6, 1]),
    ),
    "numbers of values in rows": (
        spaces.MultiDiscrete(np.array([[2, 3]])),
        box([1, 2], [0, 0], [1, 2]),
    ),
    "half precision": (spaces.Box(-1, 1, (1,), np.float16), box([1], [-1], [1])),
    "a Dict of one": (spaces.Dict({"only": spaces.Discrete(3)}), discrete(3)),
    "a Dict in its order": (
        spaces.Dict([("b", spaces.Discrete(3)), ("a", spaces.Tuple((spaces.Discrete(2),)))]),
        parts(discrete(3), parts(discrete(2))),
    ),
    "an empty Dict": (spaces.Dict({}), parts()),
    "a Graph": (spaces.Graph(spaces.Discrete(2), None), {TYPE: "Graph"}),
    "several kinds": (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), {TYPE: "OneOf"}),
    "texts of another type": (Word(), {TYPE: "Text"}),
    "arrays of another type": (Angles(), box([2], [-1e30, -1e30], [1e30, 1e30])),
}


if "dtype" in inspect.signature(spaces.Discrete.__init__).parameters:  # From Gymnasium 1.3 on.
    OF_GYMNASIUM["values of another dtype"] = spaces.Discrete(7, dtype=np.uint8), discrete(7)


@pytest.mark.parametrize("name", OF_GYMNASIUM)
def test_what_is_written_of_a_space(name: str) -> None:
    space, expected = OF_GYMNASIUM[name]

    class Spaced(gymnasium.Env[Any, Any]):
        action_space = spaces.Discrete(2)
        observation_space = space

    assert observing(Spaced()) == expected


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
    found = elements.to_spec(space_json.from_json(value, "the space"), "o")
    assert found == expected
    space = space_json.from_json(value, "the space")
    written = space_json.to_json(space, "o")
    assert space_json.from_json(written, "the space") == space
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
    value = parts(box([1], [-1000], [1000]), discrete(3))
    wide, number = elements.to_spec(space_json.from_json(value, "the space", dtype), "o")
    assert (wide.dtype, wide.minimum.tolist(), wide.maximum.tolist()) == (dtype, [low], [high])
    assert number == specs.DiscreteArray(3, np.int64, "o.1")


def test_a_frame_in_mappings_is_one_array_and_travels_as_a_byte_list() -> None:
    frame = specs.BoundedArray((2, 3), np.uint8, 0, 255)
    for spec, is_byte_list in (({"a": {"b": frame}}, True), ({"a": (frame,)}, False)):
        environment: Any = Odd(spec)
        value = tree.map_structure(lambda leaf: leaf.generate_value(), spec)
        environment.reset = functools.partial(dm_env.restart, value)
        session = ServerSession(as_hosted(environment), Options())
        assert session.answer(packets.Reset())[0] == is_byte_list
