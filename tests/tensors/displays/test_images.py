"""Pictures and plots of values."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import pytest

from dm_env_rpc_client.tensors.displays import images, plots


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


SVG = "{http://www.w3.org/2000/svg}"


def parse(svg: str) -> ElementTree.Element:
    assert "nan" not in svg
    assert "inf" not in svg
    return ElementTree.fromstring(svg)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"),
        (np.int64(2**63 - 1), "9223372036854775807"),
        (0.1, "0.1"),
        (np.float32(0.1), "0.1"),
        (1e30, "1e+30"),
        (np.True_, "True"),
        (float("nan"), "nan"),
    ],
)
def test_numbers_are_written_as_people_write_them(value: Any, text: str) -> None:
    assert plots.number(value) == text


def test_each_element_has_a_bar_in_proportion_to_it() -> None:
    rects = list(parse(plots.bars([1.0, -2.0, 4.0])).iter(f"{SVG}rect"))
    heights = [float(rect.attrib["height"]) for rect in rects]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert heights[2] == pytest.approx(4 * heights[0], abs=0.3)
    tops = [float(rect.attrib["y"]) for rect in rects]
    zero = tops[0] + heights[0]
    assert tops[1] == pytest.approx(zero, abs=0.2)
    assert tops[2] + heights[2] == pytest.approx(zero, abs=0.2)


def test_what_is_not_finite_has_no_bar() -> None:
    rects = parse(plots.bars([1.0, np.nan, np.inf, -np.inf, 2.0])).iter(f"{SVG}rect")
    assert len(list(rects)) == 2


def points(svg: str) -> list[list[tuple[float, float]]]:
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in each.attrib["points"].split())]
        for each in parse(svg).iter(f"{SVG}polyline")
    ]


def test_a_line_goes_through_all_values_and_upwards_is_more() -> None:
    (line,) = points(plots.line([0.0, 1.0, 0.5]))
    assert len(line) == 3
    xs, ys = zip(*line, strict=True)
    assert list(xs) == sorted(xs)
    assert ys[1] < ys[2] < ys[0]


def test_a_line_has_gaps_where_values_are_not_finite() -> None:
    assert [len(line) for line in points(plots.line([1, 2, np.nan, 3, 4, 5]))] == [2, 3]


def test_several_lines_share_their_axes_and_differ_in_colour() -> None:
    svg = plots.line(np.array([[0.0, 10.0], [1.0, 20.0], [2.0, 30.0]]))
    low, high = points(svg)
    assert len(low) == len(high) == 3
    assert max(y for _, y in high) < min(y for _, y in low)
    assert len(set(re.findall(r'stroke="(#[^"]*)"', svg))) == 2


def test_a_value_alone_is_a_dot() -> None:
    svg = parse(plots.line([3.0]))
    assert len(list(svg.iter(f"{SVG}circle"))) == 1
    assert list(svg.iter(f"{SVG}polyline")) == []


def test_a_very_long_line_keeps_its_spikes_and_stays_small() -> None:
    values = np.zeros(1_000_000)
    values[567_890] = 1.0
    svg = plots.line(values)
    (line,) = points(svg)
    assert len(svg) < 20_000
    lows, highs = max(y for _, y in line), min(y for _, y in line)
    assert lows - highs > 40
    assert sum(y == highs for _, y in line) == 1


@pytest.mark.parametrize("values", [[], [np.nan], [0.0, 0.0], [1e308, -1e308], [True, False]])
def test_odd_values_are_a_valid_plot(values: list[Any]) -> None:
    parse(plots.line(values))
    parse(plots.bars(values))


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([-1.5, 2.5], ["-1.5", "2.5", "0"]),
        ([0, 5, 2], ["0", "5"]),
        ([7, 7], ["7"]),
        ([-0.01, 5], ["-0.01", "5"]),
    ],
)
def test_the_axis_names_the_lowest_and_the_highest_value(
    values: list[float], ticks: list[str]
) -> None:
    assert [text.text for text in parse(plots.line(values)).iter(f"{SVG}text")] == ticks


def test_an_axis_counts_names_and_marks_where_episodes_begin() -> None:
    axis = plots.Axis("step", "reward", first=98, boundaries=[3, 10])
    svg = plots.line(np.arange(20.0), title="Reward per step", axis=axis)
    tree = parse(svg)
    texts = ["".join(text.itertext()) for text in tree.iter(f"{SVG}text")]
    for part in ("Reward per step", "step", "100", "105", "115"):
        assert part in texts
    assert any("reward" in text and "new episode" in text for text in texts)
    begins = [each for each in tree.iter(f"{SVG}line") if each.get("class") == "boundary"]
    lines = points(svg)
    assert [len(each) for each in lines] == [3, 7, 10], "no line from one episode to the next"
    line = [point for each in lines for point in each]
    for boundary, index in zip(begins, axis.boundaries, strict=True):
        assert line[index - 1][0] < float(boundary.attrib["x1"]) < line[index][0]
    assert tree.attrib["width"] == "100%"


def test_episodes_that_are_too_short_to_tell_apart_are_not_marked() -> None:
    axis = plots.Axis("step", "reward", boundaries=range(1, 200))
    assert "boundary" not in plots.line(np.zeros(200), axis=axis)


@pytest.mark.parametrize(("count", "ticks"), [(0, []), (1, [1]), (3, [1, 2, 3]), (7, None)])
def test_an_axis_has_round_numbers(count: int, ticks: list[int] | None) -> None:
    tree = parse(plots.line(np.zeros(count), axis=plots.Axis("x", "y")))
    texts = [text.text for text in tree.iter(f"{SVG}text") if text.get("text-anchor") == "middle"]
    expected = list(range(1, count + 1)) if ticks is None else ticks
    assert texts[:-1] == [str(number) for number in expected]
