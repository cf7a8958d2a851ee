"""Arrays as pictures: which observations are pictures, and their pixels."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dm_env import specs

from dm_env_rpc_client.tensors.displays import images
from dm_env_rpc_client.tensors.displays.spec_tables import Range, value_range

Pixels = npt.NDArray[np.uint8]

_LARGEST_BOARD = 64

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
      value: a board [height, width] of bools or of few different integers; or an image, see
        `tensors.displays.images.is_image`.
      spec: of the observation; its bounds are black and white.

    Returns:
      The picture; None for anything else, such as a vector.
    """
    array = np.asarray(value)
    bounds = Range(None, None) if spec is None else value_range(spec)
    if array.dtype.kind in "biu" and array.ndim == 2 and array.size:
        board = _board_for(array.astype(np.int64), bounds)
        if board is not None:
            return board
    if not images.is_image(array.shape, array.dtype):
        return None
    pixels = images.pixels(array, *bounds)
    return Picture(pixels if pixels.ndim == 3 else np.repeat(pixels[:, :, None], 3, axis=2))


def _board_for(numbers: npt.NDArray[np.int64], bounds: Range) -> Picture | None:
    low, high = int(numbers.min()), int(numbers.max())
    if bounds.low is not None and bounds.high is not None:
        low, high = min(low, int(bounds.low)), max(high, int(bounds.high))
    count = len(_PALETTE)
    if min(numbers.shape) < 2 or max(numbers.shape) > _LARGEST_BOARD or high - low >= count:
        return None
    # Zero is the empty cell if it can be.
    kinds = numbers - (low if low < 0 or high >= count else 0)
    pieces = np.array([str(n) if n else "" for n in numbers.flat], object).reshape(numbers.shape)
    return Picture(_PALETTE[kinds], pieces)
