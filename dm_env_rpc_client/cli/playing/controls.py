"""Controls for actions: the values of each scalar of an action, and the keys that change it."""

from __future__ import annotations

import abc
import dataclasses
import string
from typing import Any

import numpy as np
from dm_env import specs

from dm_env_rpc_client.cli.failures import UsageError

COMMANDS = ("q", "r", "p", "t", "tab", "backtab")
"""Keys that are not for actions, unless `--keys` binds them to one."""

_CHOICE_KEYS = [
    key
    for key in string.digits + string.ascii_lowercase + string.ascii_uppercase
    if key not in COMMANDS
]

# By the number of values. The order of four is that of FrozenLake; the first of five values is no
# direction.
_ARROWS: dict[int, tuple[str | None, ...]] = {
    2: ("left", "right"),
    3: ("left", "down", "right"),
    4: ("left", "down", "right", "up"),
    5: (None, "left", "right", "down", "up"),
}

_SYMBOLS = {"left": "←", "right": "→", "up": "↑", "down": "↓"}

_PRESSES = 20
"""The number of key presses from one bound of a level to the other."""

_SCALE = 8
"""The number of places on the scale of a level, less one."""

_UNBOUNDED_INCREMENT = 0.1
_LARGEST_BOUND = 1e6
"""A bound beyond it, such as the limit of a dtype, is treated as no bound."""


def flag(value: Any) -> str:
    """Returns a bool as text."""
    return "☑ on" if value else "☐ off"


@dataclasses.dataclass
class Control(abc.ABC):
    """One scalar of an action.

    Attributes:
      action: the flat name of the action.
      index: of the element in its array; () for a scalar.
      value: the value that the next step sends.
      idle: the value after a step; None if it stays as it is.
    """

    action: str
    index: tuple[int, ...]
    value: Any
    idle: Any

    @property
    def label(self) -> str:
        """Its name on the screen and the command line, such as "arm.torque[0]"."""
        return self.action + "".join(f"[{i}]" for i in self.index)

    @abc.abstractmethod
    def press(self, key: str) -> bool:
        """Changes the value if the key is one of this control; returns whether it is."""

    @abc.abstractmethod
    def parse(self, change: str, text: str) -> Any:
        """Returns the value after a change of `--keys`; UsageError if the text is invalid."""

    @abc.abstractmethod
    def keys(self) -> str:
        """Returns the description of its keys."""

    def shown(self) -> str:
        """Returns its value as text."""
        return str(self.value)


@dataclasses.dataclass
class Choice(Control):
    """One of a few values, each with its own keys."""

    values: dict[str, Any]

    def press(self, key: str) -> bool:
        if key in self.values:
            self.value = self.values[key]
        return key in self.values

    def parse(self, change: str, text: str) -> Any:
        known = {str(value).lower(): value for value in self.values.values()}
        if change or text.lower() not in known:
            raise UsageError(f"{self.label} is one of {', '.join(known)}, got {change}{text}")
        return known[text.lower()]

    def keys(self) -> str:
        by_value: dict[Any, list[str]] = {}
        for key, value in self.values.items():
            by_value.setdefault(value, []).append(_SYMBOLS.get(key, key))
        # A key that is the same as its value needs no explanation.
        return "press " + ", ".join(
            "/".join(names) + ("" if str(value) in names else f" for {_plain(value)}")
            for value, names in by_value.items()
        )

    def shown(self) -> str:
        return flag(self.value) if isinstance(self.value, bool) else str(self.value)


@dataclasses.dataclass
class Level(Control):
    """A number that is increased and decreased between bounds."""

    minimum: Any
    maximum: Any
    increment: Any

    def press(self, key: str) -> bool:
        changed = {
            **dict.fromkeys(("+", "=", "up", "right"), self.value + self.increment),
            **dict.fromkeys(("-", "_", "down", "left"), self.value - self.increment),
            "0": type(self.value)(0),
        }
        if key in changed:
            self.value = self._within(changed[key])
        return key in changed

    def parse(self, change: str, text: str) -> Any:
        kind = type(self.value)
        try:
            number = kind(text)
        except ValueError:
            raise UsageError(f"{self.label} is a number ({kind.__name__}), got {text!r}") from None
        if change:
            return self._within(self.value + (number if change == "+=" else -number))
        if not self.minimum <= number <= self.maximum:
            raise UsageError(
                f"{self.label} is from {self.minimum:g} to {self.maximum:g}, got {text}"
            )
        return number

    def keys(self) -> str:
        sides = [
            f"{bound:g}" if abs(bound) < _LARGEST_BOUND else ""
            for bound in (self.minimum, self.maximum)
        ]
        within = f" within {sides[0]}..{sides[1]}" if any(sides) else ""
        return f"press +/- to change it by {self.increment:g}{within}"

    def shown(self) -> str:
        text = f"{self.value:.6g}" if isinstance(self.value, float) else str(self.value)
        if not self.minimum < self.maximum < _LARGEST_BOUND or self.minimum <= -_LARGEST_BOUND:
            return text
        place = round((self.value - self.minimum) / (self.maximum - self.minimum) * _SCALE)
        return f"{'─' * place}●{'─' * (_SCALE - place)} {text}"

    def _within(self, number: Any) -> Any:
        if isinstance(number, float):
            # So that ten increments of 0.1 are 1.0, and as many decrements are 0.0 again.
            number = round(number, 9)
        return min(max(number, self.minimum), self.maximum)


@dataclasses.dataclass
class TextEntry(Control):
    """A text that is typed."""

    def press(self, key: str) -> bool:
        return False

    def parse(self, change: str, text: str) -> Any:
        return self.value + text if change == "+=" else text

    def keys(self) -> str:
        return "press t to type, enter to end"

    def shown(self) -> str:
        return repr(self.value)


def control_for(action: str, index: tuple[int, ...], spec: specs.Array) -> Control:
    """Returns the control of one scalar.

    Args:
      action: the flat name of the action.
      index: of the element in its array; () for a scalar.
      spec: of the whole action, whose dtype is not messages.

    Returns:
      A `Choice` for bools and for few integers, a `TextEntry` for strings, otherwise a
      `Level`. Its value is the neutral one: the idle value, or the value nearest to 0 within
      its bounds.
    """
    if isinstance(spec, specs.StringArray):
        return TextEntry(action, index, "", None)
    if spec.dtype.kind == "b":
        return _choice(action, index, [False, True])
    number = float if spec.dtype.kind == "f" else int
    info: Any = np.finfo(spec.dtype) if number is float else np.iinfo(spec.dtype)
    low, high = info.min, info.max
    if isinstance(spec, specs.BoundedArray):
        low, high = (
            np.broadcast_to(side, spec.shape)[index] for side in (spec.minimum, spec.maximum)
        )
    # Even if a bound is infinite, the value must be finite.
    low, high = max(number(low), number(info.min)), min(number(high), number(info.max))
    if number is int and high - low < len(_CHOICE_KEYS):
        return _choice(action, index, list(range(int(low), int(high) + 1)))
    bounded = max(abs(low), abs(high)) < _LARGEST_BOUND
    increment: Any = (high - low) / _PRESSES if bounded else _UNBOUNDED_INCREMENT
    if number is int:
        increment = max(1, round(increment))
    neutral = min(max(number(0), low), high)
    return Level(action, index, neutral, None, low, high, increment)


def _plain(value: Any) -> str:
    return flag(value).split()[-1] if isinstance(value, bool) else str(value)


def _choice(action: str, index: tuple[int, ...], values: list[Any]) -> Choice:
    # If all values are digits, the key of each is its own digit.
    own = all(0 <= int(value) <= 9 for value in values)
    keys = {str(int(value)) if own else _CHOICE_KEYS[i]: value for i, value in enumerate(values)}
    arrows = _ARROWS.get(len(values), ())
    keys.update({key: value for key, value in zip(arrows, values, strict=False) if key})
    idle = None if len(values) in (2, 4) else values[1] if len(values) == 3 else values[0]
    return Choice(action, index, values[0] if idle is None else idle, idle, keys)
