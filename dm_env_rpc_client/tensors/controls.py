"""Manual control of actions, by pressing keys or by setting values that conform to a spec.

A notebook displays widgets and a key field, and the command line opens a window. Key names are
those of a browser's `KeyboardEvent.key`, with letters in lower case.
"""

from __future__ import annotations

import collections
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.displays.markup import named_leaves, shorten
from dm_env_rpc_client.tensors.displays.values import in_short
from dm_env_rpc_client.tensors.spec_manager import TensorField
from dm_env_rpc_client.tensors.specs import dm_env_spec_to_tensor_spec

ROOT = "action"
"""The name of an action that is not a mapping."""

_AXES = (("ArrowLeft", "ArrowRight"), ("ArrowDown", "ArrowUp"), ("a", "d"), ("s", "w"))
_DIGITS = "0123456789"
_LETTERS = "zxcvfgbnmhjklqetyuiop"
"""The letter keys that no axis uses, except r, which resets the environment."""

_MOST_ELEMENTS = 16
"""The maximum length of a vector that keys can control. Keys change the first elements of
such a vector."""

# By the number of values. Four values are in the order of FrozenLake; the first of five values is
# no direction.
_ARROWS: dict[int, tuple[str | None, ...]] = {
    4: ("ArrowLeft", "ArrowDown", "ArrowRight", "ArrowUp"),
    5: (None, "ArrowLeft", "ArrowRight", "ArrowDown", "ArrowUp"),
}


class Element(NamedTuple):
    """An element of a bounded spec, with its bounds and its index, which is () for a scalar."""

    at: tuple[int, ...]
    low: Any
    high: Any


class Change(NamedTuple):
    """The effect of a key on an action.

    Attributes:
      name: the flat name of the changed value.
      value: the new value.
      at: the index of the changed element, or `...` for all elements.
    """

    name: str
    value: Any
    at: tuple[int, ...] | EllipsisType = ...

    def __str__(self) -> str:
        where = "" if self.at is ... else "".join(f"[{i}]" for i in self.at)
        return f"{self.name}{where} {in_short(self.value)}"


def few_values(spec: specs.Array, most: int) -> list[Any]:
    """Return all values of a scalar spec if there are at most `most`; otherwise an empty list."""
    if spec.shape:
        return []
    if spec.dtype.kind == "b":
        return [False, True]
    if spec.dtype.kind not in "iu" or not isinstance(spec, specs.BoundedArray):
        return []
    # As Python integers, because the difference may not fit into the dtype.
    low, high = int(spec.minimum), int(spec.maximum)
    return list(range(low, high + 1)) if 0 <= high - low < most else []


def elements(spec: specs.Array, most: int) -> list[Element]:
    """Return the elements of a bounded scalar or of a bounded vector of up to `most` numbers."""
    if not isinstance(spec, specs.BoundedArray) or spec.dtype.kind not in "iuf":
        return []
    if len(spec.shape) > 1 or (spec.shape and not 0 < spec.shape[0] <= most):
        return []
    lows, highs = (np.broadcast_to(side, spec.shape) for side in (spec.minimum, spec.maximum))
    return [
        Element(index, lows[index].item(), highs[index].item()) for index in np.ndindex(*spec.shape)
    ]


def idle(spec: specs.Array) -> Any:
    """Return an action's default: the middle of three values, or otherwise the value nearest to 0.

    Three values usually mean backward, stay and forward.
    """
    value = np.asarray(spec.generate_value())
    if isinstance(spec, specs.BoundedArray) and spec.dtype.kind in "iuf":
        low, high = spec.minimum, spec.maximum
        value = np.clip(np.zeros_like(value), low, high)
        if spec.dtype.kind in "iu":
            with np.errstate(over="ignore"):  # The difference may not fit into the dtype.
                value = np.where(high - low == 2, low + 1, value)
    # An array of fixed-width strings would truncate longer ones.
    is_text = isinstance(spec, specs.StringArray)
    return np.array(value, object if is_text else spec.dtype)[()]


def checked_by(spec: specs.Array, where: str) -> Callable[[Any], Any]:
    """Return a function that checks values against a spec and converts them to its dtype.

    Args:
      spec: the spec.
      where: the name of the value in error messages, such as "action 'arm.torque'".

    Returns:
      A function that returns its argument as an array or a scalar of the spec's dtype. It
      raises SpecError if the shape is wrong, the value is out of bounds, or the cast would
      change it.

    Raises:
      SpecError: the protocol has no dtype for the spec.
    """
    field = TensorField(0, dm_env_spec_to_tensor_spec(spec), "value")
    field.label = where

    def check(value: Any) -> Any:
        conforming = field.conform(value)
        if conforming.dtype == object:
            return conforming[()]
        with np.errstate(over="ignore"):
            narrowed = conforming.astype(spec.dtype)
        # The protocol has no 16-bit dtypes; a value of the next wider dtype may not fit.
        is_float = narrowed.dtype.kind == "f"
        if not np.all(np.isfinite(narrowed) if is_float else narrowed == conforming):
            raise SpecError(f"{where}: {value!r} does not fit dtype {spec.dtype.name}")
        return narrowed[()]

    return check


def checked_action(
    action: Any, action_specs: Mapping[str, specs.Array], where: str = ""
) -> dict[str, Any]:
    """Check the values of a whole or partial action, and return them keyed by flat name.

    Args:
      action: the values, either nested or by flat name.
      action_specs: the specs by flat name.
      where: a prefix for error messages.

    Raises:
      SpecError: an action is unknown, or a value is invalid.
    """
    values = named_leaves(action, ROOT)
    for name in values:
        if name not in action_specs:
            known = ", ".join(map(repr, action_specs)) or "none"
            raise SpecError(f"{where}unknown action {name!r}; actions: {known}")
    return {
        name: checked_by(action_specs[name], f"{where}action {name!r}")(value)
        for name, value in values.items()
    }


_NAMED = re.compile(r"(?P<name>.*?)(?P<index>(\[\d+\])*)", re.S)


def checked_change(
    named: str, value: Any, action_specs: Mapping[str, specs.Array], where: str
) -> Change:
    """Return the change that sets one value of an action.

    Args:
      named: the flat name, optionally with the index of an element, such as "arm.torque[0]", or ""
        for the only action.
      value: the value.
      action_specs: the specs by flat name.
      where: a prefix for error messages.

    Raises:
      SpecError: the action is unknown, its name is required but missing, or the value is invalid.
    """
    if not named and len(action_specs) == 1:
        (named,) = action_specs
    if not named:
        known = ", ".join(map(repr, action_specs)) or "none"
        raise SpecError(f"{where}the name of the action to set is missing; actions: {known}")
    found = _NAMED.fullmatch(named)
    assert found is not None
    name, index = found["name"], tuple(map(int, re.findall(r"\d+", found["index"])))
    if named not in action_specs and name in action_specs:
        element = _element_spec(action_specs[name], index, f"{where}action {named!r}")
        return Change(name, checked_by(element, f"{where}action {named!r}")(value), index)
    if isinstance(value, list):
        value = np.array(value)
    ((name, checked),) = checked_action({named: value}, action_specs, where).items()
    return Change(name, checked)


def _element_spec(spec: specs.Array, index: tuple[int, ...], where: str) -> specs.Array:
    shape = tuple(spec.shape)
    if len(index) != len(shape) or not all(map(int.__lt__, index, shape)):
        raise SpecError(f"{where}: no such element; the action has shape {list(shape)}")
    if isinstance(spec, specs.StringArray):
        return specs.StringArray((), name=spec.name)
    if not isinstance(spec, specs.BoundedArray):
        return specs.Array((), spec.dtype, spec.name)
    low, high = (np.broadcast_to(side, shape)[index] for side in (spec.minimum, spec.maximum))
    return specs.BoundedArray((), spec.dtype, low, high, spec.name)


def changed(values: Mapping[str, Any], changes: Iterable[Change]) -> dict[str, Any]:
    """Return a copy of `values`, keyed by flat name, with `changes` applied in order."""
    arrays = dict(values)
    for change in changes:
        if change.at is ...:
            arrays[change.name] = change.value
        else:
            array = np.array(arrays[change.name])
            array[change.at] = change.value
            arrays[change.name] = array[()]
    return arrays


def default_keys(action_specs: Mapping[str, specs.Array]) -> dict[str, list[Change]]:
    """Assign keys to actions, based on the specs of the actions.

    The arrow keys, then a and d, and then s and w, set bounded floats, and integers with two or
    three values, to their lower or upper bounds. An action with four or five values is treated as
    directions if the arrow keys are free. The digit keys choose among the values of the first
    action that has only a few. Letter keys choose its eleventh and later values, and set bools.

    Args:
      action_specs: the specs by flat name.

    Returns:
      The changes made by each key.
    """
    keys: dict[str, list[Change]] = {}
    axes, letters = iter(_AXES), iter(_LETTERS)
    most = len(_DIGITS) + len(_LETTERS)
    for name, spec in action_specs.items():
        values = few_values(spec, most)
        if len(values) in _ARROWS and "ArrowLeft" not in keys:
            axes = iter(_AXES[2:])
            for key, value in zip(_ARROWS[len(values)], values, strict=True):
                if key is not None:
                    keys[key] = [Change(name, value)]
        elif spec.dtype.kind == "b":
            for index in np.ndindex(*spec.shape) if min(spec.shape, default=1) >= 0 else ():
                keys |= {key: [Change(name, True, index)] for key in itertools.islice(letters, 1)}
        else:
            for end in filter(_has_two_ends, elements(spec, _MOST_ELEMENTS)):
                for back, forth in itertools.islice(axes, 1):
                    keys[back] = [Change(name, end.low, end.at)]
                    keys[forth] = [Change(name, end.high, end.at)]
    for name, spec in action_specs.items():
        values = few_values(spec, most)
        if values and spec.dtype.kind in "iu":
            are_digits = values[0] >= 0 and values[-1] <= 9
            names: Iterable[str] = map(str, values)
            if not are_digits:
                names = itertools.chain(_DIGITS, letters)
            keys |= {key: [Change(name, each)] for key, each in zip(names, values, strict=False)}
            break
    return keys


def _has_two_ends(element: Element) -> bool:
    _, low, high = element
    return bool(np.isfinite([low, high]).all() and (isinstance(low, float) or 0 < high - low <= 2))


class Keys:
    """The state of the keyboard, and the changes that pressed keys make to an action.

    A key pressed and released between two steps counts in one step. If two keys set the same
    value, the key pressed last wins. Key presses can be recorded in another thread.

    Args:
      changes: the changes made by each key.
    """

    def __init__(self, changes: Mapping[str, Sequence[Change]]):
        self.changes = changes
        # No lock: each statement changes or reads one of them atomically.
        self._held: dict[str, None] = {}
        self._tapped: collections.deque[str] = collections.deque()

    def press(self, key: str, repeated: bool = False) -> None:
        """Record that a key is down. `repeated` means that the key was already down."""
        if not repeated:
            self._tapped.append(key)
            self._held.pop(key, None)
        self._held[key] = None

    def release(self, key: str) -> None:
        """Record that a key is up."""
        self._held.pop(key, None)

    def take(self) -> list[Change]:
        """Return the changes for the next step, and clear keys that were tapped."""
        down = [self._tapped.popleft() for _ in range(len(self._tapped))]
        return [change for key in (*down, *self._held) for change in self.changes[key]]

    def legend(self) -> list[tuple[str, str]]:
        """Return each key with a description of its effect."""
        return [
            (key, shorten(", ".join(map(str, changes)), 60))
            for key, changes in self.changes.items()
        ]
