"""Images drawn as characters, where each half of a character shows one pixel."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style


class Drawing:
    """An image for `rich`, scaled by a whole factor to fill the available space.

    A character whose halves have the same colour is drawn as a space, because some fonts leave a
    seam between the glyphs of two rows.

    Args:
      picture: the image, uint8 [height, width, 3].
    """

    def __init__(self, picture: npt.NDArray[np.uint8]):
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.max_height if options.height is None else options.height
        pixels = _fit(self._picture, options.max_width, 2 * height)
        for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
            yield from map(_segment, upper, lower)
            yield Segment.line()


def _segment(upper: Iterable[int], lower: Iterable[int]) -> Segment:
    up, down = Color.from_rgb(*upper), Color.from_rgb(*lower)
    return Segment(" " if up == down else "▀", Style.from_color(up, down))


def _fit(picture: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return the picture scaled to fit `width` x `height` pixels, with an even number of rows."""
    rows, columns = picture.shape[:2]
    larger = min(width // columns, height // rows)
    if larger > 1:
        larger -= larger % 2  # Even, so that enlarged pixels fill whole characters.
    if larger:
        fitted = picture.repeat(larger, axis=0).repeat(larger, axis=1)
    else:
        smaller = max(-(-columns // width), -(-rows // height))
        gaps = [(0, -size % smaller) for size in (rows, columns)]
        padded = np.pad(picture, (*gaps, (0, 0)), mode="edge")
        blocks = padded.reshape(-(-rows // smaller), smaller, -(-columns // smaller), smaller, 3)
        fitted = np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)
    return np.pad(fitted, ((0, len(fitted) % 2), (0, 0), (0, 0)))
