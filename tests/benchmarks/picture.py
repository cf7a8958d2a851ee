"""The results as bar charts, for the guide to performance."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.benchmarks.results import Row, Section
from tests.benchmarks.steppers import (
    BARE_CPP,
    BARE_GRPCIO,
    PLAIN_TCP,
    REFERENCE,
    our_name,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BYTES = 150_000
_DPI = 100
_PALETTE = 64
_WIDTH = 10.0
_ROW_HEIGHT = 1.45
_HEADER_HEIGHT = 0.3
_TITLE_PAD = 18
_COLOURS = {
    REFERENCE: "#9aa0a6",
    f"{REFERENCE}, waiting": "#9aa0a6",
    BARE_GRPCIO: "#d7dade",
    our_name("grpc"): "#8ab4f8",
    our_name("http2"): "#1a73e8",
    BARE_CPP: "#f4b400",
    PLAIN_TCP: "#e8d5a3",
}


def draw(sections: Sequence[Section], path: Path) -> None:
    """Writes a picture of the sections that step.

    Args:
      sections: of which "waiting" and "pipelined" are drawn.
      path: of the PNG.

    Raises:
      ValueError: neither was measured, or the PNG is larger than MAX_BYTES.
    """
    import PIL.Image
    from matplotlib import pyplot

    drawn = figure(sections)
    buffer = io.BytesIO()
    drawn.savefig(buffer, dpi=_DPI)
    pyplot.close(drawn)
    # A few flat colours and the edges of letters: a palette is a third of the bytes.
    PIL.Image.open(buffer).convert("RGB").quantize(_PALETTE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"the picture has {size} bytes; a page takes {MAX_BYTES}")


def figure(sections: Sequence[Section]) -> Figure:
    """Returns the figure: a column for each section, a chart with its own scale for each payload.

    Args:
      sections: of which "waiting" and "pipelined" are drawn.

    Raises:
      ValueError: neither was measured.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    drawn = [section for section in sections if section.name in ("waiting", "pipelined")]
    if not drawn:
        raise ValueError("only the sections waiting and pipelined can be drawn")
    rows = max(len(section.rows) for section in drawn)
    whole, axes = pyplot.subplots(
        rows,
        len(drawn),
        figsize=(_WIDTH, _ROW_HEIGHT * rows + _HEADER_HEIGHT),
        layout="constrained",
        squeeze=False,
    )
    for column, section in zip(axes.T, drawn, strict=True):
        column[0].set_title(
            f"{section.title}\nmicroseconds per step, less is better",
            fontsize=10,
            loc="left",
            pad=_TITLE_PAD,
        )
        for axis, row in zip(column, section.rows, strict=False):
            _draw_row(axis, row, section.scale)
        for axis in column[len(section.rows) :]:
            axis.set_visible(False)
    return whole


def _draw_row(axis: Axes, row: Row, scale: float) -> None:
    names = [name for name in _COLOURS if name in row.samples]
    medians = [row.samples[name].median * scale for name in names]
    bars = axis.barh(names, medians, 0.8, color=[_COLOURS[name] for name in names])
    axis.bar_label(bars, [_label(median) for median in medians], fontsize=7, padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_xticks([])
    axis.tick_params("y", length=0, labelsize=7)
    axis.spines[["top", "right", "bottom"]].set_visible(False)
    axis.annotate(
        row.name,
        (0, 1),
        (0, 2),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8,
        fontweight="bold",
    )


def _label(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"
