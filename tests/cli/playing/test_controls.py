"""Keys of action specs: whatever is pressed, the action conforms to its spec."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs
from hypothesis import given, settings
from hypothesis import strategies as st

from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.playing.controls import Choice, Level
from dm_env_rpc_client.cli.playing.panel import Binding, Panel, parse_binding
from dm_env_rpc_client.tensors.variable_specs import VariableArray

KINDS: dict[str, Any] = {
    "one": specs.DiscreteArray(1),
    "two": specs.DiscreteArray(2),
    "three": specs.DiscreteArray(3, np.uint8),
    "four": specs.DiscreteArray(4),
    "five": specs.DiscreteArray(5),
    "eighteen": specs.DiscreteArray(18),
    "around zero": specs.BoundedArray((), np.int8, -1, 1),
    "every uint8": specs.DiscreteArray(256, np.uint8),
    "every int64": specs.BoundedArray((), np.int64, -(2**63), 2**63 - 1),
    "every uint64": specs.BoundedArray((), np.uint64, 0, 2**64 - 1),
    "any int32": specs.Array((), np.int32),
    "bool": specs.Array((), bool),
    "unit": specs.BoundedArray((), np.float32, -1, 1),
    "narrow": specs.BoundedArray((), np.float32, 0.1, 0.2),
    "half open": specs.BoundedArray((), np.float64, 5, np.inf),
    "any float": specs.Array((), np.float32),
    "every float": specs.BoundedArray((), np.float32, -np.inf, np.inf),
    "each its own": specs.BoundedArray((3,), np.float32, [-1, 0, 2], [1, 0.5, 2]),
    "matrix": specs.BoundedArray((2, 2), np.int64, 0, 3),
    "text": specs.StringArray(()),
    "texts": specs.StringArray((2,)),
    "long": specs.BoundedArray((10, 10), np.int8, 1, 5),
    "variable": VariableArray((-1,), np.int32),
    "empty": specs.Array((0,), np.float32),
}
KEYS = [*"0123456789abcdefghijk+-=_", "left", "right", "up", "down", "tab", "space", "escape"]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(keys=st.lists(st.sampled_from(KEYS), max_size=60))
def test_whatever_is_pressed_the_action_conforms(kind: str, keys: list[str]) -> None:
    spec = KINDS[kind]
    panel = Panel({"a": spec})
    spec.validate(panel.action()["a"])
    for key in keys:
        panel.press(key)
        value = panel.action()["a"]
        spec.validate(value)
        assert np.asarray(value).dtype == spec.dtype or isinstance(spec, specs.StringArray)
    panel.select(1)
    panel.go_idle()
    spec.validate(panel.action()["a"])


@pytest.mark.parametrize(
    ("kind", "pressed"),
    [
        ("two", {"left": 0, "right": 1, "0": 0, "1": 1}),
        ("three", {"left": 0, "down": 1, "right": 2, "2": 2}),
        ("four", {"left": 0, "down": 1, "right": 2, "up": 3}),
        ("five", {"left": 1, "right": 2, "down": 3, "up": 4, "0": 0}),
        ("around zero", {"left": -1, "down": 0, "right": 1, "0": -1, "2": 1}),
        ("eighteen", {"0": 0, "9": 9, "a": 10, "h": 17}),
        ("bool", {"1": True, "0": False, "right": True}),
    ],
)
def test_choices_have_digits_letters_and_arrows(kind: str, pressed: dict[str, Any]) -> None:
    panel = Panel({"a": KINDS[kind]})
    for key, value in pressed.items():
        assert panel.press(key)
        assert panel.action()["a"] == value
    assert panel.steps_at_once
    assert not panel.press("z")


@pytest.mark.parametrize(
    ("kind", "idle"),
    [
        ("three", 1), ("around zero", 0), ("five", 0), ("eighteen", 0),
        ("two", 1), ("four", 1), ("bool", 1),
    ],
)  # fmt: skip
def test_a_key_counts_for_one_step_but_two_or_four_values_stay(kind: str, idle: int) -> None:
    panel = Panel({"a": KINDS[kind]})
    panel.press("right")
    panel.press("1")
    panel.go_idle()
    assert panel.action()["a"] == idle


def test_levels_go_in_twenty_presses_from_bound_to_bound_and_not_beyond() -> None:
    panel = Panel({"a": KINDS["unit"]})
    assert not panel.steps_at_once
    for _ in range(10):
        assert panel.press("+")
    assert panel.action()["a"] == np.float32(1)
    panel.press("right")
    assert panel.action()["a"] == np.float32(1)
    for _ in range(10):
        panel.press("-")
    assert panel.action()["a"] == 0
    panel.press("down")
    panel.press("0")
    assert panel.action()["a"] == 0
    panel.go_idle()
    (level,) = panel.controls
    assert isinstance(level, Level)
    assert level.keys() == "press +/- to change it by 0.1 within -1..1"
    assert Panel({"a": KINDS["half open"]}).controls[0].keys().endswith(" by 0.1 within 5..")


def test_elements_are_controls_of_their_own() -> None:
    panel = Panel({"arm": {"torque": KINDS["each its own"]}, "grip": KINDS["bool"]})
    labels = [control.label for control in panel.controls]
    assert labels == ["arm.torque[0]", "arm.torque[1]", "arm.torque[2]", "grip"]
    panel.press("+")
    panel.select(-1)
    panel.press("1")
    panel.select(1)
    panel.press("+")
    action = panel.action()
    np.testing.assert_array_equal(action["arm.torque"], np.array([0.2, 0, 2], np.float32))
    assert action["grip"]


def test_what_no_keys_can_set_is_held_or_left_out() -> None:
    messages = {"messages": specs.Array((), object)}
    panel = Panel({"long": KINDS["long"], **messages, "variable": KINDS["variable"]})
    assert panel.controls == []
    assert panel.selected is None
    assert panel.fixed == ["long", "messages", "variable"]
    panel.select(1)
    assert not panel.press("1")
    action = panel.action()
    assert set(action) == {"long", "variable"}
    assert np.all(action["long"] == 1)


def test_there_are_not_more_controls_than_can_be_looked_at() -> None:
    panel = Panel({f"a{i:02}": KINDS["two"] for i in range(100)})
    assert len(panel.controls) == 64
    assert len(panel.fixed) == 36


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=0", Binding("a", None, "", "0")),
        ("left=paddle:2", Binding("left", "paddle", "", "2")),
        ("w=arm.torque[0]:+=0.1", Binding("w", "arm.torque[0]", "+=", "0.1")),
        ("s=-=1", Binding("s", None, "-=", "1")),
        ("x=-1", Binding("x", None, "", "-1")),
        ("==1", Binding("=", None, "", "1")),
        (" =1", Binding("space", None, "", "1")),
        ("idle=fire:0", Binding("idle", "fire", "", "0")),
        ("é=say:a:b", Binding("é", "say", "", "a:b")),
    ],
)
def test_keys_by_hand_are_read(text: str, expected: Binding) -> None:
    assert parse_binding(text) == expected


@pytest.mark.parametrize("text", ["", "a", "=1", "a=", "ctrl=1", "left right=1", "a=b:"])
def test_keys_by_hand_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match=r"unknown key|looks like"):
        parse_binding(text)


def test_keys_by_hand_go_before_all_others() -> None:
    bindings = [parse_binding(text) for text in ("q=move:2", "w=speed:+=0.5", "idle=move:0")]
    panel = Panel({"move": KINDS["three"], "speed": KINDS["unit"]}, bindings)
    assert panel.action()["move"] == 0
    assert all(panel.press(key) for key in "qwww")
    assert panel.action() == {"move": 2, "speed": 1.0}
    panel.go_idle()
    assert panel.action()["move"] == 0
    assert panel.keys_by_hand() == "q: move=2  w: speed+=0.5"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a=1", "name what 'a' changes, as in KEY=NAME:VALUE; NAME is one of: move, speed, say"),
        ("a=nothing:1", "name what 'a' changes"),
        ("a=move:7", "move is one of 0, 1, 2, got 7"),
        ("a=move:+=1", "move is one of 0, 1, 2, got"),
        ("a=speed:fast", "speed is a number"),
        ("a=speed:2", "speed is from -1 to 1, got 2"),
    ],
)
def test_keys_by_hand_that_fit_no_action(text: str, said: str) -> None:
    spec = {"move": KINDS["three"], "speed": KINDS["unit"], "say": KINDS["text"]}
    with pytest.raises(UsageError) as caught:
        Panel(spec, [parse_binding(text)])
    assert said in str(caught.value)


def test_texts_are_set_by_hand_and_added_to() -> None:
    bindings = [parse_binding("h=hello"), parse_binding("!=+=!")]
    panel = Panel({"say": KINDS["text"]}, bindings)
    for key in "h!!":
        panel.press(key)
    assert panel.action() == {"say": "hello!!"}
    assert not panel.press("x")
    assert not isinstance(panel.controls[0], Choice)
