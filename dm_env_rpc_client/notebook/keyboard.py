"""A box on the page that receives key presses."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import traitlets
from dm_env import specs

from dm_env_rpc_client.tensors.controls import Change, Keys, checked_action, default_keys

STEP, RUN, RESET = " ", "Enter", "r"

_HERE = pathlib.Path(__file__).parent


class KeyPad(anywidget.AnyWidget):
    """A box that sends a message for each press and release of a key while it has focus.

    A message is `{"kind": "down" | "up", "key": ..., "repeated": ...}`. Keys have the names
    of the browser's `KeyboardEvent.key`, with letters in lower case.
    """

    _esm = _HERE / "keypad.js"
    _css = _HERE / "explorer.css"
    legend: traitlets.List[Any] = traitlets.List().tag(sync=True)


class Keyboard:
    """Keyboard control: a box on the page, and the effects of the keys pressed in it.

    Args:
      keys: an action, or some of its values, for each key, nested or by flat name; None derives
        the keys from the specs.
      action_specs: specs by flat name.
      press: called with two arguments: "step", "run" or "reset" for the key of a command, or "act"
        for the key of an action; and whether the key repeats.

    Attributes:
      keys: the keys that set actions.
      pad: the widget.

    Raises:
      SpecError: the action of a key is unknown, or a value is invalid.
    """

    def __init__(
        self,
        keys: Mapping[str, Any] | None,
        action_specs: Mapping[str, specs.Array],
        press: Callable[[str, bool], None],
    ):
        changes = (
            default_keys(action_specs)
            if keys is None
            else {
                key: [
                    Change(*each)
                    for each in checked_action(action, action_specs, f"key {key!r}: ").items()
                ]
                for key, action in keys.items()
            }
        )
        self.keys = Keys(changes)
        self._press = press
        general = {STEP: "step", RUN: "run or stop", RESET: "reset"}
        self._general = {
            key: what.split()[0] for key, what in general.items() if key not in changes
        }
        own = [(key, general[key]) for key in self._general]
        self.pad = KeyPad(legend=[*self.keys.legend(), *own])
        self.pad.on_msg(self._receive)

    def _receive(self, _: Any, message: Any, __: Any) -> None:
        key, repeated = message.get("key"), bool(message.get("repeated"))
        is_down = message.get("kind") == "down"
        if key in self.keys.changes:
            if is_down:
                self.keys.press(key, repeated)
                self._press("act", repeated)
            else:
                self.keys.release(key)
        elif key in self._general and is_down:
            self._press(self._general[key], repeated)
