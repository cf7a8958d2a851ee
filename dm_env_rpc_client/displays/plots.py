"""Small plots as SVG, for vectors and for rewards over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.displays import markup

__all__ = ["Axis", "bars", "line", "number"]

_COLOURS = ("#3b7dd8", "#d8743b", "#3ba55c", "#a04fc4", "#c43b52", "#3bb3b8", "#8a8a3b", "#777777")
_TITLE = 18
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 6, 6, 6
_AXIS = 32
"""The margin below a plot with an axis."""

_LEAST_GAP = 4
"""Boundaries that would be closer, in pixels, are not drawn."""

_SMALL_TEXT = '<g fill="currentColor" fill-opacity="0.75" font-size="10" font-family="sans-serif">'

MAX_BARS = 64
"""The maximum number of elements that are drawn as bars."""


class Axis(NamedTuple):
    """What is along a plot.

    Attributes:
      label: what is counted, such as "step".
      values: what the values are, for the legend.
      first: the number of the first value.
      boundaries: the indices of values before which an episode begins; the line ends there.
    """

    label: str
    values: str
    first: int = 1
    boundaries: Sequence[int] = ()


def number(value: Any, digits: int = 6) -> str:
    """Returns a number as text with at most `digits` significant digits, without trailing zeros."""
    kind = np.asarray(value).dtype.kind
    if kind == "b":
        return str(bool(value))
    return str(int(value)) if kind in "iu" else format(float(value), f".{digits}g")


def bars(values: npt.ArrayLike, width: int = 260, height: int = 64) -> str:
    """Returns a plot with a bar from zero for each element of a vector.

    Args:
      values: real numbers [N]. Numbers that are not finite have no bar.
      width: the width of the plot in pixels.
      height: the height of the plot in pixels.
    """
    array = _as_floats(values)
    frame = _Frame(array, width, height, include_zero=True)
    step = frame.inner_width / max(len(array), 1)
    marks = []
    for index, value in enumerate(array):
        if math.isfinite(value):
            top, bottom = sorted((frame.y(value), frame.y(0.0)))
            marks.append(
                f'<rect x="{_LEFT + index * step:.1f}" y="{top:.1f}" '
                f'width="{max(step * 0.8, 0.5):.1f}" height="{max(bottom - top, 1):.1f}"/>'
            )
    return frame.svg(f'<g fill="{_COLOURS[0]}">{"".join(marks)}</g>', f"{len(array)} values")


def line(
    values: npt.ArrayLike,
    width: int = 260,
    height: int = 64,
    *,
    title: str = "",
    dots: bool = False,
    axis: Axis | None = None,
) -> str:
    """Returns a plot of numbers in order.

    If there are more numbers than pixels, each column of pixels shows the minimum and maximum.

    Args:
      values: real numbers [N], or [N, K] for several lines. Numbers that are not finite are
        gaps in the lines.
      width: the width of the plot in pixels.
      height: the height of the plot in pixels, with the title.
      title: a text above the plot.
      dots: mark each value with a dot if there is enough space.
      axis: what is along the plot. A plot with an axis fills the width of its container.
    """
    array = np.asarray(values)
    series = [_as_floats(each) for each in (array.T if array.ndim == 2 else [array])]
    bottom = _BOTTOM if axis is None else _AXIS
    frame = _Frame(np.concatenate(series), width, height - (_TITLE if title else 0), bottom=bottom)
    marks = [] if axis is None else [_along(axis, len(array), frame)]
    breaks = frozenset(axis.boundaries if axis is not None else ())
    marks += [
        _polyline(each, frame, _COLOURS[index % len(_COLOURS)], dots, breaks)
        for index, each in enumerate(series)
    ]
    legend = "" if axis is None else _legend(axis, width)
    return frame.svg(
        "".join(marks), title or f"{len(array)} values", legend, bool(title), axis is not None
    )


def _along(axis: Axis, count: int, frame: _Frame) -> str:
    """Returns the ticks of an axis, its label and its boundaries."""
    step = frame.inner_width / max(count, 1)
    middle, bottom = _LEFT + frame.inner_width / 2, frame.bottom
    ends = f'x1="{_LEFT}" x2="{_LEFT + frame.inner_width}" y1="{bottom}" y2="{bottom}"'
    marks = [f'<line {ends} stroke="currentColor" stroke-opacity="0.5"/>']
    if step * count > _LEAST_GAP * len(axis.boundaries):
        for index in axis.boundaries:
            x = f"{_LEFT + index * step:.1f}"
            marks.append(
                f'<line class="boundary" x1="{x}" x2="{x}" y1="{_TOP}" y2="{bottom}" '
                'stroke="currentColor" stroke-opacity="0.45" stroke-dasharray="3,3"/>'
            )
    texts = [
        f'<text x="{_LEFT + (number - axis.first + 0.5) * step:.1f}" y="{bottom + 12}" '
        f'text-anchor="middle">{number}</text>'
        for number in _ticks(axis.first, axis.first + count - 1)
    ]
    texts.append(
        f'<text x="{middle:.1f}" y="{bottom + 24}" text-anchor="middle">'
        f"{markup.escape(axis.label, 80)}</text>"
    )
    return f"{''.join(marks)}{_SMALL_TEXT}{''.join(texts)}</g>"


def _ticks(first: int, last: int) -> list[int]:
    """Returns up to seven round numbers."""
    if last < first:
        return []
    rough = max(1, (last - first) / 6)
    power = 10 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    return list(range(-(-first // step) * step, last + 1, step))


def _legend(axis: Axis, width: int) -> str:
    parts = [f'<tspan fill="{_COLOURS[0]}">●</tspan> {markup.escape(axis.values, 80)}']
    if axis.boundaries:
        parts.append("┆ new episode")
    return (
        f'<text x="{width - _RIGHT}" y="12" text-anchor="end" font-size="10" fill="currentColor" '
        f'fill-opacity="0.75" font-family="sans-serif">{" &#160; ".join(parts)}</text>'
    )


def _polyline(
    array: npt.NDArray[np.float64],
    frame: _Frame,
    colour: str,
    dots: bool,
    breaks: Collection[int],
) -> str:
    columns = int(frame.inner_width)
    drawn = array
    xs = (np.arange(len(array)) + 0.5) * frame.inner_width / max(len(array), 1)
    if len(array) > 2 * columns:
        edges = np.linspace(0, len(array), columns + 1).astype(int)
        parts = [array[a:b] for a, b in itertools.pairwise(edges)]
        drawn = np.array([extreme for part in parts for extreme in _extremes(part)])
        xs = np.repeat(np.arange(columns) + 0.5, 2)
        breaks = ()
    runs: list[list[tuple[float, float]]] = [[]]
    for index, (x, value) in enumerate(zip(xs, drawn, strict=True)):
        if index in breaks and runs[-1]:
            runs.append([])
        if math.isfinite(value):
            runs[-1].append((_LEFT + x, frame.y(value)))
        elif runs[-1]:
            runs.append([])
    marks = []
    for run in runs:
        if len(run) > 1:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            marks.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            )
        if len(run) == 1 or (dots and len(array) <= columns / 6):
            marks += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in run
            ]
    return "".join(marks)


def _as_floats(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = np.ravel(np.asarray(values)).astype(np.float64)
    # Differences of larger numbers overflow.
    array[np.abs(array) > 1e300] = np.nan
    return array


def _extremes(part: npt.NDArray[np.float64]) -> tuple[float, float]:
    finite = part[np.isfinite(part)]
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)


class _Frame:
    """The axes: maps a range of values to pixels."""

    def __init__(
        self,
        array: npt.NDArray[np.float64],
        width: int,
        height: int,
        include_zero: bool = False,
        bottom: int = _BOTTOM,
    ):
        finite = array[np.isfinite(array)]
        self.low = float(finite.min()) if finite.size else 0.0
        self.high = float(finite.max()) if finite.size else 0.0
        if include_zero:
            self.low, self.high = min(self.low, 0.0), max(self.high, 0.0)
        self._width = width
        self._height = height
        self.bottom = height - bottom
        self.inner_width = width - _LEFT - _RIGHT
        self._ticks = sorted({self.low, self.high})
        if self.low == self.high:
            margin = abs(self.low) or 1.0
            self.low, self.high = self.low - margin, self.high + margin
        # A tick at zero, if it does not overlap the others.
        elif _TOP + 10 < self.y(0.0) < self.bottom - 10:
            self._ticks.append(0.0)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _TOP + (1 - share) * (self.bottom - _TOP)

    def svg(
        self, marks: str, label: str, legend: str = "", titled: bool = False, fills: bool = False
    ) -> str:
        shift = _TITLE if titled else 0
        lines = "".join(
            f'<line x1="{_LEFT}" x2="{self._width - _RIGHT}" y1="{self.y(tick):.1f}" '
            f'y2="{self.y(tick):.1f}" stroke="currentColor" stroke-opacity="0.2"/>'
            for tick in self._ticks
        )
        texts = "".join(
            f'<text x="{_LEFT - 5}" y="{self.y(tick) + 3.5:.1f}" text-anchor="end">'
            f"{format(tick, '.3g')}</text>"
            for tick in self._ticks
        )
        title = (
            f'<text x="{_LEFT}" y="12" font-weight="600" font-size="12">'
            f"{markup.escape(label, 80)}</text>"
            if titled
            else ""
        )
        height = self._height + shift
        size = f'width="{self._width}" height="{height}"'
        if fills:
            size = f'width="100%" viewBox="0 0 {self._width} {height}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" '
            f'aria-label="{markup.escape(label, 80)}" style="display:block">'
            f'{title}{legend}<g transform="translate(0,{shift})">{lines}'
            f"{_SMALL_TEXT}{texts}</g>{marks}</g></svg>"
        )
