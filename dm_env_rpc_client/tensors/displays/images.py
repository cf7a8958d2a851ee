"""Functions that show arrays as images and decide which arrays to show and in which colours.

Boolean arrays, and grey or RGB images in uint8, are shown unchanged. For all other arrays, the
colour scale covers the range given by the spec or, if there is none, the range of the array.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import PIL.Image

Array = npt.NDArray[Any]

MAX_SIDE = 640
"""The default maximum length of the longer side of an image, in pixels."""

_SMALLEST = 3
_COLOURS = (1, 3, 4)
_MOST_PLANES = 16
_PHOTO_PIXELS = 256 * 256
_FEW_VALUES = 16


class Picture(NamedTuple):
    """An image file that a browser can display.

    Attributes:
      data: the contents of the file.
      format: "png" or "jpeg".
      width: the width of the image in pixels.
      height: the height of the image in pixels.
    """

    data: bytes
    format: str
    width: int
    height: int

    def shown_size(self, side: int) -> tuple[int, int]:
        """Return the width and height to display on a page, with the longer side at most `side`.

        A small image is enlarged by an integer factor, so that all its pixels have the same size.
        """
        longer = max(self.width, self.height)
        if longer > side:
            return self.width * side // longer or 1, self.height * side // longer or 1
        factor = side // longer
        return self.width * factor, self.height * factor


def is_image(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bool:
    """Whether arrays of this shape and dtype are shown as images.

    Image shapes are [H, W], [H, W, C] with up to 16 channels, and [C, H, W] with 1, 3 or 4
    channels.
    """
    return np.dtype(dtype).kind in "biuf" and _layout(shape) is not None


def is_rgb(shape: tuple[int, ...], dtype: npt.DTypeLike) -> bool:
    """Whether arrays of this shape and dtype are RGB pictures: uint8 [H, W, 3]."""
    return np.dtype(dtype) == np.uint8 and len(shape) == 3 and shape[2] == 3


def picture(array: Array, low: Any = None, high: Any = None, most: int = MAX_SIDE) -> Picture:
    """Return an image of an array for which `is_image` holds.

    An array with more than three channels is shown as one image per channel, side by side, unless
    it is RGBA and fully opaque.

    Args:
      array: an array of shape [H, W], [H, W, C] or [C, H, W].
      low: the value at the lower end of the colour scale, or None for the minimum of the array.
      high: the value at the upper end of the colour scale, or None for the maximum of the array.
      most: as for `encode`.
    """
    return encode(_to_image(array, low, high), most)


def montage(arrays: Array, low: Any = None, high: Any = None) -> Picture:
    """Return one picture that shows several images of the same shape side by side.

    Args:
      arrays: N arrays as for `picture`, stacked to shape [N, ...].
      low: as for `picture`.
      high: as for `picture`.
    """
    import PIL.Image

    tiles = [_to_image(array, low, high) for array in arrays]
    gap = 1 + max(tile.width for tile in tiles) // 24
    width = sum(tile.width for tile in tiles) + gap * (len(tiles) - 1)
    strip = PIL.Image.new("RGBA", (width, tiles[0].height), (0, 0, 0, 0))
    left = 0
    for tile in tiles:
        strip.paste(tile, (left, 0))
        left += tile.width + gap
    return encode(strip)


def encode(image: PIL.Image.Image, most: int = MAX_SIDE) -> Picture:
    """Encode an image as a JPEG file if it is a large RGB image, and otherwise as a PNG file.

    Args:
      image: the image.
      most: the maximum length of the longer side in pixels; a larger image is scaled down.
    """
    import PIL.Image

    if max(image.size) > most:
        image.thumbnail((most, most), PIL.Image.Resampling.BILINEAR)
    buffer = io.BytesIO()
    is_photo = image.width * image.height > _PHOTO_PIXELS and image.mode == "RGB"
    if is_photo:
        image.save(buffer, "JPEG", quality=88)
    else:
        image.save(buffer, "PNG", compress_level=3)
    return Picture(buffer.getvalue(), "jpeg" if is_photo else "png", *image.size)


def _layout(shape: tuple[int, ...]) -> str | None:
    """Return the layout "HW", "HWC" or "CHW" of an image's shape, or None for other shapes."""
    if any(size <= 0 for size in shape):
        return None
    if len(shape) == 2 and min(shape) >= _SMALLEST:
        return "HW"
    if len(shape) != 3:
        return None
    if shape[2] in _COLOURS and min(shape[:2]) >= _SMALLEST:
        return "HWC"
    if shape[0] in _COLOURS and min(shape[1:]) >= _SMALLEST:
        return "CHW"
    return "HWC" if shape[2] <= _MOST_PLANES and min(shape[:2]) >= _SMALLEST else None


def pixels(array: Array, low: Any = None, high: Any = None) -> npt.NDArray[np.uint8]:
    """Return the pixels of an array for which `is_image` holds.

    Args:
      array: as for `picture`.
      low: as for `picture`.
      high: as for `picture`.

    Returns:
      RGB colours, uint8 [H, W, 3], or brightness values, uint8 [H, W], with several channels side
      by side.
    """
    layout = _layout(array.shape)
    assert layout is not None, "see is_image"
    if layout == "CHW":
        array = np.moveaxis(array, 0, -1)
    elif layout == "HW":
        array = array[..., np.newaxis]
    # Subsampled first: for larger arrays, even scaling down would take long.
    stride = 1 + max(array.shape[:2]) // (4 * MAX_SIDE)
    array = array[::stride, ::stride]
    if array.shape[2] == 4 and array.dtype == np.uint8 and np.all(array[..., 3] == 255):
        array = array[..., :3]
    if array.dtype.kind == "b":
        array = array.astype(np.uint8) * 255
    elif not _has_shades(array, high):
        array = _scaled(array, low, high)
    if array.shape[2] == 3:
        return np.ascontiguousarray(array)
    return np.concatenate(np.moveaxis(array, -1, 0), axis=1)


def rgb(array: Array, low: Any = None, high: Any = None) -> npt.NDArray[np.uint8]:
    """Convert an array for which `is_image` or `is_rgb` holds to RGB pixels, uint8 [H, W, 3].

    Args:
      array: as for `picture`. The result does not share memory with this array.
      low: as for `picture`.
      high: as for `picture`.
    """
    if is_rgb(array.shape, array.dtype):
        return np.array(array)
    shown = pixels(array, low, high)
    return shown if shown.ndim == 3 else np.repeat(shown[..., np.newaxis], 3, axis=2)


def _to_image(array: Array, low: Any, high: Any) -> PIL.Image.Image:
    import PIL.Image

    shown = pixels(array, low, high)
    if shown.ndim == 2 and not _has_shades(array, high):
        import matplotlib

        shown = matplotlib.colormaps["viridis"](shown, bytes=True)[..., :3]
    return PIL.Image.fromarray(shown).convert("RGB")


def _has_shades(array: Array, high: Any) -> bool:
    """Whether an array contains shades, not numbers or a few categories such as board pieces."""
    if array.dtype == np.uint8:
        return bool((array.max() if high is None else high) >= _FEW_VALUES)
    return array.dtype.kind == "b"


def _scaled(array: Array, low: Any, high: Any) -> npt.NDArray[np.uint8]:
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    if low is None or not np.isfinite(low):
        low = finite.min() if finite.size else 0.0
    if high is None or not np.isfinite(high):
        high = finite.max() if finite.size else 1.0
    with np.errstate(all="ignore"):
        shares = (values - float(low)) / ((float(high) - float(low)) or 1.0)
    return np.asarray(np.clip(np.nan_to_num(shares), 0, 1) * 255, np.uint8)
