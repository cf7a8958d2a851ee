"""Keys, and values that nobody changes, of specs of many kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import controls
from dm_env_rpc_client.tensors.controls import Change, Keys, changed, checked_change, default_keys
from dm_env_rpc_client.tensors.specs import VariableArray

SPECS: dict[str, specs.Array] = {
    "speech": specs.StringArray((), name="speech"),
    "steer": specs.DiscreteArray(3, name="steer"),
    "arm.torque": specs.BoundedArray((), np.float32, -2, 2, "torque"),
    "vector": specs.BoundedArray((2,), np.float32, [-1, -2], [1, 2], "vector"),
    "grip": specs.Array((), bool, "grip"),
}


def keys_of(**by_name: specs.Array) -> dict[str, str]:
    return {key: ", ".join(map(str, changes)) for key, changes in default_keys(by_name).items()}


def test_keys_follow_from_specs() -> None:
    assert keys_of(**SPECS) == {
        "ArrowLeft": "steer 0",
        "ArrowRight": "steer 2",
        "ArrowDown": "arm.torque -2",
        "ArrowUp": "arm.torque 2",
        "a": "vector[0] -1",
        "d": "vector[0] 1",
        "s": "vector[1] -2",
        "w": "vector[1] 2",
        "z": "grip True",
        "0": "steer 0",
        "1": "steer 1",
        "2": "steer 2",
    }


@pytest.mark.parametrize(
    ("count", "arrows"),
    [
        (1, {}),
        (2, {"ArrowLeft": 0, "ArrowRight": 1}),
        (3, {"ArrowLeft": 0, "ArrowRight": 2}),
        (4, {"ArrowLeft": 0, "ArrowDown": 1, "ArrowRight": 2, "ArrowUp": 3}),
        (5, {"ArrowLeft": 1, "ArrowRight": 2, "ArrowDown": 3, "ArrowUp": 4}),
        (6, {}),
    ],
)
def test_a_choice_has_arrows_by_the_number_of_its_values(
    count: int, arrows: dict[str, int]
) -> None:
    keys = default_keys({"move": specs.DiscreteArray(count)})
    assert {key: change.value for key, (change,) in keys.items() if "Arrow" in key} == arrows
    assert [key for key in keys if "Arrow" not in key] == [str(each) for each in range(count)]


def test_each_of_many_values_has_a_key_of_its_own() -> None:
    keys = default_keys({"move": specs.DiscreteArray(18)})
    assert sorted(change.value for (change,) in keys.values()) == list(range(18))
    assert "r" not in keys, "it resets"
    high = default_keys({"move": specs.BoundedArray((), np.int32, 10, 13, "move")})
    assert [change.value for key, (change,) in high.items() if key in "0123"] == [10, 11, 12, 13]


def test_directions_leave_the_letters_to_what_follows() -> None:
    move, torque = specs.DiscreteArray(4), specs.BoundedArray((2,), np.float64, -1, 1)
    keys = keys_of(move=move, torque=torque)
    assert (keys["ArrowLeft"], keys["a"], keys["w"]) == ("move 0", "torque[0] -1", "torque[1] 1")
    # Directions come too late where an arrow is taken.
    assert keys_of(torque=torque, move=move)["ArrowLeft"] == "torque[0] -1"


@pytest.mark.parametrize(
    "spec",
    [
        specs.BoundedArray((), np.uint8, 0, 255),
        specs.BoundedArray((), np.int64, -(2**63), 2**63 - 1),
        specs.BoundedArray((), np.float64, -np.inf, 1),
        specs.BoundedArray((2, 2), np.float64, -1, 1),
        specs.Array((3,), np.float32),
        specs.StringArray(()),
        specs.Array((), object),
    ],
)
def test_what_has_no_keys(spec: specs.Array) -> None:
    assert default_keys({"level": spec}) == {}


@pytest.mark.parametrize(
    ("spec", "value"),
    [
        (specs.DiscreteArray(3), 1),
        (specs.DiscreteArray(4), 0),
        (specs.BoundedArray((2,), np.int8, [0, 3], [2, 9]), [1, 3]),
        (specs.BoundedArray((), np.int64, -(2**63), 2**63 - 1), 0),
        (specs.BoundedArray((2,), np.float32, [-1, 1], [1, 2]), [0, 1]),
        (specs.BoundedArray((), np.float64, 0, 2), 0),
        (specs.Array((), bool), False),
        (specs.StringArray(()), ""),
        (VariableArray((-1, 2), np.int32), [[0, 0]]),
    ],
)
def test_the_value_that_nobody_changes(spec: specs.Array, value: Any) -> None:
    found = controls.idle(spec)
    np.testing.assert_array_equal(found, value)
    spec.validate(found)


@pytest.mark.parametrize(
    ("named", "value", "change"),
    [
        ("steer", 2, Change("steer", 2)),
        ("vector[1]", -0.5, Change("vector", -0.5, (1,))),
        ("vector", [0.5, 1.5], Change("vector", [0.5, 1.5])),
        ("speech", "hello", Change("speech", "hello")),
        ("grip", True, Change("grip", True)),
    ],
)
def test_a_change_by_hand(named: str, value: Any, change: Change) -> None:
    found = checked_change(named, value, SPECS, "")
    assert (found.name, found.at) == (change.name, change.at)
    np.testing.assert_array_equal(found.value, change.value)


def test_the_only_action_needs_no_name() -> None:
    assert checked_change("", 1, {"steer": SPECS["steer"]}, "") == Change("steer", 1)


@pytest.mark.parametrize(
    ("named", "value", "error"),
    [
        ("jump", 1, "key: unknown action 'jump'; actions: 'speech'"),
        ("", 1, "key: the name of the action to set is missing; actions: 'speech', 'steer'"),
        ("steer", 3, "action 'steer': .*outside its"),
        ("steer", 1.5, "action 'steer'"),
        ("steer[0]", 1, r"action 'steer\[0\]': no such element; the action has shape \[\]"),
        ("vector[2]", 1, r"no such element; the action has shape \[2\]"),
        ("vector[0]", 1.5, r"action 'vector\[0\]'.*outside its"),
        ("vector[0]", "fast", r"action 'vector\[0\]'"),
    ],
)
def test_a_change_that_does_not_conform(named: str, value: Any, error: str) -> None:
    with pytest.raises(SpecError, match=error):
        checked_change(named, value, SPECS, "key: ")


def test_changes_leave_the_values_as_they_were() -> None:
    idle = {name: controls.idle(spec) for name, spec in SPECS.items()}
    after = changed(idle, [Change("vector", 1.0, (0,)), Change("vector", 2.0, (1,))])
    np.testing.assert_array_equal(after["vector"], [1, 2])
    np.testing.assert_array_equal(idle["vector"], [0, 0])
    assert after["vector"].dtype == np.float32


def test_a_key_that_was_tapped_counts_once_and_a_held_one_until_its_end() -> None:
    keys = Keys({"a": [Change("steer", 0)], "d": [Change("steer", 2)]})
    keys.press("a")
    keys.release("a")
    assert changed({}, keys.take()) == {"steer": 0}
    assert keys.take() == []
    keys.press("a")
    keys.press("d")
    for _ in range(2):
        assert changed({}, keys.take()) == {"steer": 2}, "the later wins"
    keys.release("d")
    assert changed({}, keys.take()) == {"steer": 0}
