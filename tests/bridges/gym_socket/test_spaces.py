"""Spaces and elements as JSON, of odd specs too, and what becomes of them at the other end."""

from __future__ import annotations

import functools
import inspect
import json
import pickle
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
from dm_env_rpc_client.adaptors.gymnasium.spaces import spec_to_space
from dm_env_rpc_client.bridges.gym_socket import Limits, packets, space_json
from dm_env_rpc_client.bridges.gym_socket.hosted_environment import as_hosted
from dm_env_rpc_client.bridges.gym_socket.server_session import Options, ServerSession
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.bridges.gym_socket import hosted
from tests.bridges.gym_socket.transcripts import Given


def written(space: spaces.Space[Any], element: Any) -> Any:
    """The JSON value of an action."""
    spec = elements.to_spec(space, "action")
    structure = elements.to_structure(space, element, "action")
    return space_json.to_jsonable(spec, structure, "action", check_bounds=True)


def real(low: list[float], high: list[float]) -> spaces.Box:
    return spaces.Box(np.array(low), np.array(high), dtype=np.float64)


# The examples of the protocol document (without its trailing commas, which are no JSON).
EXAMPLES: dict[str, tuple[spaces.Space[Any], Any]] = {
    '{"type":"Box","shape":[2,3],"low":[-1,-1,-1,-1,-1,-1],"high":[1,1,1,1,1,1]}': (
        spaces.Box(-1, 1, (2, 3), np.float64),
        specs.BoundedArray((2, 3), np.float64, -1, 1, "action"),
    ),
    '{"type":"Discrete","n":5}': (
        spaces.Discrete(5),
        specs.DiscreteArray(5, np.int64, "action"),
    ),
    '{"type":"MultiBinary","n":5}': (
        spaces.MultiBinary(5),
        specs.BoundedArray((5,), np.int8, 0, 1, "action"),
    ),
    '{"type":"MultiDiscrete","low":[0,0,0],"high":[4,1,1]}': (
        spaces.MultiDiscrete([5, 2, 2]),
        specs.BoundedArray((3,), np.int64, 0, [4, 1, 1], "action"),
    ),
    '{"type":"Tuple","subspaces":[{"type":"Discrete","n":5},{"type":"MultiBinary","n":2}]}': (
        spaces.Tuple((spaces.Discrete(5), spaces.MultiBinary(2))),
        (
            specs.DiscreteArray(5, np.int64, "action.0"),
            specs.BoundedArray((2,), np.int8, 0, 1, "action.1"),
        ),
    ),
}


@pytest.mark.parametrize("text", EXAMPLES)
def test_spaces_are_written_as_the_document_says(text: str) -> None:
    space, spec = EXAMPLES[text]
    assert bounded_parsing.encode(space_json.to_json(space, "action"), "") == text.encode()
    assert space_json.from_json(json.loads(text), "the space") == space
    assert elements.to_spec(space, "action") == spec
    assert space_json.to_json(spec_to_space(spec, "action"), "action") == json.loads(text)
    space.seed(3)
    for sample in (space.sample() for _ in range(5)):
        sent = Given(packets.encode_request(packets.Step(written(space, sample))))
        request = packets.read_request(sent, "first", Limits())
        assert isinstance(request, packets.Step)
        received = space_json.from_jsonable(spec, request.action, "the action", check_bounds=True)
        expected = elements.to_structure(space, sample, "action")
        np.testing.assert_equal(received, expected)
        assert type(received) is type(expected)


def test_infinite_bounds_are_1e30() -> None:
    value = space_json.to_json(real([-np.inf, -3e38], [np.inf, 0.5]), "action")
    assert value["low"] == [-1e30, -1e30]
    assert value["high"] == [1e30, 0.5]
    read = space_json.from_json(value, "the space")
    assert read == real([-np.inf] * 2, [np.inf, 0.5])


@pytest.mark.parametrize("dtype", [None, np.float32])
def test_bounds_that_gymnasium_does_not_allow_are_the_largest_numbers(dtype: Any) -> None:
    value = {"type": "Box", "shape": [2], "low": [1e300, -1e300], "high": [1e301, -1e299]}
    read: Any = space_json.from_json(value, "the space", dtype)
    assert np.isfinite(read.low[0])
    assert np.isfinite(read.high[1])
    assert (read.high[0], read.low[1]) == (np.inf, -np.inf)


def test_a_space_of_an_unknown_type_is_named() -> None:
    graph = spaces.Graph(spaces.Discrete(2), None)
    value = space_json.to_json(spaces.Tuple((graph,)), "action")
    assert value == {"type": "Tuple", "subspaces": [{"type": "Graph"}]}
    with pytest.raises(
        SpecError, match=r"action: Tuple\[0\]: the server's space is of type 'Graph'"
    ):
        space_json.from_json(value, "action")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, 'object with a "type"'),
        ({}, 'object with a "type"'),
        ({"type": 5}, 'object with a "type"'),
        ({"type": "Discrete"}, '"n" must be an integer'),
        ({"type": "Discrete", "n": 0}, '"n" must be an integer'),
        ({"type": "Discrete", "n": True}, '"n" must be an integer'),
        ({"type": "Discrete", "n": 1.5}, '"n" must be an integer'),
        ({"type": "Discrete", "n": 2**64}, '"n" must be an integer'),
        ({"type": "MultiBinary", "n": 10**9}, '"n" must be an integer from 0 to 1048576'),
        ({"type": "Box", "shape": [-1], "low": [], "high": []}, "invalid shape"),
        ({"type": "Box", "shape": [1] * 33, "low": [0], "high": [0]}, "invalid shape"),
        ({"type": "Box", "shape": [10**6] * 3, "low": [], "high": []}, "elements; at most"),
        ({"type": "Box", "shape": [2], "low": [0], "high": [0, 1]}, "flat list of 2"),
        ({"type": "Box", "shape": [1], "low": ["0"], "high": [0]}, "not numbers"),
        ({"type": "Box", "shape": [1], "low": [10**400], "high": [0]}, "does not fit in a float64"),
        ({"type": "Box", "shape": [1], "low": [1], "high": [0]}, "low bound is above"),
        ({"type": "Box", "shape": [1], "low": [float("nan")], "high": [0]}, "bound is NaN"),
        ({"type": "Box", "shape": "2", "low": [], "high": []}, "list of integers"),
        ({"type": "MultiDiscrete", "low": [0], "high": [1, 2]}, "differ in length"),
        ({"type": "MultiDiscrete", "low": [2], "high": [1]}, "low bound is above"),
        ({"type": "MultiDiscrete", "low": [2**70], "high": [2**71]}, "fit a 64-bit integer"),
        ({"type": "Tuple", "subspaces": 3}, "list of spaces"),
        ({"type": "Tuple", "subspaces": [{"type": "Discrete"}]}, r"Tuple\[0\]"),
        (
            {"type": "Tuple", "subspaces": [{"type": "MultiBinary", "n": 1 << 20}] * 2},
            "elements; at most",
        ),
    ],
)
def test_impossible_spaces_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        space_json.from_json(value, "the space")


def test_numbers_of_languages_without_integers() -> None:
    value = {"type": "MultiDiscrete", "low": [0.0], "high": [4.0]}
    assert space_json.from_json(value, "the space") == spaces.MultiDiscrete([5])


def test_there_is_a_discrete_of_as_many_values_as_int64_has() -> None:
    space: Any = space_json.from_json({"type": "Discrete", "n": 2**63}, "the space")
    space.seed(3)
    samples = [space.sample() for _ in range(20)]
    assert all(space.contains(sample) for sample in samples)
    assert max(samples) > 2**62
    assert space.contains(np.int64(2**63 - 1))
    assert not space.contains(np.int64(-1))
    assert space == space_json.LargestDiscrete() != spaces.Discrete(2**63 - 1)
    assert pickle.loads(pickle.dumps(space)) == space


ARM = spaces.Dict({"arm": spaces.Box(-1, 1, (2,)), "mode": spaces.Discrete(3)})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"arm": [0, 0]}, r"keys \['arm', 'mode'\]"),
        ([[0, 0], 1], r"keys \['arm', 'mode'\]"),
        ({"arm": [0, 0, 0], "mode": 1}, r"action\.arm: has shape \[3\]"),
        ({"arm": [0, 2], "mode": 1}, r"action\.arm: element \[1\] is 2\.0; expected .* -1\.0 to"),
        ({"arm": [0, float("nan")], "mode": 1}, "NaN or infinity"),
        ({"arm": [0, 0], "mode": 3}, r"action\.mode: the value is 3"),
        ({"arm": [0, 0], "mode": 1.5}, "is not an integer"),
        ({"arm": [0, 0], "mode": "1"}, "expected int64"),
    ],
)
def test_actions_that_do_not_conform(value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        written(ARM, value)


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        ((specs.DiscreteArray(3),), [1, 2], "a list of 1 parts"),
        ((specs.DiscreteArray(3),), 1, "a list of 1 parts"),
        (specs.Array((2,), np.float32), [1, [2]], "is not an array"),
        (specs.Array((2,), np.float32), ["a", "b"], "not an array of 64-bit numbers"),
        (specs.Array((1,), np.float64), [float("nan")], "is nan; expected a finite number"),
        (specs.Array((), np.int64), 2**70, "not an array of 64-bit numbers"),
        (specs.BoundedArray((), np.float64, 0, np.inf), float("inf"), "the value is inf"),
        (specs.StringArray(()), "text", "has no encoding"),
        (specs.DiscreteArray(3), True, "is boolean; expected a number"),
        (specs.BoundedArray((2,), np.float32, 0, 1), [True, False], "is boolean"),
    ],
)
def test_json_that_is_no_element(spec: Any, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        space_json.from_jsonable(spec, value, "action", check_bounds=True)


def test_an_element_has_as_many_parts_as_its_space() -> None:
    with pytest.raises(SpecError, match="expected a tuple of 1 values"):
        written(spaces.Tuple((spaces.Discrete(3),)), [1, 2])


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
