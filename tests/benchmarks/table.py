"""The results as text."""

from __future__ import annotations

from collections.abc import Iterable

from tests.benchmarks.results import Section
from tests.benchmarks.rounds import Sample


def text(sections: Iterable[Section]) -> str:
    """Returns the table: medians, with their 10th and 90th percentiles."""
    return "\n\n".join(_section(section) for section in sections)


def _section(section: Section) -> str:
    names = list(dict.fromkeys(name for row in section.rows for name in row.samples))
    cells = [["", *(row.name for row in section.rows)]]
    cells += [
        [name, *(_cell(row.samples.get(name), section) for row in section.rows)] for name in names
    ]
    # Contenders down, or across, whichever is narrower.
    if len(section.rows) > len(names):
        cells = [list(column) for column in zip(*cells, strict=True)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"{section.title} ({section.unit}: median, p10-p90)"]
    for row in cells:
        first, *rest = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append("  ".join([first, *rest]).rstrip())
    lines.extend(f"  {target}" for target in section.targets)
    return "\n".join(lines)


def _cell(sample: Sample | None, section: Section) -> str:
    if sample is None:
        return ""
    scaled = sample.scaled(section.scale)
    low, median, high = map(_number, (scaled.low, scaled.median, scaled.high))
    return median if low == high else f"{median} ({low}-{high})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
