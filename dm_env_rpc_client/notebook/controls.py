"""Controls: widgets that set an action or a property according to its spec.

A spec with a few values is shown as buttons, and a range is shown as sliders. All other values are
shown in a text field, as JSON. A single string is shown without quotes.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets
import numpy as np
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.controls import checked_by, elements, few_values, idle
from dm_env_rpc_client.tensors.displays.spec_tables import spec_text

MAX_BUTTONS = 12
"""The maximum number of values that are shown as buttons."""

MAX_SLIDERS = 8
"""The maximum number of elements of a vector that is shown as sliders."""

_MAX_SPAN = 1e6
_FILL = ipywidgets.Layout(width="auto", min_width="0", flex="1 1 auto")


class Control(abc.ABC):
    """Base class of widgets that set a value.

    Attributes:
      widget: the widget.
      is_move: whether setting a value takes a step, like a move in a game.
    """

    widget: ipywidgets.DOMWidget
    is_move = False

    def __init__(self, spec: specs.Array):
        self._spec = spec
        self._callbacks: list[Callable[[], object]] = []
        self._is_quiet = False

    @abc.abstractmethod
    def value(self) -> Any:
        """Return the value, or raise SpecError if the input does not conform to the spec."""

    @abc.abstractmethod
    def _show(self, value: Any) -> None:
        """Show a value."""

    def show(self, value: Any) -> None:
        """Set the value without calling the callbacks of `on_set`."""
        self._is_quiet = True
        try:
            self._show(value)
        finally:
            self._is_quiet = False

    def on_set(self, callback: Callable[[], object]) -> None:
        """Call `callback` each time the user sets a value."""
        self._callbacks.append(callback)

    def _was_set(self, _: object = None) -> None:
        if not self._is_quiet:
            for callback in self._callbacks:
                callback()


class Buttons(Control):
    """A button for each value of a small discrete spec."""

    is_move = True

    def __init__(self, spec: specs.Array, where: str, labels: Sequence[str] | None = None):
        super().__init__(spec)
        self._where = where
        self._values = few_values(spec, MAX_BUTTONS)
        texts = list(map(str, self._values if labels is None else labels))
        if len(texts) != len(self._values):
            few = len(self._values) or f"more than {MAX_BUTTONS}"
            raise SpecError(f"{where} has {few} values, but the number of labels is {len(texts)}")
        self._buttons = [
            ipywidgets.Button(description=text, layout=ipywidgets.Layout(width="auto"))
            for text in texts
        ]
        for index, button in enumerate(self._buttons):
            button.on_click(lambda _, index=index: self._press(index))
        self._show(idle(spec))
        self.widget = ipywidgets.HBox(self._buttons, layout=ipywidgets.Layout(flex_flow="row wrap"))

    def value(self) -> Any:
        if self._selected is None:
            raise SpecError(f"{self._where}: no value is selected")
        return np.asarray(self._values[self._selected], self._spec.dtype)[()]

    def _show(self, value: Any) -> None:
        element = np.asarray(value).item()
        self._select(self._values.index(element) if element in self._values else None)

    def _press(self, index: int) -> None:
        self._select(index)
        self._was_set()

    def _select(self, index: int | None) -> None:
        self._selected = index
        for other, button in enumerate(self._buttons):
            button.button_style = "info" if other == index else ""


class Sliders(Control):
    """A slider for a bounded number, or for each element of a short bounded vector."""

    def __init__(self, spec: specs.BoundedArray):
        super().__init__(spec)
        first = np.ravel(idle(spec)).tolist()
        self._sliders = [
            _slider(low, high, value, "".join(map(str, index)))
            for (index, low, high), value in zip(elements(spec, MAX_SLIDERS), first, strict=True)
        ]
        for slider in self._sliders:
            slider.observe(self._was_set, "value")
        self.widget = ipywidgets.VBox(self._sliders, layout=_FILL)

    def value(self) -> Any:
        values = np.array([slider.value for slider in self._sliders], self._spec.dtype)
        shaped = values.reshape(self._spec.shape)
        # Rounding to the dtype can exceed the bounds.
        return np.clip(shaped, self._spec.minimum, self._spec.maximum).astype(self._spec.dtype)[()]

    def _show(self, value: Any) -> None:
        for slider, element in zip(self._sliders, np.ravel(value), strict=True):
            slider.value = element.item()


class Text(Control):
    """A text field for values that have neither buttons nor sliders."""

    def __init__(self, spec: specs.Array, where: str):
        super().__init__(spec)
        self._where = where
        self._check = checked_by(spec, where)
        self._is_plain = isinstance(spec, specs.StringArray) and not spec.shape
        hint = spec_text(spec)
        self._line = ipywidgets.Text(
            placeholder=hint, tooltip=hint, continuous_update=False, layout=_FILL
        )
        self.show(idle(spec))
        self._line.observe(self._was_set, "value")
        self.widget = self._line

    def value(self) -> Any:
        if self._is_plain:
            return self._line.value
        try:
            parsed = json.loads(self._line.value)
        except ValueError as error:
            raise SpecError(
                f"{self._where}: expected a number or a list such as [0, 1], got "
                f"{self._line.value!r}: {error}"
            ) from error
        return self._check(parsed)

    def _show(self, value: Any) -> None:
        if self._is_plain:
            self._line.value = str(value)
        else:
            self._line.value = json.dumps(np.asarray(value).tolist())


def control_for(
    spec: specs.Array, where: str, labels: Sequence[str] | None = None
) -> Control | None:
    """Return a control for a spec, or None if no control exists, as for protobuf messages.

    Args:
      spec: the spec.
      where: the name of the value in error messages, such as "action 'arm.torque'".
      labels: the labels of the buttons for a spec with few values.

    Raises:
      SpecError: the number of labels differs from the number of values.
    """
    if few_values(spec, MAX_BUTTONS) or labels is not None:
        return Buttons(spec, where, labels)
    if _has_sliders(spec):
        return Sliders(spec)
    if spec.dtype.kind == "O" and not isinstance(spec, specs.StringArray):
        return None
    try:
        return Text(spec, where)
    except (SpecError, ValueError):
        # The protocol lacks the dtype, or JSON lacks the value.
        return None


def _has_sliders(spec: specs.Array) -> bool:
    # JavaScript has only floats, which represent integers exactly up to 2**53.
    return bool(elements(spec, MAX_SLIDERS)) and all(
        float(high) - float(low) <= _MAX_SPAN and max(abs(low), abs(high)) < 2**53
        for _, low, high in elements(spec, MAX_SLIDERS)
    )


def _slider(low: Any, high: Any, value: Any, description: str) -> Any:
    options: dict[str, Any] = {
        "min": low,
        "max": high,
        "value": value,
        "description": description,
        "continuous_update": False,
        "layout": ipywidgets.Layout(width="auto"),
        "style": {"description_width": "12px" if description else "0px"},
    }
    if isinstance(low, int):
        return ipywidgets.IntSlider(**options)
    step = (high - low) / 200 or 1.0
    return ipywidgets.FloatSlider(step=step, readout_format=".3g", **options)
