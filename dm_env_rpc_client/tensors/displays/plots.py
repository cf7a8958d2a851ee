"""Small SVG plots of vectors and of rewards over time.

This module uses no plotting library, because an explorer draws two plots up to twenty times a
second and matplotlib takes 75 ms for one plot.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.tensors.displays import markup

_COLOURS = ("#3b7dd8", "#d8743b", "#3ba55c", "#a04fc4", "#c43b52", "#3bb3b8", "#8a8a3b", "#777777")
_TITLE = 18
_LEFT, _MARGIN = 52, 6
_AXIS = 32
"""The margin below a plot with an axis, in pixels."""

_LEAST_GAP = 4
"""The minimum distance between boundaries, in pixels. Boundaries that are closer together are not
drawn. Dots are drawn only if they are at least twice this distance apart."""

MAX_BARS = 64
"""The maximum number of elements drawn as bars."""

Floats = npt.NDArray[np.float64]


class Axis(NamedTuple):
    """The axis of a plot.

    Attributes:
      label: the unit that the axis counts, such as "step".
      values: the name of the values, for the legend.
      first: the number of the first value.
      boundaries: the index of the first value of each new episode. The line is interrupted before
        these values.
    """

    label: str
    values: str
    first: int = 1
    boundaries: Sequence[int] = ()


def number(value: Any, digits: int = 6) -> str:
    """Format a number with at most `digits` significant digits and without trailing zeros."""
    kind = np.asarray(value).dtype.kind
    if kind == "b":
        return str(bool(value))
    return str(int(value)) if kind in "iu" else format(float(value), f".{digits}g")


def bars(values: npt.ArrayLike, width: int = 260, height: int = 64) -> str:
    """Return a plot with one bar, which starts at zero, for each element of a vector.

    Args:
      values: real numbers [N]. No bar is drawn for a number that is not finite.
      width: the width of the plot in pixels.
      height: the height of the plot in pixels.
    """
    array = _as_floats(values)
    frame = _Frame(np.append(array, 0.0), len(array), width, height)
    zero = float(frame.y(0.0))
    rects = [
        f'<rect x="{x - 0.4 * frame.step:.1f}" y="{min(y, zero):.1f}" '
        f'width="{max(0.8 * frame.step, 0.5):.1f}" height="{max(abs(zero - y), 1):.1f}"/>'
        for x, y in zip(frame.x(np.arange(len(array))), frame.y(array), strict=True)
        if math.isfinite(y)
    ]
    return frame.svg(f'<g fill="{_COLOURS[0]}">{"".join(rects)}</g>', f"{len(array)} values")


def line(
    values: npt.ArrayLike,
    width: int = 260,
    height: int = 64,
    *,
    title: str = "",
    axis: Axis | None = None,
) -> str:
    """Return a line plot of a sequence of numbers.

    If there are more numbers than pixels, each column of pixels shows the minimum and maximum.

    Args:
      values: real numbers [N], or [N, K] for several lines. Numbers that are not finite leave gaps
        in the lines.
      width: the width of the plot in pixels.
      height: the height of the plot in pixels, including the title.
      title: a text above the plot.
      axis: the horizontal axis. A plot with an axis fills the width of its container.
    """
    array = np.asarray(values)
    series = [_as_floats(each) for each in (array.T if array.ndim == 2 else [array])]
    frame = _Frame(np.concatenate(series), len(array), width, height, bool(title), axis is not None)
    marks = "" if axis is None else _along(axis, frame)
    breaks = () if axis is None else axis.boundaries
    for index, each in enumerate(series):
        marks += _polyline(each, frame, _COLOURS[index % len(_COLOURS)], breaks)
    if title:
        marks += _text(_LEFT, 12, title, "start", 'font-weight="600" font-size="12"')
    return frame.svg(marks, title or f"{len(array)} values")


class _Frame:
    """The mapping of values to positions in a plot, within its margins."""

    def __init__(
        self,
        values: Floats,
        count: int,
        width: int,
        height: int,
        has_title: bool = False,
        has_axis: bool = False,
    ):
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        self._ticks = sorted({low, high})
        if low == high:
            margin = abs(low) or 1.0
            low, high = low - margin, high + margin
        self._range = low, high
        self._size = width, height
        self._fills = has_axis
        self.top = _MARGIN + _TITLE * has_title
        self.bottom = height - (_AXIS if has_axis else _MARGIN)
        self.right = width - _MARGIN
        self.step = (self.right - _LEFT) / max(count, 1)
        self.count = count
        # A tick at zero, unless it would overlap the others.
        if self.top + 10 < self.y(0.0) < self.bottom - 10:
            self._ticks.append(0.0)

    def x(self, indices: Any) -> Any:
        return _LEFT + (indices + 0.5) * self.step

    def y(self, values: Any) -> Any:
        low, high = self._range
        return self.bottom - (values - low) / (high - low) * (self.bottom - self.top)

    def svg(self, marks: str, label: str) -> str:
        for tick in dict.fromkeys(self._ticks):
            y = float(self.y(tick))
            marks += _rule(_LEFT, self.right, y, y, 'stroke-opacity="0.2"')
            marks += _text(_LEFT - 5, y + 3.5, format(tick, ".3g"), "end")
        width, height = self._size
        shown = "100%" if self._fills else width
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{shown}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-label="{markup.escape(label, 80)}" '
            'style="display:block" fill="currentColor" stroke="none" font-size="10" '
            f'font-family="sans-serif">{marks}</svg>'
        )


def _along(axis: Axis, frame: _Frame) -> str:
    """Return an axis with its ticks, its label, the boundaries and the legend above the plot."""
    top, bottom = frame.top, frame.bottom
    marks = _rule(_LEFT, frame.right, bottom, bottom, 'stroke-opacity="0.5"')
    if frame.right - _LEFT > _LEAST_GAP * len(axis.boundaries):
        style = 'class="boundary" stroke-opacity="0.45" stroke-dasharray="3,3"'
        for index in axis.boundaries:
            x = frame.x(index - 0.5)
            marks += _rule(x, x, top, bottom, style)
    for number in _round_numbers(axis.first, axis.first + frame.count - 1):
        marks += _text(frame.x(number - axis.first), bottom + 12, str(number))
    marks += _text((_LEFT + frame.right) / 2, bottom + 24, axis.label)
    legend = f"● {axis.values}" + ("  ┆ new episode" if axis.boundaries else "")
    return marks + _text(frame.right, 12, legend, "end", f'fill="{_COLOURS[0]}"')


def _round_numbers(first: int, last: int) -> Sequence[int]:
    """Return up to seven round numbers in a range."""
    rough = max(1, (last - first) / 6)
    power = 10 ** math.floor(math.log10(rough))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    return range(-(-first // step) * step, last + 1, step)


def _polyline(array: Floats, frame: _Frame, colour: str, breaks: Sequence[int]) -> str:
    columns = int(frame.right - _LEFT)
    xs = frame.x(np.arange(len(array)))
    if len(array) > 2 * columns:
        parts = np.array_split(array, columns)
        array = np.array([extreme for part in parts for extreme in _extremes(part)])
        xs, breaks = np.repeat(np.arange(columns) + 0.5 + _LEFT, 2), ()
    marks = []
    missing = np.flatnonzero(~np.isfinite(array))
    starts = sorted({0, *breaks, *missing.tolist(), *(missing + 1).tolist(), len(array)})
    has_dots = len(array) * 2 * _LEAST_GAP <= columns
    for start, end in itertools.pairwise(starts):
        run = list(zip(xs[start:end], frame.y(array[start:end]), strict=True))
        if not np.isfinite(array[start]):
            continue
        if len(run) > 1:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in run)
            marks.append(
                f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
            )
        if len(run) == 1 or has_dots:
            marks += [
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in run
            ]
    return "".join(marks)


def _as_floats(values: npt.ArrayLike) -> Floats:
    array = np.ravel(np.asarray(values)).astype(np.float64)
    # Differences of larger numbers would overflow.
    array[np.abs(array) > 1e300] = np.nan
    return array


def _extremes(part: Floats) -> tuple[float, float]:
    finite = part[np.isfinite(part)]
    return (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)


def _rule(x1: float, x2: float, y1: float, y2: float, style: str) -> str:
    ends = f'x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="currentColor" {style}/>'


def _text(x: float, y: float, text: str, anchor: str = "middle", style: str = "") -> str:
    style = style or 'fill-opacity="0.75"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place} {style}>{markup.escape(text, 80)}</text>"
