"""Widgets of `dm-env-rpc play` that show pictures: as images, or drawn with characters."""

from __future__ import annotations

from collections.abc import Mapping

import PIL.Image
import textual_image.renderable
import textual_image.widget
from rich.segment import Segment
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import Static

from dm_env_rpc_client.cli.playing.blocks import Line, draw
from dm_env_rpc_client.cli.playing.pictures import Picture
from dm_env_rpc_client.displays.plain_text import one_line, printable

__all__ = ["Gallery", "Words", "shows_images"]

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
        """See `Widget.render_line`."""
        strip = super().render_line(y)
        if strip.text.isprintable():
            return strip
        plain = Strip([Segment(printable(text), style) for text, style, _ in strip])
        return plain.adjust_cell_length(strip.cell_length)


class _Blocks(Widget):
    """A picture that is drawn with characters, in the middle of the widget."""

    def __init__(self) -> None:
        super().__init__()
        self._picture: Picture | None = None
        self._drawn: tuple[int, int, list[Line]] | None = None

    def show(self, picture: Picture) -> None:
        self._picture = picture
        self._drawn = None
        self.refresh()

    def render_line(self, y: int) -> Strip:
        width, height = self.size
        if self._picture is None:
            return Strip.blank(width)
        if self._drawn is None or self._drawn[:2] != (width, height):
            self._drawn = width, height, draw(self._picture, width, height)
        lines = self._drawn[2]
        row = y - (height - len(lines)) // 2
        if not 0 <= row < len(lines):
            return Strip.blank(width, self.rich_style)
        line = Strip(lines[row])
        margin = Segment(" " * ((width - line.cell_length) // 2), self.rich_style)
        return Strip([margin, *line]).adjust_cell_length(width, self.rich_style)


class _Image(Vertical):
    """A picture as an image."""

    def __init__(self) -> None:
        super().__init__()
        self._image = textual_image.widget.Image()
        self._image.styles.width = self._image.styles.height = "auto"

    def compose(self) -> ComposeResult:
        yield self._image

    def show(self, picture: Picture) -> None:
        image = PIL.Image.fromarray(picture.pixels)
        factor = -(-_SHARP_PIXELS // max(image.size))
        size = image.width * factor, image.height * factor
        self._image.image = image.resize(size, PIL.Image.Resampling.NEAREST)


class Gallery(Horizontal):
    """Pictures side by side, with their names if there are several.

    Args:
      as_images: whether the terminal shows images. Boards are drawn with characters anyway.
    """

    DEFAULT_CSS = """
    Gallery > Vertical { width: 1fr; margin-right: 1; }
    Gallery Static { height: 1; color: $text-muted; }
    Gallery _Blocks { height: 1fr; }
    Gallery _Image { height: 1fr; align: center middle; }
    """

    def __init__(self, as_images: bool):
        super().__init__()
        self._as_images = as_images
        self._shown: dict[tuple[str, bool], _Blocks | _Image] = {}

    async def show(self, pictures: Mapping[str, Picture]) -> None:
        """Shows pictures by name."""
        kinds = {
            (name, self._as_images and picture.pieces is None): picture
            for name, picture in pictures.items()
        }
        if kinds.keys() != self._shown.keys():
            await self.remove_children()
            self._shown = {key: _Image() if key[1] else _Blocks() for key in kinds}
            await self.mount_all(
                Vertical(Words(one_line(name), markup=False), widget)
                if len(kinds) > 1
                else Vertical(widget)
                for (name, _), widget in self._shown.items()
            )
        for key, picture in kinds.items():
            self._shown[key].show(picture)
