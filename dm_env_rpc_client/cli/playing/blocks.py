"""Pictures as characters, for terminals that cannot show images.

A character is split into two by two pixels, of which it can show two colours: a quadrant such as
`▚` in one colour on a background in the other. Of all splits the one that is nearest to the four
pixels is drawn. Half blocks are two of these splits, so that this is never coarser than they are.
Where all four have one colour it is a background without a glyph: terminals change the colour of
text that cannot be read, and some fonts leave a seam between the glyphs of two rows.
"""

from __future__ import annotations

import functools

import numpy as np
import PIL.Image
from rich.color import Color
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from dm_env_rpc_client.cli.playing.pictures import Picture, Pixels

Line = list[Segment]

_GLYPHS = "▀▌▚▘▛▜▙"
_FOREGROUND = np.array(
    # Upper left, upper right, lower left, lower right.
    [(1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (1, 0, 0, 0),
     (1, 1, 1, 0), (1, 1, 0, 1), (1, 0, 1, 1)],
    np.float32,
)  # fmt: skip
"""Which of the four pixels have the colour of the glyph."""

_LARGEST_CELL = 3
"""The most rows of a cell of a board."""


class Drawing:
    """A picture for `rich`, as large as possible; images are only magnified by even numbers.

    Then a pixel fills whole characters, so that there are no glyphs in the picture.

    Args:
      picture: the picture.
    """

    def __init__(self, picture: Picture):
        self._picture = picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.max_height if options.height is None else options.height
        for line in _draw(self._picture, options.max_width, height):
            yield from line
            yield Segment.line()


def _draw(picture: Picture, width: int, height: int) -> list[Line]:
    """Returns lines of segments, all of one length."""
    if width < 1 or height < 1:
        return []
    rows, columns = picture.pixels.shape[:2]
    if picture.pieces is not None and columns * 2 <= width and rows <= height:
        return _board(picture, min(width // (columns * 2), height // rows, _LARGEST_CELL))
    pixels = _fit(picture.pixels, width, height)
    return [
        [
            Segment(" " if up == down else _GLYPHS[glyph], _style(tuple(up), tuple(down)))
            for glyph, up, down in zip(*line, strict=True)
        ]
        for line in zip(*(part.tolist() for part in _split(pixels)), strict=True)
    ]


def _fit(pixels: Pixels, width: int, height: int) -> Pixels:
    """Returns [2 * rows, 2 * columns, 3]: a character is as high as two pixels of it are wide."""
    rows, columns = pixels.shape[:2]
    scale = min(width / columns, 2 * height / rows)
    image = PIL.Image.fromarray(pixels)
    if scale >= 1:
        whole = int(scale) // 2 * 2 or 1
        size = (2 * columns * whole, rows * whole)
        fitted = np.asarray(image.resize(size, PIL.Image.Resampling.NEAREST))
    else:
        # An even number of rows needs no padding.
        size = (2 * max(1, int(columns * scale)), max(1, int(rows * scale / 2) * 2))
        fitted = np.asarray(image.resize(size, PIL.Image.Resampling.BOX))
    return np.pad(fitted, ((0, len(fitted) % 2), (0, 0), (0, 0)))


def _split(pixels: Pixels) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the best glyph of each character, and its two colours."""
    rows, columns = pixels.shape[0] // 2, pixels.shape[1] // 2
    four = pixels.reshape(rows, 2, columns, 2, 3).transpose(0, 2, 1, 3, 4)
    four = four.reshape(rows, columns, 4, 3).astype(np.float32)
    counts = _FOREGROUND.sum(axis=1)[:, None, None, None]
    above = np.einsum("gp,rcpk->grck", _FOREGROUND, four)
    below = four.sum(axis=2)[None] - above
    # The squared error is least where the squares of the means, times their counts, are most.
    best = (above**2 / counts + below**2 / (4 - counts)).sum(axis=-1).argmax(axis=0)
    chosen = best[None, :, :, None]
    colours = [
        np.rint(np.take_along_axis(part, chosen, axis=0)[0]).astype(np.uint8)
        for part in (above / counts, below / (4 - counts))
    ]
    return best, colours[0], colours[1]


def _board(picture: Picture, size: int) -> list[Line]:
    assert picture.pieces is not None
    lines = []
    for colours, pieces in zip(picture.pixels.tolist(), picture.pieces.tolist(), strict=True):
        for row in range(size):
            texts = [(piece if row == size // 2 else "").center(2 * size) for piece in pieces]
            lines.append(
                [
                    Segment(text, _style(_contrast(colour), tuple(colour)))
                    for text, colour in zip(texts, colours, strict=True)
                ]
            )
    return lines


@functools.lru_cache(maxsize=65536)
def _style(foreground: tuple[int, ...], background: tuple[int, ...]) -> Style:
    return Style.from_color(Color.from_rgb(*foreground), Color.from_rgb(*background))


def _contrast(colour: list[int]) -> tuple[int, ...]:
    return (0, 0, 0) if sum(colour) > 380 else (255, 255, 255)
