"""Small plots as SVG, for vectors and for rewards over time."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dm_env_rpc_client.displays import markup

__all__ = ["bars", "line", "number"]

_COLOURS = ("#3b7dd8", "#d8743b", "#3ba55c", "#a04fc4", "#c43b52", "#3bb3b8", "#8a8a3b", "#777777")
_TITLE = 18
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 6, 6, 6

MAX_BARS = 64
"""The maximum number of elements that are drawn as bars."""


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
    """
    array = np.asarray(values)
    series = [_as_floats(each) for each in (array.T if array.ndim == 2 else [array])]
    frame = _Frame(np.concatenate(series), width, height - (_TITLE if title else 0))
    marks = [
        _polyline(each, frame, _COLOURS[index % len(_COLOURS)], dots)
        for index, each in enumerate(series)
    ]
    return frame.svg("".join(marks), title or f"{len(array)} values", titled=bool(title))


def _polyline(array: npt.NDArray[np.float64], frame: _Frame, colour: str, dots: bool) -> str:
    columns = int(frame.inner_width)
    drawn = array
    xs = (np.arange(len(array)) + 0.5) * frame.inner_width / max(len(array), 1)
    if len(array) > 2 * columns:
        edges = np.linspace(0, len(array), columns + 1).astype(int)
        parts = [array[a:b] for a, b in itertools.pairwise(edges)]
        drawn = np.array([extreme for part in parts for extreme in _extremes(part)])
        xs = np.repeat(np.arange(columns) + 0.5, 2)
    runs: list[list[tuple[float, float]]] = [[]]
    for x, value in zip(xs, drawn, strict=True):
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
    ):
        finite = array[np.isfinite(array)]
        self.low = float(finite.min()) if finite.size else 0.0
        self.high = float(finite.max()) if finite.size else 0.0
        if include_zero:
            self.low, self.high = min(self.low, 0.0), max(self.high, 0.0)
        self._width = width
        self._height = height
        self.inner_width = width - _LEFT - _RIGHT
        self._ticks = sorted({self.low, self.high})
        if self.low == self.high:
            margin = abs(self.low) or 1.0
            self.low, self.high = self.low - margin, self.high + margin
        # A tick at zero, if it does not overlap the others.
        elif _TOP + 10 < self.y(0.0) < height - _BOTTOM - 10:
            self._ticks.append(0.0)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return _TOP + (1 - share) * (self._height - _TOP - _BOTTOM)

    def svg(self, marks: str, label: str, titled: bool = False) -> str:
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
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self._width}" '
            f'height="{self._height + shift}" role="img" aria-label="{markup.escape(label, 80)}" '
            'style="display:block">'
            f'{title}<g transform="translate(0,{shift})">{lines}'
            f'<g fill="currentColor" fill-opacity="0.75" font-size="10" '
            f'font-family="sans-serif">{texts}</g>{marks}</g></svg>'
        )
