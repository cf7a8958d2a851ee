"""The plot of the guide: steps per second by the number of environments, as SVG.

The background is transparent and all text is of a grey that has a contrast of 4.5 to both white and
black. The colours can be told apart by the colour-blind (Okabe and Ito), and so can the markers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.scale import model
from tests.scale.model import Costs
from tests.scale.report import BANDWIDTH, Run
from tests.scale.simulation import ANY, LATENCIES, WAITS_FOR_ALL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["MAX_BYTES", "draw", "figure"]

MAX_BYTES = 200_000
_GREY = "#767676"
_COLOURS = dict(zip(LATENCIES, ("#0072B2", "#009E73", "#D55E00"), strict=True))
_MARKERS = dict(zip(LATENCIES, "os^", strict=True))
_MOST = 2000
_POINTS = 60
_SIZE = (10.0, 4.3)


def draw(run: Run, path: Path) -> None:
    """Writes the plot.

    Args:
      run: what was found.
      path: of the file; its suffix says the format, SVG or PNG.

    Raises:
      ValueError: nothing was simulated, or the file is larger than MAX_BYTES.
    """
    import matplotlib as mpl
    from matplotlib import pyplot

    drawn = figure(run)
    with mpl.rc_context({"svg.hashsalt": "scale"}):
        metadata = {"Date": None} if path.suffix == ".svg" else {}
        drawn.savefig(path, transparent=True, metadata=metadata)
    pyplot.close(drawn)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"the plot has {size} bytes; a page takes {MAX_BYTES}")


def figure(run: Run) -> Figure:
    """Returns the figure: a panel for each observation, a colour for each latency.

    Args:
      run: what was found.

    Raises:
      ValueError: nothing was simulated.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    payloads = list(dict.fromkeys(outcome.payload for outcome in run.simulated))
    if not payloads:
        raise ValueError("nothing was simulated, so there is nothing to draw")
    style: dict[Any, Any] = {
        "text.color": _GREY,
        "axes.edgecolor": _GREY,
        "axes.labelcolor": _GREY,
        "xtick.color": _GREY,
        "ytick.color": _GREY,
        "font.size": 9,
    }
    with mpl.rc_context(style):
        whole, axes = pyplot.subplots(
            1, len(payloads), figsize=_SIZE, sharex=True, sharey=True, layout="constrained",
            squeeze=False,
        )  # fmt: skip
        for axis, payload in zip(axes[0], payloads, strict=True):
            _draw_panel(axis, run, payload)
        axes[0][0].set_ylabel("steps per second")
        clients = [1 / run.costs[payload].client for payload in payloads]
        axes[0][0].set_ylim(top=2 * max(clients))
        handles, labels = axes[0][0].get_legend_handles_labels()
        whole.legend(
            handles, labels, loc="outside lower center", ncols=4, frameon=False, labelcolor=_GREY,
            fontsize=8, columnspacing=1.5,
        )  # fmt: skip
    return whole


def _draw_panel(axis: Axes, run: Run, payload: str) -> None:
    costs = run.costs[payload]
    axis.set_title(payload, fontsize=10)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("environments")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.grid(color=_GREY, alpha=0.25, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    counts = _spread()
    for latency in LATENCIES:
        colour, marker = _COLOURS[latency], _MARKERS[latency]
        rates = [model.stepped(costs, count, latency, costs.fake) for count in counts]
        name = f"{latency * 1000:g} ms"
        axis.plot(counts, rates, color=colour, linewidth=1.5, label=f"{name}, calculated")
        for mode, filling, text, rate in (
            (WAITS_FOR_ALL, colour, "measured", model.stepped),
            (ANY, "none", "measured, send and recv", model.turn),
        ):
            # At the speed that the processor had when the costs were measured, as the lines are.
            found = [
                (
                    outcome.environments,
                    rate(costs, outcome.environments, latency, costs.fake) * (1 + outcome.error),
                )
                for outcome in run.simulated
                if (outcome.payload, outcome.seconds, outcome.mode) == (payload, latency, mode)
            ]
            axis.plot(
                *zip(*found, strict=True),
                marker,
                color=colour,
                markerfacecolor=filling,
                markersize=6,
                label=f"{name}, {text}",
            )
    _draw_limits(axis, costs)


def _draw_limits(axis: Axes, costs: Costs) -> None:
    limits = {
        "client process": (1 / costs.client, "--"),
        "card of 10 Gbit/s": (BANDWIDTH / model.wire_bytes(costs.answer_bytes), ":"),
    }
    for name, (limit, line) in limits.items():
        axis.axhline(
            limit, color=_GREY, linestyle=line, linewidth=1.2, label=f"limit of the {name}"
        )


def _spread() -> Sequence[int]:
    ratio = _MOST ** (1 / (_POINTS - 1))
    return sorted({round(ratio**index) for index in range(_POINTS)})
