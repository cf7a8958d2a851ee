"""A view of observations, with a widget for each image and a table for everything else."""

from __future__ import annotations

from typing import Any

import ipywidgets
import numpy as np

from dm_env_rpc_client.tensors.displays import images, markup
from dm_env_rpc_client.tensors.displays.markup import named_leaves
from dm_env_rpc_client.tensors.displays.spec_tables import ANY, value_range
from dm_env_rpc_client.tensors.displays.values import show_value

SIDE, SIDE_OF_MANY = 480, 230
"""The length, in pixels, of the longer side of a single image, and of each of several images."""

SHARP_SIDE = 1280
"""The length, in pixels, of the longer side of a still image's file. Files are larger than images
on the page because screens can have two dots per pixel."""

_ROOT = "observation"


class ObservationView:
    """A widget that shows the current observation.

    Args:
      observation_spec: the specs, for the colour scales of images.

    Attributes:
      widget: the widget.
    """

    def __init__(self, observation_spec: Any):
        self._ranges = {
            name: value_range(spec) for name, spec in named_leaves(observation_spec, _ROOT).items()
        }
        self._images: dict[str, ipywidgets.Image] = {}
        self._gallery = ipywidgets.HBox(
            layout=ipywidgets.Layout(
                flex_flow="row wrap", align_items="flex-start", grid_gap="4px 12px"
            )
        )
        self._values = ipywidgets.HTML()
        self.widget = ipywidgets.VBox([self._gallery, self._values])

    def show(self, observation: Any, moves: bool = False) -> int:
        """Show an observation.

        Args:
          observation: an observation that conforms to the specs.
          moves: whether the next observation follows soon; large images are then sent at a smaller
            size.

        Returns:
          The approximate number of bytes sent to the page.
        """
        most = images.MAX_SIDE if moves else SHARP_SIDE
        pictures: dict[str, images.Picture] = {}
        rows: list[tuple[str, str]] = []
        for name, value in named_leaves(observation, _ROOT).items():
            bounds = self._ranges.get(name, ANY)
            array = np.asarray(value)
            if array.dtype.kind in "biuf" and images.is_image(array.shape, array.dtype):
                pictures[name] = images.picture(array, *bounds, most=most)
            else:
                rows.append((f"<b>{markup.escape(name, 200)}</b>", show_value(value, bounds)))
        if pictures.keys() != self._images.keys():
            self._make_images(list(pictures))
        sent = 0
        side = SIDE if len(pictures) == 1 else SIDE_OF_MANY
        for name, picture in pictures.items():
            widget = self._images[name]
            width, height = picture.shown_size(side)
            with widget.hold_sync():
                widget.format = picture.format
                # Browsers blur scaled images, which only reduced ones need.
                is_enlarged = picture.width < width
                (widget.add_class if is_enlarged else widget.remove_class)("dm-env-pixels")
                widget.width, widget.height = str(width), str(height)
                widget.value = picture.data
            sent += len(picture.data)
        self._values.value = markup.table(("", ""), rows) if rows else ""
        return sent + len(self._values.value)

    def _make_images(self, names: list[str]) -> None:
        self._images = {name: ipywidgets.Image(format="png") for name in names}
        framed = []
        for name, image in self._images.items():
            image.add_class("dm-env-image")
            caption = ipywidgets.HTML(
                f'<span style="opacity:0.7">{markup.escape(name, 200)}</span>'
            )
            framed.append(ipywidgets.VBox([caption, image]))
        self._gallery.children = framed
