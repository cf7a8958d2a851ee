from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium import elements
from dm_env_rpc_client.adaptors.gymnasium.spaces import spec_to_space
from dm_env_rpc_client.bridges.gym_socket import Limits, packets, space_json
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_parsing
from tests.bridges.gym_socket.transcripts import Given


def written(space: spaces.Space[Any], element: Any) -> Any:
    """The JSON value of an action."""
    spec = elements.to_spec(space, "action")
    structure = elements.to_structure(space, element, "action")
    return space_json.to_jsonable(spec, structure, "action", check_bounds=True)


def box(low: Any, high: Any, dtype: Any = np.float64) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


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
    value = space_json.to_json(box([-np.inf, -3e38], [np.inf, 0.5]), "action")
    assert value["low"] == [-1e30, -1e30]
    assert value["high"] == [1e30, 0.5]
    read = space_json.from_json(value, "the space")
    assert read == box([-np.inf] * 2, [np.inf, 0.5])


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
