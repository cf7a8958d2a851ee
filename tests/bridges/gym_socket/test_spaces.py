from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import pytest
import tree
from dm_env import specs
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client.bridges.gym_socket import Limits, packet_codec, packets, samples, spaces
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_json
from dm_env_rpc_client.tensors.variable_specs import VariableArray
from tests.bridges.gym_socket.strategies import SPACES
from tests.bridges.gym_socket.transcripts import Given


def there_and_back(spec: Any, element: Any) -> Any:
    jsonable = samples.to_jsonable(spec, element, "the action", check_bounds=True)
    return samples.from_jsonable(spec, jsonable, "the action", check_bounds=True)


def sent_and_received(space: spaces.Space) -> spaces.Space:
    sent = Given(packet_codec.encode_space(spaces.to_json(space)))
    request = packets.GetSpace(packets.WhichSpace.ACTION)
    return spaces.from_json(packet_codec.read_answer(sent, request, Limits()), "the space")


@given(SPACES)
def test_spaces_survive_a_round_trip(space: spaces.Space) -> None:
    assert sent_and_received(space) == space


@given(SPACES)
def test_spaces_survive_being_specs(space: spaces.Space) -> None:
    assert spaces.spec_to_space(spaces.space_to_spec(space, "action")) == space


@given(SPACES, st.integers(0, 2**32 - 1))
def test_elements_survive_a_round_trip(space: spaces.Space, seed: int) -> None:
    spec = spaces.space_to_spec(space, "action")
    element = samples.sample(spec, np.random.default_rng(seed))
    jsonable = samples.to_jsonable(spec, element, "the action", check_bounds=True)
    sent = Given(packet_codec.encode_request(packets.Step(jsonable)))
    request = packet_codec.read_request(sent, "first", Limits())
    assert isinstance(request, packets.Step)
    received = samples.from_jsonable(spec, request.action, "the action", check_bounds=True)
    assert_same(received, element)


def assert_same(left: Any, right: Any) -> None:
    assert type(left) is type(right) or not isinstance(left, tuple)
    if isinstance(left, tuple):
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    else:
        assert left.dtype == right.dtype
        np.testing.assert_array_equal(left, right)


# The examples of the protocol document (without its trailing commas, which are no JSON).
EXAMPLES: dict[str, tuple[spaces.Space, Any]] = {
    '{"type":"Box","shape":[2,3],"low":[-1,-1,-1,-1,-1,-1],"high":[1,1,1,1,1,1]}': (
        spaces.Box(np.full((2, 3), -1), np.full((2, 3), 1)),
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
        spaces.MultiDiscrete((0, 0, 0), (4, 1, 1)),
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
    assert bounded_json.encode(spaces.to_json(space), "") == text.encode()
    assert spaces.from_json(json.loads(text), "the space") == space
    assert spaces.space_to_spec(space, "action") == spec


def test_infinite_bounds_are_1e30() -> None:
    box = spaces.Box([-np.inf, -3e38], [np.inf, 0.5])
    json_value = spaces.to_json(box)
    assert json_value["low"] == [-1e30, -1e30]
    assert json_value["high"] == [1e30, 0.5]
    assert spaces.from_json(json_value, "the space") == spaces.Box([-np.inf] * 2, [np.inf, 0.5])


def test_pixels_are_uint8_and_other_boxes_float64_unless_told_otherwise() -> None:
    pixels = spaces.Box(np.zeros((2, 2)), np.full((2, 2), 255))
    assert spaces.space_to_spec(pixels, "o").dtype == np.uint8
    assert spaces.space_to_spec(pixels, "o", np.float32).dtype == np.float32
    endless = spaces.Box([-np.inf, 0.5], [np.inf, 2.0])
    assert spaces.space_to_spec(endless, "o").dtype == np.float64
    spec = spaces.space_to_spec(endless, "o", np.int64)
    assert spec.minimum.tolist() == [-(2**63), 0]
    assert spec.maximum.tolist() == [2**63 - 1, 2]


def test_a_space_of_an_unknown_type_is_named() -> None:
    space = spaces.from_json({"type": "Graph", "nodes": 3}, "the space")
    assert sent_and_received(space) == spaces.UnknownSpace("Graph")
    with pytest.raises(SpecError, match=r"action\.0: the server's space is of type 'Graph'"):
        spaces.space_to_spec(spaces.Tuple((space,)), "action")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, 'object with a "type"'),
        ({}, 'object with a "type"'),
        ({"type": 5}, 'object with a "type"'),
        ({"type": "Discrete"}, '"n" is an integer'),
        ({"type": "Discrete", "n": 0}, '"n" is an integer'),
        ({"type": "Discrete", "n": True}, '"n" is an integer'),
        ({"type": "Discrete", "n": 1.5}, '"n" is an integer'),
        ({"type": "Discrete", "n": 2**64}, '"n" is an integer'),
        ({"type": "MultiBinary", "n": 10**9}, '"n" is an integer from 0 to 1048576'),
        ({"type": "Box", "shape": [-1], "low": [], "high": []}, "invalid shape"),
        ({"type": "Box", "shape": [1] * 33, "low": [0], "high": [0]}, "invalid shape"),
        ({"type": "Box", "shape": [10**6] * 3, "low": [], "high": []}, "elements; at most"),
        ({"type": "Box", "shape": [2], "low": [0], "high": [0, 1]}, "flat list of 2"),
        ({"type": "Box", "shape": [1], "low": ["0"], "high": [0]}, "not numbers"),
        ({"type": "Box", "shape": [1], "low": [10**400], "high": [0]}, "does not fit a float64"),
        ({"type": "Box", "shape": [1], "low": [1], "high": [0]}, "low is above"),
        ({"type": "Box", "shape": [1], "low": [float("nan")], "high": [0]}, "low is above"),
        ({"type": "Box", "shape": "2", "low": [], "high": []}, "list of integers"),
        ({"type": "MultiDiscrete", "low": [0], "high": [1, 2]}, "do not match"),
        ({"type": "MultiDiscrete", "low": [2], "high": [1]}, "do not match"),
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
        spaces.from_json(value, "the space")


def test_numbers_of_languages_without_integers() -> None:
    value = {"type": "MultiDiscrete", "low": [0.0], "high": [4.0]}
    assert spaces.from_json(value, "the space") == spaces.MultiDiscrete((0,), (4,))


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (specs.Array((), bool), spaces.Discrete(2)),
        (specs.Array((3,), bool), spaces.MultiBinary(3)),
        (specs.BoundedArray((2, 2), bool, False, True), spaces.Box([[0, 0]] * 2, [[1, 1]] * 2)),
        (specs.Array((2,), np.float32), spaces.Box([-np.inf] * 2, [np.inf] * 2)),
        (specs.Array((1,), np.int8), spaces.MultiDiscrete((-128,), (127,))),
        (specs.Array((1,), np.uint8), spaces.Box([0], [255])),
        (specs.Array((1,), np.uint64), spaces.Box([0], [2.0**64])),
        (specs.BoundedArray((), np.int32, -1, 2), spaces.Box(-1, 2)),
        (specs.StringArray(()), spaces.UnknownSpace("StringArray")),
        ({"only": specs.DiscreteArray(3)}, spaces.Discrete(3)),
        (
            {"b": specs.DiscreteArray(3), "a": [specs.DiscreteArray(2)]},
            spaces.Tuple((spaces.Discrete(3), spaces.Tuple((spaces.Discrete(2),)))),
        ),
        ({}, spaces.Tuple(())),
    ],
)
def test_specs_without_a_space_of_their_own(spec: Any, space: spaces.Space) -> None:
    assert spaces.spec_to_space(spec) == space


def test_arrays_of_variable_length_have_no_space() -> None:
    with pytest.raises(SpecError, match="no arrays of variable length"):
        spaces.spec_to_space({"points": VariableArray((-1, 3), np.float32)})


def test_named_tuples_stay_what_they_are() -> None:
    class Pair(NamedTuple):
        left: specs.Array
        right: specs.Array

    spec = Pair(specs.DiscreteArray(3), specs.DiscreteArray(4))
    sample = samples.sample(spec, np.random.default_rng(0))
    received = there_and_back(spec, sample)
    assert isinstance(received, Pair)
    assert received == sample


def test_mappings_travel_in_their_own_order() -> None:
    spec = {"b": specs.DiscreteArray(3), "a": (specs.Array((2,), np.float32),)}
    value = {"a": ([0.5, 1.5],), "b": 2}
    jsonable = samples.to_jsonable(spec, value, "the action", check_bounds=True)
    assert jsonable == [2, [[0.5, 1.5]]]
    received = there_and_back(spec, value)
    assert received["b"] == 2
    np.testing.assert_array_equal(received["a"][0], np.array([0.5, 1.5], np.float32))


ARM = {"arm": specs.BoundedArray((2,), np.float32, -1, 1), "mode": specs.DiscreteArray(3)}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"arm": [0, 0]}, "keys 'arm', 'mode'"),
        ([[0, 0], 1], "keys 'arm', 'mode'"),
        ({"arm": [0, 0, 0], "mode": 1}, r"action\.arm: has shape \[3\]"),
        ({"arm": [0, 2], "mode": 1}, r"action\.arm: element \[1\] is 2\.0; expected .* -1\.0 to"),
        ({"arm": [0, float("nan")], "mode": 1}, "NaN or infinity"),
        ({"arm": [0, 0], "mode": 3}, r"action\.mode: the value is 3"),
        ({"arm": [0, 0], "mode": 1.5}, "is not an integer"),
        ({"arm": [0, 0], "mode": "1"}, "expected int32"),
    ],
)
def test_actions_that_do_not_conform(value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        samples.to_jsonable(ARM, value, "action", check_bounds=True)


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
        (specs.DiscreteArray(3), True, "is true or false; expected a number"),
        (specs.BoundedArray((2,), np.float32, 0, 1), [True, False], "is true or false"),
    ],
)
def test_json_that_is_no_element(spec: Any, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        samples.from_jsonable(spec, value, "action", check_bounds=True)


def test_an_element_has_as_many_parts_as_its_spec() -> None:
    with pytest.raises(SpecError, match="expected 1 parts"):
        samples.to_jsonable((specs.DiscreteArray(3),), [1, 2], "action", check_bounds=True)


def test_samples_conform() -> None:
    random = np.random.default_rng(0)
    spec = {
        "unbounded": specs.Array((3,), np.float32),
        "half": (
            specs.BoundedArray((3,), np.float64, 2, np.inf),
            specs.BoundedArray((3,), np.float64, -np.inf, [2, 3, 4]),
        ),
        "flags": specs.Array((2,), bool),
        "integer": specs.Array((), np.int8),
    }
    for _ in range(100):
        sample = samples.sample(spec, random)
        tree.map_structure(lambda leaf, value: leaf.validate(value), spec, sample)
        assert sample["half"][0].min() >= 2
        assert (sample["half"][1] <= [2, 3, 4]).all()
