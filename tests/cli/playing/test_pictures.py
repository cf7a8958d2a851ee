"""Arrays as characters: what is drawn, how large and with what."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from rich.console import Console
from rich.segment import Segment

from dm_env_rpc_client.cli.playing.blocks import Drawing
from dm_env_rpc_client.cli.playing.pictures import Picture, picture_for


def spec_of(value: Any, **bounds: Any) -> specs.Array:
    array = np.asarray(value)
    if bounds:
        return specs.BoundedArray(array.shape, array.dtype, **bounds)
    return specs.Array(array.shape, array.dtype)


def draw(picture: Picture, width: int, height: int) -> list[list[Segment]]:
    console = Console(width=width, height=height, color_system="truecolor", legacy_windows=False)
    options = console.options.update(width=width, height=height)
    return list(Segment.split_lines(Drawing(picture).__rich_console__(console, options)))  # type: ignore[arg-type]


def text(picture: Picture, width: int, height: int) -> list[str]:
    return ["".join(part.text for part in line) for line in draw(picture, width, height)]


@pytest.mark.parametrize(
    "value",
    [
        np.float32(1),
        np.zeros(5),
        np.zeros((0, 3)),
        np.zeros((1, 8), np.uint8),
        np.zeros((2, 3, 4, 5)),
        np.zeros((80, 80, 17), np.uint8),
        np.array(["a"], object),
        np.zeros((3, 3), np.complex64),
    ],
)
def test_what_is_no_picture(value: Any) -> None:
    assert picture_for(value, spec_of(value)) is None


def picture_of(value: Any, **bounds: Any) -> Picture:
    picture = picture_for(value, spec_of(value, **bounds))
    assert picture is not None
    return picture


def test_small_boards_are_cells_with_their_numbers() -> None:
    picture = picture_of(np.array([[0, 1, 2], [3, 0, 1]]))
    assert text(picture, 6, 2) == ["  1 2 ", "3   1 "]
    large = text(picture, 100, 100)
    assert (len(large), len(large[0])) == (6, 18)
    colours = {str(part.style) for line in draw(picture, 6, 2) for part in line}
    assert len(colours) == 4


def test_boards_below_zero_beyond_the_palette_and_of_bools() -> None:
    board = np.array([[-1, 0], [1, 5]], np.int8)
    assert text(picture_of(board, minimum=-1, maximum=10), 4, 2) == ["-1  ", "1 5 "]
    high = picture_of(np.array([[100, 101], [102, 103]], np.int32))
    assert high.pieces is not None
    assert len({tuple(pixel) for pixel in high.pixels.reshape(-1, 3).tolist()}) == 4
    assert text(picture_of(np.eye(2, dtype=bool)), 4, 2) == ["1   ", "  1 "]


def test_a_board_without_room_is_an_image() -> None:
    picture = picture_of(np.tile(np.array([0, 1]), (40, 20)))
    assert text(picture, 40, 20) != text(picture, 80, 40)
    assert {len(line) for line in text(picture, 20, 10)} == {20}


def test_images_are_magnified_by_even_numbers() -> None:
    lines = text(picture_of(np.zeros((4, 3, 3), np.uint8)), 20, 11)
    assert (len(lines), len(lines[0])) == (8, 12)
    assert len(text(picture_of(np.zeros((4, 3, 3), np.uint8)), 20, 3)) == 2


@pytest.mark.parametrize("height", range(5, 24))
def test_magnified_pixels_fill_whole_characters_without_glyphs(height: int) -> None:
    image = np.random.default_rng(1).integers(256, size=(5, 4, 3), dtype=np.uint8)
    assert set("".join(text(picture_of(image), 80, height))) == {" "}
    drawn = [part for line in draw(picture_of(image), 80, height) for part in line]
    assert len({str(part.style) for part in drawn}) == 20


def test_images_are_reduced_to_their_means() -> None:
    image = np.zeros((100, 200, 3), np.uint8)
    image[:50] = 200
    image[::2, :, 1] = 0
    lines = draw(picture_of(image), 20, 10)
    assert (len(lines), len(lines[0])) == (5, 20)
    assert str(lines[0][0].style) == "#c864c8 on #c864c8"


def test_an_odd_number_of_rows_ends_in_black() -> None:
    lines = draw(picture_of(np.full((5, 5, 3), 255, np.uint8)), 5, 3)
    assert len(lines) == 3
    assert str(lines[2][0].style) == "#ffffff on #000000"


@pytest.mark.parametrize("glyph", "▀▌▚▘▛▜▙")
def test_a_character_shows_two_by_two_pixels(glyph: str) -> None:
    """Twice as many columns of pixels as of characters, where no more than two colours meet."""
    corners = {"▀": "1100", "▌": "1010", "▚": "1001", "▘": "1000",
               "▛": "1110", "▜": "1101", "▙": "1011"}[glyph]  # fmt: skip
    cell = np.array([int(bit) for bit in corners], np.uint8).reshape(2, 2) * 255
    # A pixel that is half as wide as it is high comes from two columns of an image.
    image = np.tile(cell.repeat(4, axis=0).repeat(2, axis=1), (5, 10))[:, :, None].repeat(3, axis=2)
    lines = draw(picture_of(image), 10, 5)
    assert {part.text for line in lines for part in line} == {glyph}
    assert {str(part.style) for line in lines for part in line} == {"#ffffff on #000000"}


@pytest.mark.parametrize(("width", "height"), [(0, 0), (0, 5), (5, 0), (-3, 4)])
def test_without_room_nothing_is_drawn(width: int, height: int) -> None:
    assert draw(picture_of(np.zeros((50, 50, 3), np.uint8)), width, height) == []


@pytest.mark.parametrize("shape", [(3, 4), (3, 500, 3), (500, 3, 3), (7, 5)])
def test_every_size_fits_where_it_is_to_go(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
    for width in (1, 2, 3, 10, 77):
        for height in (1, 2, 9, 40):
            lines = text(picture_of(image), width, height)
            assert 0 < len(lines) <= height
            assert {len(line) for line in lines} == {len(lines[0])}
            assert len(lines[0]) <= width


def test_large_frames_are_soon_drawn() -> None:
    frame = np.random.default_rng(0).integers(256, size=(1080, 1920, 3), dtype=np.uint8)
    started = time.process_time()
    for _ in range(3):
        draw(picture_of(frame), 160, 45)
    assert (time.process_time() - started) / 3 < 0.5
