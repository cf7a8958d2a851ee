"""A panel that shows and sets the properties of a server or of a local environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

from dm_env_rpc_client.extensions.properties import PropertyAccess, PropertySpec, TreeEntry
from dm_env_rpc_client.notebook.controls import Control, control_for
from dm_env_rpc_client.server.properties import HasStringProperties
from dm_env_rpc_client.tensors.displays import markup
from dm_env_rpc_client.tensors.displays.values import show_value


class LocalProperties(PropertyAccess):
    """The interface of `PropertiesExtension`, for an environment in this process.

    All values are strings. An operation that the environment refuses raises the same error as with
    a server.

    Args:
      environment: the environment.
    """

    def __init__(self, environment: HasStringProperties):
        super().__init__()
        self._environment = environment

    def read(self, key: str) -> Any:
        return self._environment.read_property(key)

    def write(self, key: str, value: Any) -> None:
        self._environment.write_property(key, str(value))

    def list(self, key: str = "") -> Sequence[PropertySpec]:
        listed = self._environment.list_properties(key)
        return [
            PropertySpec.of_text(
                child,
                readable=attributes.is_readable,
                writable=attributes.is_writable,
                listable=attributes.is_listable,
            )
            for child, attributes in sorted(listed.items())
        ]


MAX_SHOWN = 200
"""The maximum number of properties that are shown."""

_CENTRED = ipywidgets.Layout(align_items="center")


class PropertyPanel:
    """A panel that lists, reads and writes properties at the user's request.

    Args:
      properties: the properties.
      call: calls a function in the thread that uses the connection, and shows its errors.

    Attributes:
      widget: the widget.
    """

    def __init__(self, properties: PropertyAccess, call: Callable[[Callable[[], object]], None]):
        self._properties = properties
        self._call = call
        self._controls: dict[str, Control] = {}
        self._button = ipywidgets.Button(
            description="Read properties", icon="refresh", layout=ipywidgets.Layout(width="auto")
        )
        self._button.on_click(lambda _: self.refresh())
        self._note = ipywidgets.HTML()
        self._rows = ipywidgets.VBox()
        self.widget = ipywidgets.VBox(
            [ipywidgets.HBox([self._button, self._note], layout=_CENTRED), self._rows]
        )

    def refresh(self) -> None:
        """List and read all properties."""
        self._call(self._read_all)

    def _read_all(self) -> None:
        self._note.value = "reading …"
        try:
            tree = self._properties.tree()
        finally:
            self._note.value = ""
        self._controls.clear()
        self._rows.children = [self._row(entry) for entry in tree.entries[:MAX_SHOWN]]
        shown = len(self._rows.children)
        is_all = tree.is_complete and shown == len(tree.entries)
        self._note.value = f"{shown} properties" if is_all else f"the first {shown} properties"

    def _row(self, entry: TreeEntry) -> ipywidgets.HBox:
        spec = entry.spec
        indent = 16 * min(entry.depth, 10)
        name = ipywidgets.HTML(
            f'<div style="padding-left:{indent}px;overflow:hidden;text-overflow:ellipsis" '
            f'title="{markup.escape(spec.key)}">{markup.escape(spec.key, 200)}</div>',
            layout=ipywidgets.Layout(width="220px", flex="0 0 auto"),
        )
        description = ipywidgets.HTML(
            f'<span style="opacity:0.7">{markup.escape(spec.description)}</span>'
        )
        control = self._control(entry)
        if control is None:
            text = f"<i>{markup.escape(entry.refusal)}</i>" if entry.refusal else ""
            if spec.readable and not entry.refusal:
                text = show_value(entry.value)
            value: ipywidgets.DOMWidget = ipywidgets.HTML(text)
        else:
            self._controls[spec.key] = control
            value = control.widget
        cell = ipywidgets.HBox([value], layout=ipywidgets.Layout(width="260px", flex="0 0 auto"))
        return ipywidgets.HBox([name, cell, description], layout=_CENTRED)

    def _control(self, entry: TreeEntry) -> Control | None:
        """Return a control that shows the current value of a writable property."""
        spec = entry.spec
        if not spec.writable or spec.spec is None:
            return None
        control = control_for(spec.spec, f"property {spec.key!r}")
        if control is None:
            return None
        if spec.readable and not entry.refusal:
            try:
                control.show(entry.value)
            except (TypeError, ValueError):
                # The value does not conform to the spec of the server.
                return None
        control.on_set(lambda: self._call(lambda: self._write(spec.key, control)))
        return control

    def _write(self, key: str, control: Control) -> None:
        value = control.value()
        self._properties.write(key, value)
        self._note.value = f"{markup.escape(key, 200)} = {markup.escape(value, 80)} written"

    def control(self, key: str) -> Any:
        """Return the control of a property that is writable and shown."""
        return self._controls[key]
