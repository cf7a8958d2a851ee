from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.notebook.keyboard import Keyboard
from dm_env_rpc_client.tensors.controls import changed

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
