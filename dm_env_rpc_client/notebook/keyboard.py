"""Keys for actions, and the box on the page that receives key presses."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import anywidget
import numpy as np
import traitlets
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.notebook.controls import checked_by, few_values
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.tensors.displays import markup
from dm_env_rpc_client.tensors.displays.leaves import named_leaves
from dm_env_rpc_client.tensors.displays.values import in_short

STEP, RUN, RESET = " ", "Enter", "r"

_HERE = pathlib.Path(__file__).parent
_ARROWS = (("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"))
_DIGITS = "0123456789"


class KeyPad(anywidget.AnyWidget):
    """A box that sends `{"kind": "down" | "up", "key": ..., "repeated": ...}` when it is focused.

    Keys are named as in the browser's `KeyboardEvent.key`, letters in lower case.
    """

    _esm = _HERE / "keypad.js"
    _css = _HERE / "explorer.css"
    legend: traitlets.List[Any] = traitlets.List().tag(sync=True)


def default_keys(action_specs: Mapping[str, specs.Array]) -> dict[str, dict[str, Any]]:
    """Returns keys for actions, derived from their specs.

    The arrow keys set the minimum and the maximum of the first two scalar actions that are
    bounded floats, or integers with three values (taken as back, stay and forth). The digits
    set the values of the first action that has at most ten.

    Args:
      action_specs: the specs by flat name.

    Returns:
      For each key, the values of some actions by flat name.
    """
    keys: dict[str, dict[str, Any]] = {}
    ranged = [(name, ends) for name, spec in action_specs.items() if (ends := _ends(spec))]
    for (name, (low, high)), (back, forth) in zip(ranged, _ARROWS, strict=False):
        keys[back], keys[forth] = {name: low}, {name: high}
    for name, spec in action_specs.items():
        values = few_values(spec)
        if 0 < len(values) <= len(_DIGITS) and spec.dtype.kind in "iu":
            keys.update({digit: {name: each} for digit, each in zip(_DIGITS, values, strict=False)})
            break
    return keys


def _ends(spec: specs.Array) -> tuple[Any, Any] | None:
    if spec.dtype.kind != "f":
        values = few_values(spec)
        return (values[0], values[2]) if len(values) == 3 else None
    if not isinstance(spec, specs.BoundedArray) or spec.shape:
        return None
    ends = spec.minimum.item(), spec.maximum.item()
    return ends if np.all(np.isfinite(ends)) else None


def checked_action(
    action: Any, action_specs: Mapping[str, specs.Array], root: str, where: str = ""
) -> dict[str, Any]:
    """Returns the values of an action, or of a part of one, by flat name.

    Args:
      action: values, nested or by flat name.
      action_specs: specs by flat name.
      root: the name of an action that is not a mapping.
      where: a prefix of error messages.

    Raises:
      SpecError: an action is unknown, or a value is invalid.
    """
    values = named_leaves(action, root)
    for name in values:
        if name not in action_specs:
            known = ", ".join(map(repr, action_specs)) or "none"
            raise SpecError(f"{where}unknown action {name!r}; actions: {known}")
    return {
        name: checked_by(action_specs[name], f"{where}action {name!r}")(value)
        for name, value in values.items()
    }


class Keyboard:
    """Keeps track of the pressed keys and returns the values that they set.

    A key that was pressed and released between two steps counts in one step.

    Args:
      keys: for each key an action, or some of its values, nested or by flat name.
      action_specs: specs by flat name.
      root: the name of an action that is not a mapping.
      press: called with "step", "run" or "reset" for the keys of these commands, and with
        "act" for a key of an action; and with whether the key repeats.

    Attributes:
      pad: the widget.

    Raises:
      SpecError: the action of a key is unknown, or a value is invalid.
    """

    def __init__(
        self,
        keys: Mapping[str, Any],
        action_specs: Mapping[str, specs.Array],
        root: str,
        press: Callable[[str, bool], None],
    ):
        self._actions = {
            key: checked_action(action, action_specs, root, f"key {key!r}: ")
            for key, action in keys.items()
        }
        self._press = press
        # Key events arrive in one thread, steps are taken in another.
        self._lock = make_lock()
        self._held: dict[str, None] = {}
        self._tapped: dict[str, None] = {}
        general = {STEP: "step", RUN: "run or stop", RESET: "reset"}
        self._general = {
            key: what.split()[0] for key, what in general.items() if key not in self._actions
        }
        legend = [(key, _meaning(values)) for key, values in self._actions.items()]
        legend += [(key, general[key]) for key in self._general]
        self.pad = KeyPad(legend=legend)
        self.pad.on_msg(self._receive)

    def values(self) -> dict[str, Any]:
        """Returns the values that the keys set in this step, by flat name."""
        with self._lock:
            down = [*self._tapped, *self._held]
            self._tapped.clear()
        values: dict[str, Any] = {}
        for key in down:
            values.update(self._actions[key])
        return values

    def _receive(self, _: Any, message: Any, __: Any) -> None:
        key, repeated = message.get("key"), bool(message.get("repeated"))
        if key in self._actions:
            is_down = message.get("kind") == "down"
            with self._lock:
                # The key that was pressed last comes last and overrides the others.
                self._held.pop(key, None)
                if is_down:
                    self._held[key] = None
                if is_down and not repeated:
                    self._tapped[key] = None
            if is_down:
                self._press("act", repeated)
        elif key in self._general and message.get("kind") == "down":
            self._press(self._general[key], repeated)


def _meaning(values: Mapping[str, Any]) -> str:
    return markup.shorten(
        ", ".join(f"{name} {in_short(value)}" for name, value in values.items()), 60
    )
