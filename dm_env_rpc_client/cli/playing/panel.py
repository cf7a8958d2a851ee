"""The controls of a whole action spec, one of them selected, and the keys of `--keys`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from dm_env import specs

from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.playing.controls import COMMANDS, Choice, Control, control_for
from dm_env_rpc_client.tensors import nesting

NAMED_KEYS = frozenset(
    ["backspace", "backtab", "down", "enter", "escape", "left", "right", "space", "tab", "up"]
)
"""All other keys have the name of their character."""

IDLE = "idle"
"""In place of a key: the value that a control has while no key is pressed."""

_FORM = re.compile(r"(?P<key>.|\w+)=(?:(?P<control>[^:=]+):)?(?P<change>[+-]=)?(?P<value>.*)", re.S)


_MOST_ELEMENTS = 16
"""The most elements of an array that keys change; longer arrays keep their value."""

_MOST_CONTROLS = 64


class Binding(NamedTuple):
    """The effect of a key.

    Attributes:
      key: a character, one of `NAMED_KEYS`, or `IDLE`.
      control: the label of the control that it changes; None for the only one.
      change: "+=" or "-=" if it adds or subtracts, otherwise "".
      value: the text of the value.
    """

    key: str
    control: str | None
    change: str
    value: str


def parse_binding(text: str) -> Binding:
    """Reads KEY=VALUE or KEY=ACTION:VALUE; += or -= before the value adds or subtracts it.

    Raises:
      UsageError: the text has another form, or the key is unknown.
    """
    found = _FORM.fullmatch(text)
    if found is None or not found["value"]:
        raise UsageError(
            f"a key binding looks like left=0, w=throttle:1 or w=throttle:+=0.1, got {text!r}"
        )
    key = found["key"]
    if len(key) != 1 and key not in NAMED_KEYS and key != IDLE:
        known = ", ".join(sorted(NAMED_KEYS))
        raise UsageError(f"unknown key {key!r}; a key is a character, one of {known}, or {IDLE}")
    key = "space" if key == " " else key
    return Binding(key, found["control"], found["change"] or "", found["value"])


class Panel:
    """Controls for an action spec. Messages are left out of the action, as it allows.

    Args:
      action_spec: of the environment, by name, nested or flat.
      bindings: of `--keys`.

    Attributes:
      action_spec: the same.
      controls: in the order of the spec.
      fixed: names of actions that no keys change.

    Raises:
      UsageError: a binding names an unknown control, or a value that the control refuses.
    """

    def __init__(self, action_spec: Mapping[str, Any], bindings: Sequence[Binding] = ()):
        self.action_spec = action_spec
        flat = nesting.flatten_dict(action_spec, nesting.SEPARATOR, strict=False)
        self._neutral: dict[str, Any] = {}
        self.controls: list[Control] = []
        self.fixed: list[str] = []
        for name, spec in flat.items():
            if spec.dtype.kind == "O" and not isinstance(spec, specs.StringArray):
                self.fixed.append(name)
                continue
            self._neutral[name] = _neutral(spec)
            indices = list(np.ndindex(*spec.shape)) if min(spec.shape, default=1) >= 0 else []
            free = min(_MOST_ELEMENTS, _MOST_CONTROLS - len(self.controls))
            if not 0 < len(indices) <= free:
                self.fixed.append(name)
                continue
            self.controls.extend(control_for(name, index, spec) for index in indices)
        self._selected = 0
        self._by_hand: dict[str, tuple[Control, Binding]] = {}
        for binding in bindings:
            self._bind(binding)

    @property
    def selected(self) -> Control | None:
        """The control that the keys change; None if there are no controls."""
        return self.controls[self._selected] if self.controls else None

    @property
    def steps_at_once(self) -> bool:
        """Whether one key sets the whole action: its only control is a choice."""
        return len(self.controls) == 1 and isinstance(self.controls[0], Choice)

    def select(self, by: int) -> None:
        """Moves the selection forwards or backwards."""
        if self.controls:
            self._selected = (self._selected + by) % len(self.controls)

    def press(self, key: str) -> bool:
        """Changes the control of a key; returns whether it has one."""
        if key in self._by_hand:
            control, binding = self._by_hand[key]
            control.value = control.parse(binding.change, binding.value)
            return True
        return key not in COMMANDS and self.selected is not None and self.selected.press(key)

    def action(self) -> dict[str, Any]:
        """Returns the current action by flat name, each value with the dtype of its spec."""
        arrays = {name: value.copy() for name, value in self._neutral.items()}
        for control in self.controls:
            arrays[control.action][control.index] = control.value
        return {name: array if array.shape else array[()] for name, array in arrays.items()}

    def go_idle(self) -> None:
        """Sets every control with an idle value to that value."""
        for control in self.controls:
            if control.idle is not None:
                control.value = control.idle

    def keys_by_hand(self) -> str:
        """Returns the description of the keys that `--keys` binds."""
        return "  ".join(
            f"{key}: {control.label}{binding.change or '='}{binding.value}"
            for key, (control, binding) in self._by_hand.items()
        )

    def _bind(self, binding: Binding) -> None:
        by_label = {control.label: control for control in self.controls}
        if binding.control is None and len(by_label) == 1:
            control = self.controls[0]
        elif binding.control in by_label:
            control = by_label[binding.control]
        else:
            known = ", ".join(by_label) or "none"
            raise UsageError(
                f"name what {binding.key!r} changes, as in KEY=NAME:VALUE; NAME is one of: {known}"
            )
        value = control.parse(binding.change, binding.value)
        if binding.key == IDLE:
            control.value = control.idle = value
        else:
            self._by_hand[binding.key] = control, binding


def _neutral(spec: specs.Array) -> Any:
    """Returns an array that conforms to a spec, of the values nearest to zero."""
    value = np.asarray(spec.generate_value())
    if isinstance(spec, specs.BoundedArray):
        value = np.clip(np.zeros_like(value), spec.minimum, spec.maximum)
    # An array of fixed-width strings would cut longer ones off.
    return np.array(value, object if isinstance(spec, specs.StringArray) else spec.dtype)
