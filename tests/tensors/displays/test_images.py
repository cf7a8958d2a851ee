from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest

from dm_env_rpc_client.tensors.displays import images


def pixels(picture: images.Picture) -> npt.NDArray[Any]:
    image = PIL.Image.open(io.BytesIO(picture.data))
    assert image.format is not None
    assert image.format.lower() == picture.format
    assert image.size == (picture.width, picture.height)
    return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((10, 5), True),
        ((84, 84, 1), True),
        ((84, 84, 3), True),
        ((84, 84, 4), True),
        ((3, 64, 64), True),
        ((2, 10), False),
        ((5,), False),
        ((), False),
        ((0, 10), False),
        ((10, 10, 64), False),
        ((2, 10, 10, 3), False),
    ],
)
def test_which_shapes_are_images(shape: tuple[int, ...], expected: bool) -> None:
    assert images.is_image(shape, np.uint8) is expected
    assert not images.is_image(shape, np.dtype(object))


def test_red_green_and_blue_are_shown_as_they_are() -> None:
    array = np.random.default_rng(0).integers(256, size=(16, 17, 3), dtype=np.uint8)
    assert np.array_equal(pixels(images.picture(array)), array)
    assert np.array_equal(pixels(images.picture(np.moveaxis(array, -1, 0))), array)


def test_bytes_are_shades_of_grey() -> None:
    array = np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6)
    shown = pixels(images.picture(array))
    assert np.array_equal(shown, np.repeat(array[..., None], 3, 2))


def test_bytes_with_few_values_have_a_colour_each() -> None:
    shown = pixels(images.picture(np.arange(9, dtype=np.uint8).reshape(3, 3)))
    assert len({tuple(pixel) for pixel in shown.reshape(-1, 3)}) == 9


def test_bools_are_black_and_white() -> None:
    shown = pixels(images.picture(np.eye(3, dtype=bool)))
    assert np.array_equal(shown[..., 0], np.eye(3) * 255)


def test_the_range_of_the_spec_is_that_of_the_colours() -> None:
    array = np.full((4, 4), 5.0)
    array[0, 0] = 6.0
    low, middle, high = (
        tuple(pixels(images.picture(array, *ends))[1, 1])
        for ends in ((5.0, 10.0), (0.0, 10.0), (0.0, 5.0))
    )
    assert len({low, middle, high}) == 3


def test_what_is_not_finite_hides_nothing() -> None:
    array = np.linspace(0, 1, 16).reshape(4, 4)
    array[0, :3] = np.nan, np.inf, -np.inf
    shown = pixels(images.picture(array))
    assert len({tuple(pixel) for pixel in shown.reshape(-1, 3)}) >= 13
    pixels(images.picture(np.full((4, 4), np.nan)))


def test_floats_in_three_channels_are_colours() -> None:
    array = np.zeros((4, 4, 3))
    array[0, 0] = 1.0, 0.5, 0.0
    assert tuple(pixels(images.picture(array, 0.0, 1.0))[0, 0]) == (255, 127, 0)


def test_four_channels_are_frames_side_by_side_unless_the_last_is_full_opacity() -> None:
    stack = np.random.default_rng(0).integers(200, size=(8, 8, 4), dtype=np.uint8)
    assert pixels(images.picture(stack)).shape == (8, 32, 3)
    stack[..., 3] = 255
    shown = pixels(images.picture(stack))
    assert np.array_equal(shown, stack[..., :3])


def test_a_large_image_is_made_small() -> None:
    array = np.zeros((3000, 4000, 3), np.uint8)
    array[:, 2000:] = 250, 0, 0
    shown = pixels(images.picture(array))
    assert max(shown.shape) <= images.MAX_SIDE
    assert shown[10, -10, 0] > 200
    assert shown[10, 10, 0] < 50


def test_a_montage_holds_every_frame() -> None:
    frames = np.random.default_rng(0).integers(256, size=(3, 10, 12, 3), dtype=np.uint8)
    shown = pixels(images.montage(frames))
    gap = (shown.shape[1] - 36) // 2
    assert gap > 0
    for index, frame in enumerate(frames):
        left = index * (12 + gap)
        assert np.array_equal(shown[:, left : left + 12], frame)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((5, 10), (160, 320)),
        ((160, 120), (320, 240)),
        ((640, 320), (320, 160)),
        ((3, 3), (318, 318)),
    ],
)
def test_a_small_image_grows_by_a_whole_number(
    size: tuple[int, int], shown: tuple[int, int]
) -> None:
    assert images.Picture(b"", "png", *size).shown_size(320) == shown
