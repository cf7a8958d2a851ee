"""Validates named actions and converts them to the arrays that EnvCApi expects.

Actions are sticky: a name omitted from an action keeps its last value for the rest of the
episode. EnvCApi does not define initial values, so at the start of an episode each number is 0 (or
the bound nearest to 0), and each string is empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dm_env_rpc_client.bridges.env_c_api import declarations
from dm_env_rpc_client.bridges.env_c_api.description import BoundedAction, Description
from dm_env_rpc_client.bridges.env_c_api.runner import Actions
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import casting, nesting

_INT32 = np.dtype(np.int32)
_FLOAT64 = np.dtype(np.float64)


class StickyActions:
    """The current action values of one environment.

    Args:
      description: lists the actions.
    """

    def __init__(self, description: Description):
        self._defaults: tuple[list[Any], list[Any], list[Any]] = (
            [min(max(0, action.minimum), action.maximum) for action in description.discrete],
            [min(max(0.0, action.minimum), action.maximum) for action in description.continuous],
            ["" for _ in description.texts],
        )
        # Kind, index within the kind, and validator of each action, by name.
        self._slots: dict[str, tuple[int, int, Callable[[Any], Any]]] = {}
        for index, action in enumerate(description.discrete):
            self._slots[action.name] = 0, index, functools.partial(_number, action, int, _INT32)
        for index, real in enumerate(description.continuous):
            self._slots[real.name] = 1, index, functools.partial(_number, real, float, _FLOAT64)
        for index, name in enumerate(description.texts):
            self._slots[name] = 2, index, functools.partial(_text, name)
        self.reset()

    def reset(self) -> None:
        """Reset all actions to their values at the start of an episode."""
        self._values = tuple(list(defaults) for defaults in self._defaults)
        self._is_changed = [bool(defaults) for defaults in self._defaults]

    def update(self, action: Any) -> Actions:
        """Store the values of an action.

        Args:
          action: a mapping from names to scalars; nested at the periods in the names, or flat.

        Returns:
          All values of each kind of action that has changed or was not returned before.

        Raises:
          SpecError: the action is not a mapping, contains an unknown name, or contains a value
            that is out of bounds or has the wrong type or shape. In this case, no value is set.
        """
        if not isinstance(action, Mapping):
            raise SpecError(
                f"an action must be a mapping of names to values, got {type(action).__name__}; "
                f"known actions: {self._known()}"
            )
        checked = []
        for name, value in action.items():
            slot = self._slots.get(name)
            if slot is None:
                return self._update_nested(action)
            kind, index, check = slot
            checked.append((kind, index, check(value)))
        for kind, index, value in checked:
            self._values[kind][index] = value
            self._is_changed[kind] = True
        discrete, continuous, texts = self._is_changed
        self._is_changed = [False, False, False]
        return Actions(
            self._values[0] if discrete else None,
            self._values[1] if continuous else None,
            self._values[2] if texts else None,
        )

    def _update_nested(self, action: Mapping[str, Any]) -> Actions:
        flat = nesting.flatten_dict(action, nesting.SEPARATOR, strict=False)
        for name in flat:
            if name not in self._slots:
                raise SpecError(f"there is no action {name!r}; known actions: {self._known()}")
        return self.update(flat)

    def _known(self) -> str:
        return ", ".join(map(repr, self._slots)) or "none"


def _number(action: BoundedAction, plain: type, dtype: np.dtype[Any], value: Any) -> Any:
    if type(value) is not plain:
        value = _scalar(value, dtype, action.name)
    if not action.minimum <= value <= action.maximum:
        raise SpecError(
            f"action {action.name!r} is {value}; expected a number from {action.minimum} to "
            f"{action.maximum}"
        )
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        value = _scalar(value, np.dtype(object), name)
    if not isinstance(value, str):
        raise SpecError(f"action {name!r}: expected a string, got {type(value).__name__}")
    declarations.encode(value, f"action {name!r}")
    return str(value)


def _scalar(value: Any, dtype: np.dtype[Any], name: str) -> Any:
    if isinstance(value, np.generic) and value.dtype == dtype:
        return value.item()
    where = f"action {name!r}"
    array = casting.exact_cast(casting.as_array(value, where), dtype, where)
    if array.shape != ():
        raise SpecError(f"{where} has shape {list(array.shape)}; expected a scalar")
    return array.item()
