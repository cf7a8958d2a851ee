"""Arrays as pictures: which observations are pictures, and their pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dm_env import specs

__all__ = ["Picture", "Pixels", "picture_for"]

Pixels = npt.NDArray[np.uint8]

_CHANNELS = (1, 3, 4)
_LARGEST_BOARD = 64
_SMALLEST_IMAGE = 5
"""A smaller matrix of floats without bounds is shown as numbers."""

_MOST_PIXELS = 1024
"""The most pixels in a row or column; hardly a terminal shows more."""

_PALETTE = np.array(
    [(38, 40, 52), (230, 230, 230), (220, 70, 70), (70, 130, 220), (80, 190, 100),
     (235, 195, 70), (170, 90, 200), (70, 200, 200), (240, 140, 60), (245, 150, 190),
     (140, 100, 70), (130, 200, 60), (110, 110, 240), (160, 160, 170), (150, 40, 90),
     (30, 100, 90)],
    np.uint8,
)  # fmt: skip


class Picture(NamedTuple):
    """A picture of an array.

    Attributes:
      pixels: uint8 [height, width, 3].
      pieces: the text in each cell of a board, [height, width]; None for images.
    """

    pixels: Pixels
    pieces: npt.NDArray[np.object_] | None = None


def picture_for(value: Any, spec: specs.Array | None = None) -> Picture | None:
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
    if array.dtype == np.uint8 and array.shape[2:] == (3,) and (low, high) == (0.0, 255.0):
        return Picture(array)
    bright = np.nan_to_num(array.astype(np.float32), posinf=high, neginf=low)
    bright = np.clip((bright - low) / (high - low), 0.0, 1.0)
    if array.ndim == 2:
        bright = np.repeat(bright[:, :, None], 3, axis=2)
    elif array.shape[2] == 4:
        bright = bright[:, :, :3] * bright[:, :, 3:]
    return Picture(np.rint(bright * 255).astype(np.uint8))


def _range(array: npt.NDArray[Any], spec: specs.Array | None) -> tuple[float, float]:
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
