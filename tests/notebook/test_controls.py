from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.notebook.controls import Buttons, Sliders, Text, control_for
from dm_env_rpc_client.tensors.specs import VariableArray

CASES: dict[str, tuple[specs.Array, type, Any]] = {
    "a choice": (specs.DiscreteArray(3), Buttons, 2),
    "all values of a small range": (specs.BoundedArray((), np.int8, -1, 1), Buttons, -1),
    "a bool": (specs.Array((), bool), Buttons, True),
    "a choice of one": (specs.DiscreteArray(1), Buttons, 0),
    "a large choice": (specs.DiscreteArray(1000), Sliders, 999),
    "all bytes": (specs.BoundedArray((), np.uint8, 0, 255), Sliders, 255),
    "a range": (specs.BoundedArray((), np.float32, -1, 1), Sliders, 0.5),
    "a vector": (specs.BoundedArray((3,), np.float32, [-1, 0, 1], 2), Sliders, [0, 1, 2]),
    "a vector of whole numbers": (specs.BoundedArray((2,), np.int64, 0, 9), Sliders, [3, 9]),
    "a long vector": (specs.BoundedArray((9,), np.float32, -1, 1), Text, [0.5] * 9),
    "a matrix": (specs.BoundedArray((2, 2), np.float64, -1, 1), Text, [[1, 0], [0, 1]]),
    "a range without an end": (specs.BoundedArray((), np.float64, 0, np.inf), Text, 7.25),
    "a range beyond any slider": (specs.BoundedArray((), np.float64, -1e308, 1e308), Text, 1e300),
    "a range that a page cannot count in": (
        specs.BoundedArray((), np.int64, 2**60, 2**60 + 100),
        Text,
        2**60 + 1,
    ),
    "any number": (specs.Array((), np.float64), Text, -3.5),
    "any whole number": (specs.Array((), np.int64), Text, 2**62 + 1),
    "a 16-bit number": (specs.Array((), np.int16), Text, 300),
    "any vector": (specs.Array((2,), np.int32), Text, [1, 2]),
    "any length": (VariableArray((-1, 2), np.int32), Text, [[1, 2], [3, 4], [5, 6]]),
    "bools": (specs.Array((2,), bool), Text, [True, False]),
    "a text": (specs.StringArray(()), Text, 'say "hi"'),
    "texts": (specs.StringArray((2,)), Text, ["a", "b"]),
}


@pytest.mark.parametrize("case", CASES)
def test_every_spec_has_a_control_whose_value_conforms(case: str) -> None:
    spec, kind, value = CASES[case]
    control = control_for(spec, "action 'speed'")
    assert control is not None
    assert type(control) is kind
    if -1 not in spec.shape:
        spec.validate(control.value())
    expected = np.asarray(value, object if isinstance(spec, specs.StringArray) else spec.dtype)
    control.show(expected)
    shown = control.value()
    spec.validate(shown)
    assert np.array_equal(np.asarray(shown, expected.dtype), expected)


def test_messages_have_no_control() -> None:
    assert control_for(specs.Array((), object), "action 'move'") is None
    assert control_for(specs.Array((), np.complex64), "action 'move'") is None


def test_a_button_sets_its_value_and_tells_so_each_time() -> None:
    control = control_for(specs.DiscreteArray(3), "action 'move'", ["left", "stay", "right"])
    assert isinstance(control, Buttons)
    pressed: list[Any] = []
    control.on_set(lambda: pressed.append(control.value()))
    buttons = control.widget.children
    assert [button.description for button in buttons] == ["left", "stay", "right"]
    buttons[2].click()
    buttons[2].click()
    buttons[0].click()
    assert pressed == [2, 2, 0]
    assert [button.button_style for button in buttons] == ["info", "", ""]


def test_a_value_that_has_no_button_is_none_of_them() -> None:
    control = control_for(specs.DiscreteArray(3), "property 'level'")
    assert isinstance(control, Buttons)
    control.show(7)
    assert [button.button_style for button in control.widget.children] == ["", "", ""]
    with pytest.raises(SpecError, match="property 'level': no value is selected"):
        control.value()
    control.widget.children[1].click()
    assert control.value() == 1


def test_a_slider_tells_when_it_was_moved_and_not_when_it_shows() -> None:
    control = control_for(specs.BoundedArray((2,), np.float32, -1, 1), "action 'move'")
    assert isinstance(control, Sliders)
    moved: list[Any] = []
    control.on_set(lambda: moved.append(control.value().tolist()))
    control.show(np.array([0.5, 0.25]))
    assert moved == []
    control.widget.children[0].value = -1.0
    assert moved == [[-1.0, 0.25]]


def test_a_slider_does_not_leave_the_range_by_rounding() -> None:
    spec = specs.BoundedArray((), np.float32, 0.0, np.float32(0.1))
    control = control_for(spec, "action 'speed'")
    assert isinstance(control, Sliders)
    control.widget.children[0].value = 1.0
    spec.validate(control.value())


@pytest.mark.parametrize(
    ("spec", "text", "error"),
    [
        (specs.Array((2,), np.int32), "[1, 2", "action 'speed': expected a number or a list"),
        (specs.Array((2,), np.int32), "[1]", "action 'speed': has shape \\[1\\]; expected"),
        (specs.Array((), np.int32), "1.5", "action 'speed'"),
        (specs.Array((), np.int32), '"fast"', "action 'speed'"),
        (specs.Array((), np.float32), "NaN", "action 'speed'.*finite"),
        (specs.BoundedArray((9,), np.int32, 0, 5), "[9,0,0,0,0,0,0,0,0]", "outside its"),
    ],
)
def test_a_text_that_is_no_value_says_so(spec: specs.Array, text: str, error: str) -> None:
    control = control_for(spec, "action 'speed'")
    assert isinstance(control, Text)
    control.widget.value = text
    with pytest.raises(SpecError, match=error):
        control.value()
