"""The results as a bar chart, for README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.results import Section
from tests.benchmarks.steppers import (
    BARE_CPP,
    BARE_GRPCIO,
    PLAIN_TCP,
    REFERENCE,
    our_name,
)

__all__ = ["MAX_BYTES", "draw"]

MAX_BYTES = 150_000
_WIDTH = 0.8
_DPI = 100
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
    """Draws the sections that step: microseconds by payload, on a logarithmic scale.

    Args:
      sections: of which "waiting" and "pipelined" are drawn.
      path: of the PNG.

    Raises:
      ValueError: neither was measured.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    drawn = [section for section in sections if section.name in ("waiting", "pipelined")]
    if not drawn:
        raise ValueError("only the sections waiting and pipelined can be drawn")
    figure, axes = pyplot.subplots(
        len(drawn), 1, figsize=(10, 4.2 * len(drawn)), layout="constrained", squeeze=False
    )
    for axis, section in zip(axes[:, 0], drawn, strict=True):
        names = [name for name in _COLOURS if name in section.rows[0].samples]
        width = _WIDTH / len(names)
        for number, name in enumerate(names):
            medians = [row.samples[name].median * section.scale for row in section.rows]
            at = [place + (number - (len(names) - 1) / 2) * width for place in range(len(medians))]
            bars = axis.bar(at, medians, width, label=name, color=_COLOURS[name])
            axis.bar_label(bars, [_label(median) for median in medians], fontsize=6, padding=1)
        axis.set_yscale("log")
        axis.set_xticks(range(len(section.rows)), [row.name for row in section.rows], fontsize=8)
        axis.set_ylabel("us a step (less is better)", fontsize=8)
        axis.set_title(section.title, fontsize=10, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=7, frameon=False, ncols=2, loc="upper left")
    figure.savefig(path, dpi=_DPI, pil_kwargs={"optimize": True})
    pyplot.close(figure)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"the picture has {size} bytes; a README takes {MAX_BYTES}")


def _label(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
