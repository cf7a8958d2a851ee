"""Arrays as characters: what is drawn, how large and with what."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
import pytest
import rich.console
from dm_env import specs

from dm_env_rpc_client.cli.playing.pictures import Ink, Picture, ink_for, picture_for


def spec_of(value: Any, **bounds: Any) -> specs.Array:
    array = np.asarray(value)
    if bounds:
        return specs.BoundedArray(array.shape, array.dtype, **bounds)
    return specs.Array(array.shape, array.dtype)


def text(picture: Picture, width: int, height: int, ink: Ink) -> list[str]:
    return ["".join(part.text for part in line) for line in picture.lines(width, height, ink)]


def drawn(value: Any, **bounds: Any) -> Any:
    picture = picture_for(np.asarray(value), spec_of(value, **bounds))
    assert picture is not None
    return picture.pixels


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1),
        np.zeros(5),
        np.zeros((0, 3)),
        np.zeros((1, 8), np.uint8),
        np.zeros((2, 3, 4, 5)),
        np.zeros((8, 8, 5), np.uint8),
        np.eye(3),
        np.array(["a"], object),
        np.zeros((3, 3), np.complex64),
    ],
)
def test_what_is_no_picture(value: Any) -> None:
    assert picture_for(value, spec_of(value)) is None


def test_images_of_bytes_are_as_they_are() -> None:
    image = np.random.default_rng(0).integers(256, size=(6, 7, 3), dtype=np.uint8)
    np.testing.assert_array_equal(drawn(image), image)
    np.testing.assert_array_equal(drawn(np.moveaxis(image, 2, 0)), image)
    np.testing.assert_array_equal(drawn(image, minimum=0, maximum=255), image)


def test_greys_and_transparency() -> None:
    grey = np.arange(36, dtype=np.uint8).reshape(6, 6)
    np.testing.assert_array_equal(drawn(grey), np.repeat(grey[:, :, None], 3, axis=2))
    np.testing.assert_array_equal(drawn(grey[:, :, None])[:, :, 0], grey)
    clear = np.full((5, 5, 4), 200, np.uint8)
    clear[..., 3] = 0
    assert not drawn(clear).any()


@pytest.mark.parametrize(
    ("value", "bounds", "brightest", "darkest"),
    [
        (np.linspace(0, 1, 25, dtype=np.float32).reshape(5, 5), {}, 255, 0),
        (np.linspace(0, 0.5, 25).reshape(5, 5), {}, 128, 0),
        (np.linspace(0, 255, 25).reshape(5, 5), {}, 255, 0),
        (np.linspace(-3, 900, 25).reshape(5, 5), {}, 255, 0),
        (np.linspace(-1, 1, 25).reshape(5, 5), {"minimum": -1, "maximum": 1}, 255, 0),
        (np.linspace(0, 1, 25).reshape(5, 5), {"minimum": 0, "maximum": 2}, 128, 0),
        (np.linspace(1, 1, 25).reshape(5, 5), {"minimum": -np.inf, "maximum": np.inf}, 255, 255),
        (np.arange(0, 2500, 100).reshape(5, 5), {}, 255, 0),
        (np.full((5, 5), np.nan), {}, 0, 0),
    ],
)
def test_what_is_black_and_what_is_white(
    value: Any, bounds: dict[str, Any], brightest: int, darkest: int
) -> None:
    pixels = drawn(value, **bounds)
    assert (pixels.max(), pixels.min()) == (brightest, darkest)


def test_floats_that_are_not_finite_are_drawn_all_the_same() -> None:
    value = np.full((5, 5), 0.5)
    value[0, 0], value[0, 1], value[0, 2] = np.inf, -np.inf, np.nan
    pixels = drawn(value)
    assert pixels[0, 0, 0] == 255
    assert pixels[0, 1, 0] == 0


def test_small_boards_are_cells_with_their_numbers() -> None:
    board = np.array([[0, 1, 2], [3, 0, 1]])
    picture = picture_for(board, spec_of(board))
    assert picture is not None
    assert text(picture, 6, 2, Ink.HALF_BLOCKS) == ["  1 2 ", "3   1 "]
    assert text(picture, 6, 2, Ink.CHARACTERS) == ["  1 2 ", "3   1 "]
    large = text(picture, 100, 100, Ink.BACKGROUNDS)
    assert (len(large), len(large[0])) == (6, 18)
    colours = {str(part.style) for line in picture.lines(6, 2, Ink.HALF_BLOCKS) for part in line}
    assert len(colours) == 4


def test_boards_below_zero_beyond_the_palette_and_of_bools() -> None:
    board = np.array([[-1, 0], [1, 5]], np.int8)
    picture = picture_for(board, spec_of(board, minimum=-1, maximum=10))
    assert picture is not None
    assert text(picture, 4, 2, Ink.CHARACTERS) == ["-1  ", "1 5 "]
    high = np.array([[100, 101], [102, 103]], np.int32)
    picture = picture_for(high, spec_of(high))
    assert picture is not None
    assert picture.pieces is not None
    assert len({tuple(pixel) for pixel in picture.pixels.reshape(-1, 3).tolist()}) == 4
    bools = np.eye(2, dtype=bool)
    picture = picture_for(bools, spec_of(bools))
    assert picture is not None
    assert text(picture, 4, 2, Ink.CHARACTERS) == ["1   ", "  1 "]


def test_a_board_without_room_is_an_image() -> None:
    board = np.tile(np.array([0, 1]), (40, 20))
    picture = picture_for(board, spec_of(board))
    assert picture is not None
    assert text(picture, 20, 10, Ink.HALF_BLOCKS) == ["▀" * 20] * 10


def test_images_are_magnified_by_whole_numbers() -> None:
    image = np.zeros((2, 3, 3), np.uint8)
    picture = picture_for(image, spec_of(image))
    assert picture is not None
    lines = text(picture, 20, 10, Ink.HALF_BLOCKS)
    assert (len(lines), len(lines[0])) == (6, 18)
    lines = text(picture, 20, 10, Ink.BACKGROUNDS)
    assert (len(lines), len(lines[0])) == (6, 18)


def test_images_are_reduced_to_their_means() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[:50] = 200
    image[:, ::2, 1] = 0
    picture = picture_for(image, spec_of(image))
    assert picture is not None
    lines = picture.lines(20, 10, Ink.HALF_BLOCKS)
    assert (len(lines), len(lines[0])) == (5, 20)
    first = lines[0][0].style
    assert first is not None
    assert first.color is not None
    assert first.color.triplet is not None
    assert tuple(first.color.triplet) == (200, 100, 200)


def test_an_odd_number_of_rows_ends_in_black() -> None:
    image = np.full((5, 5, 3), 255, np.uint8)
    picture = picture_for(image, spec_of(image))
    assert picture is not None
    lines = picture.lines(5, 3, Ink.HALF_BLOCKS)
    assert len(lines) == 3
    assert lines[2][0].style is not None
    assert str(lines[2][0].style) == "#ffffff on #000000"


def test_characters_are_as_bright_as_pixels() -> None:
    image = np.linspace(0, 255, 25).astype(np.uint8).reshape(5, 5)
    picture = picture_for(image, spec_of(image))
    assert picture is not None
    lines = text(picture, 10, 5, Ink.CHARACTERS)
    assert lines[0][:2] == "  "
    assert lines[4][-2:] == "@@"
    assert [part.style for line in picture.lines(10, 5, Ink.CHARACTERS) for part in line] == [
        None
    ] * 25


@pytest.mark.parametrize(("width", "height"), [(0, 0), (1, 5), (5, 0), (-3, 4)])
def test_without_room_nothing_is_drawn(width: int, height: int) -> None:
    image = np.zeros((50, 50, 3), np.uint8)
    picture = picture_for(image, spec_of(image))
    assert picture is not None
    assert picture.lines(width, height, Ink.HALF_BLOCKS) == []


@pytest.mark.parametrize("ink", Ink)
@pytest.mark.parametrize("shape", [(2, 2), (3, 500, 3), (500, 3, 3), (7, 5)])
def test_every_size_fits_where_it_is_to_go(shape: tuple[int, ...], ink: Ink) -> None:
    image = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    picture = picture_for(image, spec_of(image))
    assert picture is not None
    for width in (2, 3, 10, 77):
        for height in (1, 2, 9, 40):
            lines = text(picture, width, height, ink)
            assert len(lines) <= height
            assert {len(line) for line in lines} <= {len(lines[0])}
            assert len(lines[0]) <= width


def test_the_best_ink_a_terminal_has() -> None:
    def console(**options: Any) -> rich.console.Console:
        file = io.TextIOWrapper(io.BytesIO(), options.pop("encoding", "utf-8"))
        return rich.console.Console(file=file, **options)

    colour = {"force_terminal": True, "color_system": "256"}
    assert ink_for(console(**colour)) is Ink.HALF_BLOCKS
    assert ink_for(console(encoding="latin-1", **colour)) is Ink.BACKGROUNDS
    assert ink_for(console(no_color=True, **colour)) is Ink.CHARACTERS
    assert ink_for(console(color_system=None)) is Ink.CHARACTERS


def test_large_frames_are_soon_drawn() -> None:
    frame = np.random.default_rng(0).integers(256, size=(1080, 1920, 3), dtype=np.uint8)
    spec = spec_of(frame)
    started = time.process_time()
    for _ in range(3):
        picture = picture_for(frame, spec)
        assert picture is not None
        picture.lines(160, 45, Ink.HALF_BLOCKS)
    assert (time.process_time() - started) / 3 < 1.0
