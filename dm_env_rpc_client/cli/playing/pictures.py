"""Arrays as pictures of characters.

A pixel of an image is half a character: an upper half block in its colour, on a background
in the colour of the pixel below. If the terminal has no such character, a pixel is two blanks
on a background; if it has no colours, a pixel is two characters of similar brightness.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any

import numpy as np
import numpy.typing as npt
import rich.console
from dm_env import specs
from rich.color import Color
from rich.segment import Segment
from rich.style import Style

__all__ = ["Ink", "Picture", "ink_for", "picture_for"]

Line = list[Segment]
Pixels = npt.NDArray[np.uint8]

_CHANNELS = (1, 3, 4)
_LARGEST_BOARD = 64
_SMALLEST_IMAGE = 5
"""A smaller matrix of floats without bounds is shown as numbers."""

_LARGEST_CELL = 3
"""The most rows of a cell of a board."""

_MOST_PIXELS = 512
"""The most pixels in a row or column; no terminal can show more."""

_RAMP = " .:-=+*#%@"

_PALETTE = np.array(
    [(38, 40, 52), (230, 230, 230), (220, 70, 70), (70, 130, 220), (80, 190, 100),
     (235, 195, 70), (170, 90, 200), (70, 200, 200), (240, 140, 60), (245, 150, 190),
     (140, 100, 70), (130, 200, 60), (110, 110, 240), (160, 160, 170), (150, 40, 90),
     (30, 100, 90)],
    np.uint8,
)  # fmt: skip


class Ink(enum.Enum):
    """The means of drawing that a terminal has."""

    HALF_BLOCKS = enum.auto()
    BACKGROUNDS = enum.auto()
    CHARACTERS = enum.auto()


def ink_for(console: rich.console.Console) -> Ink:
    """Returns the best means of drawing that a terminal has."""
    if console.color_system is None or console.no_color:
        return Ink.CHARACTERS
    return Ink.HALF_BLOCKS if console.encoding.startswith("utf") else Ink.BACKGROUNDS


@dataclasses.dataclass
class Picture:
    """A picture of an array.

    Attributes:
      pixels: uint8 [height, width, 3].
      pieces: the text in each cell of a board, [height, width]; None for images.
    """

    pixels: Pixels
    pieces: npt.NDArray[np.object_] | None = None

    def lines(self, width: int, height: int, ink: Ink) -> list[Line]:
        """Draws the picture as large as possible; images are only magnified by whole numbers.

        Args:
          width: available columns.
          height: available rows.
          ink: the means of drawing.

        Returns:
          Lines of segments, all of one length.
        """
        if width < 2 or height < 1:
            return []
        rows, columns = self.pixels.shape[:2]
        if self.pieces is not None and columns * 2 <= width and rows <= height:
            return self._board(min(width // (columns * 2), height // rows, _LARGEST_CELL), ink)
        if ink is Ink.HALF_BLOCKS:
            pixels = _fit(self.pixels, width, height * 2)
            if len(pixels) % 2:
                pixels = np.concatenate([pixels, np.zeros_like(pixels[:1])])
            return [
                [
                    Segment("▀", _style(tuple(up), tuple(down)))
                    for up, down in zip(*pair, strict=True)
                ]
                for pair in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True)
            ]
        pixels = _fit(self.pixels, width // 2, height)
        return [[_double(tuple(pixel), ink) for pixel in row] for row in pixels.tolist()]

    def _board(self, size: int, ink: Ink) -> list[Line]:
        assert self.pieces is not None
        lines = []
        for colours, pieces in zip(self.pixels.tolist(), self.pieces.tolist(), strict=True):
            for row in range(size):
                texts = [(piece if row == size // 2 else "").center(2 * size) for piece in pieces]
                lines.append(
                    [
                        Segment(text, _style(_contrast(colour), tuple(colour)))
                        if ink is not Ink.CHARACTERS
                        else Segment(text)
                        for text, colour in zip(texts, colours, strict=True)
                    ]
                )
        return lines


def picture_for(value: Any, spec: specs.Array) -> Picture | None:
    """Returns the picture of an observation if it is an image or a board.

    Args:
      value: an image [height, width], [height, width, channels] or [channels, height,
        width] with 1, 3 or 4 channels, of floats or integers; a board [height, width] of
        bools or of few different integers.
      spec: of the observation; its bounds are black and white.

    Returns:
      The picture; None for anything else, such as a vector.
    """
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.size == 0:
        return None
    if array.ndim == 3 and array.shape[2] not in _CHANNELS and array.shape[0] in _CHANNELS:
        array = np.moveaxis(array, 0, 2)
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    is_grey = array.ndim == 2 and min(array.shape) >= 2
    if not is_grey and not (array.ndim == 3 and array.shape[2] in _CHANNELS):
        return None
    array = array[:: -(-array.shape[0] // _MOST_PIXELS), :: -(-array.shape[1] // _MOST_PIXELS)]
    low, high = _range(array, spec)
    if is_grey and array.dtype.kind != "f":
        board = _board_for(array, low, high)
        if board is not None:
            return board
    bounded = isinstance(spec, specs.BoundedArray)
    if is_grey and array.dtype.kind == "f" and not bounded and max(array.shape) < _SMALLEST_IMAGE:
        return None
    bright = np.nan_to_num(array.astype(np.float64), posinf=high, neginf=low)
    bright = np.clip((bright - low) / (high - low), 0.0, 1.0)
    if array.ndim == 2:
        bright = np.repeat(bright[:, :, None], 3, axis=2)
    elif array.shape[2] == 4:
        bright = bright[:, :, :3] * bright[:, :, 3:]
    return Picture(np.rint(bright * 255).astype(np.uint8))


def _range(array: npt.NDArray[Any], spec: specs.Array) -> tuple[float, float]:
    """Returns the values of black and white."""
    if array.dtype.kind == "b":
        return 0.0, 1.0
    if isinstance(spec, specs.BoundedArray):
        low, high = float(np.min(spec.minimum)), float(np.max(spec.maximum))
        if low < high < 1e6 and low > -1e6:
            return low, high
    if array.dtype == np.uint8:
        return 0.0, 255.0
    finite = array[np.isfinite(array)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if array.dtype.kind == "f" and low >= 0 and high <= 255:
        # Images of floats usually go up to 1 or up to 255.
        return 0.0, 1.0 if high <= 1 else 255.0
    return (low, high) if low < high else (low, low + 1.0)


def _board_for(array: npt.NDArray[Any], low: float, high: float) -> Picture | None:
    if max(array.shape) > _LARGEST_BOARD or high - low >= len(_PALETTE):
        return None
    numbers = array.astype(np.int64)
    # Zero is the empty cell if it is a possible value.
    kinds = numbers - min(0, int(low)) if low <= 0 else numbers
    if kinds.min() < 0 or kinds.max() >= len(_PALETTE):
        kinds = numbers - int(low)
    pieces = np.array([str(n) if n else "" for n in numbers.flat], object).reshape(array.shape)
    return Picture(_PALETTE[kinds], pieces)


def _fit(pixels: Pixels, width: int, height: int) -> Pixels:
    """Magnifies pixels by a whole number, or reduces them to their means."""
    rows, columns = pixels.shape[:2]
    scale = min(width / columns, height / rows)
    if scale >= 1:
        return pixels.repeat(int(scale), axis=0).repeat(int(scale), axis=1)
    sums = pixels.astype(np.float64)
    for axis, size in ((0, rows), (1, columns)):
        edges = np.arange(max(1, int(size * scale))) * size // max(1, int(size * scale))
        counts = np.diff(np.append(edges, size))
        shape = [1, 1, 1]
        shape[axis] = len(counts)
        sums = np.add.reduceat(sums, edges, axis=axis) / counts.reshape(shape)
    return np.rint(sums).astype(np.uint8)


def _double(pixel: tuple[int, ...], ink: Ink) -> Segment:
    if ink is Ink.BACKGROUNDS:
        return Segment("  ", _style(pixel, pixel))
    brightness = (pixel[0] * 299 + pixel[1] * 587 + pixel[2] * 114) // 1000
    return Segment(_RAMP[brightness * len(_RAMP) // 256] * 2)


@functools.lru_cache(maxsize=65536)
def _style(foreground: tuple[int, ...], background: tuple[int, ...]) -> Style:
    return Style.from_color(Color.from_rgb(*foreground), Color.from_rgb(*background))


def _contrast(colour: list[int]) -> tuple[int, ...]:
    return (0, 0, 0) if sum(colour) > 380 else (255, 255, 255)
