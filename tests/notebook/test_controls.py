"""Controls, keys, and what IPython shows of dm_env's classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs
from IPython.core.completer import IPCompleter, provisionalcompleter
from IPython.core.formatters import DisplayFormatter

from dm_env_rpc_client import make
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.notebook import load_ipython_extension, unload_ipython_extension
from dm_env_rpc_client.notebook.controls import Buttons, Sliders, Text, control_for
from dm_env_rpc_client.notebook.keyboard import Keyboard
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.tensors.controls import changed
from dm_env_rpc_client.tensors.specs import VariableArray
from tests.extensions.test_property_tree import Shelf

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


SPECS: dict[str, specs.Array] = {
    "speech": specs.StringArray((), name="speech"),
    "steer": specs.DiscreteArray(3, name="steer"),
    "arm.torque": specs.BoundedArray((), np.float32, -2, 2, "torque"),
    "third": specs.BoundedArray((), np.float32, -2, 2, "third"),
    "vector": specs.BoundedArray((2,), np.float32, -2, 2, "vector"),
}


class Typist:
    """A keyboard, what was pressed on it, and the page that it is on."""

    def __init__(self, keys: dict[str, Any]):
        self.pressed: list[tuple[str, bool]] = []
        self.keyboard = Keyboard(
            keys, SPECS, lambda what, repeated: self.pressed.append((what, repeated))
        )

    def values(self) -> dict[str, Any]:
        return changed({}, self.keyboard.keys.take())

    def send(self, kind: str, key: str, repeated: bool = False) -> None:
        content = {"kind": kind, "key": key, "repeated": repeated}
        self.keyboard.pad._handle_custom_msg(content, [])

    def tap(self, key: str) -> None:
        self.send("down", key)
        self.send("up", key)


LEFT, RIGHT, UP = {"steer": 0}, {"steer": 2}, {"arm": {"torque": 2.0}}
BOUND = {"ArrowLeft": LEFT, "ArrowRight": RIGHT, "ArrowUp": UP}
TORQUE = {"arm.torque": 2.0}

HELD: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "held": ("+ArrowLeft +ArrowUp ? -ArrowLeft ? -ArrowUp ?", [{**LEFT, **TORQUE}, TORQUE, {}]),
    "tapped": ("+ArrowLeft -ArrowLeft ? ?", [LEFT, {}]),
    "repeated": ("+ArrowLeft ? *ArrowLeft ? *ArrowLeft -ArrowLeft ?", [LEFT, LEFT, {}]),
    "the later of two": (
        "+ArrowLeft +ArrowRight ? +ArrowLeft ? -ArrowLeft ?", [RIGHT, LEFT, RIGHT],
    ),
}  # fmt: skip
"""Keys that go down, repeat and go up, and the values at each question mark."""


@pytest.mark.parametrize("name", HELD)
def test_a_key_counts_while_it_is_held_and_at_least_once(name: str) -> None:
    events, expected = HELD[name]
    typist = Typist(BOUND)
    found = []
    for event in events.split():
        if event == "?":
            found.append(typist.values())
        else:
            typist.send("up" if event[0] == "-" else "down", event[1:], event[0] == "*")
    assert found == expected
    downs = [event for event in events.split() if event[0] in "+*"]
    assert typist.pressed == [("act", event[0] == "*") for event in downs]


def test_some_keys_are_for_the_explorer() -> None:
    typist = Typist({})
    for key in (" ", "Enter", "r", "x"):
        typist.tap(key)
    typist.send("down", "Enter", repeated=True)
    assert typist.pressed == [("step", False), ("run", False), ("reset", False), ("run", True)]


def test_a_key_of_the_users_own_comes_first() -> None:
    typist = Typist({"r": {"steer": 2}})
    typist.send("down", "r")
    assert typist.pressed == [("act", False)]
    assert dict(typist.keyboard.pad.legend) == {"r": "steer 2", " ": "step", "Enter": "run or stop"}


def test_what_a_browser_may_send_besides_is_ignored() -> None:
    typist = Typist({"a": {"steer": 1}})
    for content in ({}, {"kind": "down"}, {"key": 5, "kind": "down"}, {"key": "a", "kind": "up"}):
        typist.keyboard.pad._handle_custom_msg(content, [])
    assert typist.pressed == []
    assert typist.values() == {}


def test_a_key_for_an_action_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecError, match="key 'a': unknown action 'jump'; actions: 'speech'"):
        Typist({"a": {"jump": 1}})


class Shell:
    """What of IPython an extension gets to see."""

    def __init__(self) -> None:
        self.display_formatter = DisplayFormatter()

    def html(self, value: Any) -> str | None:
        html: str | None = self.bundle(value).get("text/html")
        return html

    def bundle(self, value: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = self.display_formatter.format(value)[0]  # type: ignore[no-untyped-call]
        return bundle


@pytest.fixture
def shell() -> Iterator[Shell]:
    shell = Shell()
    load_ipython_extension(shell)
    yield shell
    unload_ipython_extension(shell)
    assert shell.html(dm_env.restart(np.zeros(3))) is None
    assert shell.html({"a": specs.Array((), int)}) is None


def test_time_steps_and_specs_are_html(shell: Shell, catch_server: Server) -> None:
    with make(catch_server.address) as env:
        assert "<img" in (shell.html(env.reset()) or "")
        assert "paddle" in (shell.html(env.action_spec()) or "")
        assert "board" in (shell.html(env.observation_spec()["board"]) or "")
        assert "Actions" in (shell.html(env) or "")
        assert shell.bundle(env)["text/plain"].startswith("<DmEnvAdaptor")


@pytest.mark.parametrize("value", [{}, {"a": 1}, {"a": {"b": [1, 2]}}, {1: specs}])
def test_any_other_dictionary_stays_text(shell: Shell, value: Any) -> None:
    assert shell.html(value) is None


def test_the_tab_key_completes_keys_of_properties_and_asks_nobody() -> None:
    shelf = Shelf({"physics.gravity": 1.0, "name": 2.0})
    shelf.tree()
    shelf.asked.clear()
    completer = IPCompleter(  # type: ignore[no-untyped-call]
        namespace={"properties": shelf}, disable_matchers=["IPCompleter.magic_matcher"]
    )
    with provisionalcompleter():
        found = [each.text for each in completer.completions('properties["phy', 15)]
    assert found == ["physics", "physics.gravity"]
    assert shelf.asked == []
