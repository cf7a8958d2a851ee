from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client.tensors.displays import plots

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
