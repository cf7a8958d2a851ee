"""Widgets of `dm-env-rpc play` that show pictures: as images, or drawn with characters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import PIL.Image
import textual_image.renderable
import textual_image.widget
from rich.segment import Segment
from textual.containers import Horizontal, Vertical
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from dm_env_rpc_client.cli.playing.blocks import Drawing
from dm_env_rpc_client.cli.playing.pictures import Picture
from dm_env_rpc_client.plain_text import one_line, printable

_SHARP_PIXELS = 1024
"""The least size of an image that is given to the terminal, which blurs what it enlarges."""


def shows_images() -> bool:
    """Whether the terminal shows images, by kitty's protocol or sixels.

    `textual_image` asks the terminal when it is imported, which has to be before the application
    starts.
    """
    found = textual_image.renderable.Image
    return found in (textual_image.renderable.TGPImage, textual_image.renderable.SixelImage)


class Words(Static):
    """Text in which only styles control the terminal."""

    def render_line(self, y: int) -> Strip:
        """Escapes what is not printable."""
        strip = super().render_line(y)
        if strip.text.isprintable():
            return strip
        plain = Strip([Segment(printable(text), style) for text, style, _ in strip])
        return plain.adjust_cell_length(strip.cell_length)


class Gallery(Horizontal):
    """Pictures side by side, with their names if there are several, or numbers in one.

    Args:
      as_images: whether the terminal shows images. Boards are drawn with characters anyway.
    """

    DEFAULT_CSS = """
    Gallery > Vertical { width: 1fr; margin-right: 1; align: center middle; }
    Gallery Words { height: 1; color: $text-muted; }
    Gallery .drawn { height: 1fr; content-align: center middle; }
    Gallery .image { width: auto; height: auto; }
    """

    def __init__(self, as_images: bool):
        super().__init__()
        self._as_images = as_images
        self._shown: dict[str, Any] = {}
        self._boards: dict[str, bool] = {}

    async def show(self, pictures: Mapping[str, Picture]) -> None:
        """Shows pictures by name."""
        boards = {name: picture.pieces is not None for name, picture in pictures.items()}
        if boards != self._boards:
            self._boards = boards
            await self.remove_children()
            self._shown = {name: self._widget(picture) for name, picture in pictures.items()}
            for name, widget in self._shown.items():
                legend = ": numbers are values, empty cells are 0" if boards[name] else ""
                is_titled = legend or len(pictures) > 1
                title = [Words(one_line(name) + legend, markup=False)] if is_titled else []
                await self.mount(Vertical(*title, widget))
        for name, picture in pictures.items():
            widget = self._shown[name]
            if isinstance(widget, Static):
                widget.update(Drawing(picture))
            else:
                image = PIL.Image.fromarray(picture.pixels)
                factor = -(-_SHARP_PIXELS // max(image.size))
                size = image.width * factor, image.height * factor
                widget.image = image.resize(size, PIL.Image.Resampling.NEAREST)

    def _widget(self, picture: Picture) -> Widget:
        if self._as_images and picture.pieces is None:
            return textual_image.widget.Image(classes="image")
        return Static(classes="drawn")
