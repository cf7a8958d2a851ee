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


def test_a_key_counts_while_it_is_held() -> None:
    typist = Typist({"ArrowLeft": {"steer": 0}, "ArrowUp": {"arm": {"torque": 2.0}}})
    typist.send("down", "ArrowLeft")
    typist.send("down", "ArrowUp")
    assert typist.values() == {"steer": 0, "arm.torque": 2.0}
    typist.send("up", "ArrowLeft")
    assert typist.values() == {"arm.torque": 2.0}
    typist.send("up", "ArrowUp")
    assert typist.values() == {}
    assert typist.pressed == [("act", False), ("act", False)]


def test_a_key_that_was_tapped_counts_once() -> None:
    typist = Typist({"ArrowLeft": {"steer": 0}})
    typist.tap("ArrowLeft")
    assert typist.values() == {"steer": 0}
    assert typist.values() == {}


def test_a_key_that_repeats_counts_no_longer_than_it_is_held() -> None:
    typist = Typist({"ArrowLeft": {"steer": 0}})
    typist.send("down", "ArrowLeft")
    assert typist.values() == {"steer": 0}
    typist.send("down", "ArrowLeft", repeated=True)
    assert typist.values() == {"steer": 0}
    typist.send("down", "ArrowLeft", repeated=True)
    typist.send("up", "ArrowLeft")
    assert typist.values() == {}
    assert typist.pressed == [("act", False), ("act", True), ("act", True)]


def test_of_two_keys_for_one_action_the_later_wins() -> None:
    typist = Typist({"ArrowLeft": {"steer": 0}, "ArrowRight": {"steer": 2}})
    typist.send("down", "ArrowLeft")
    typist.send("down", "ArrowRight")
    assert typist.values() == {"steer": 2}
    typist.send("down", "ArrowLeft")
    assert typist.values() == {"steer": 0}
    typist.send("up", "ArrowLeft")
    assert typist.values() == {"steer": 2}


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
