"""How many environments: measured, calculated, and the one held against the other.

    python -m tests.scale                             # takes some ten minutes
    python -m tests.scale --quick                     # few environments, short turns
    python -m tests.scale --json run.json --markdown run.md --plot run.svg
    python -m tests.scale --from run.json --plot run.png    # of an earlier run; measures nothing

The costs of a step are measured with few environments. From them the command calculates what many
environments should reach, and measures that, with up to 1,000 environments on fake servers that
answer after 1, 5 and 20 ms. It exits with 1 if the two are more than 15 % apart with 1,000.
Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.benchmarks.cheap import PAYLOADS
from tests.scale import costs, plot, report, simulation
from tests.scale.processes import on_one_core
from tests.scale.report import Run
from tests.scale.simulation import Outcome

_ROUNDS, _QUICK_ROUNDS = 100, 5
_PATIENCE, _QUICK_PATIENCE = 5.0, 0.0
_QUICK_COUNTS = (64,)
_MOST_APART = 0.15
_HELD_FROM = 1000


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few environments, short turns")
    parser.add_argument(
        "--patience",
        type=float,
        default=_PATIENCE,
        metavar="SECONDS",
        help="how long to look for turns without other programs, in each case; %(default)s",
    )
    parser.add_argument("--only", choices=list(PAYLOADS), action="append", help="repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the plot, SVG or PNG")
    parser.add_argument(
        "--from", dest="earlier", type=Path, metavar="FILE", help="what --json wrote, to show"
    )
    options = parser.parse_args(arguments)
    if options.earlier is not None:
        run = report.read(options.earlier)
    else:
        run = Run(report.facts())
        for payload in options.only or PAYLOADS:
            with on_one_core():
                _measure(run, payload, options.quick, options.patience)
            # After each, so that a run that is broken off has written what it found.
            if options.json is not None:
                options.json.write_text(report.as_json(run))
    if options.markdown is not None:
        options.markdown.write_text(report.markdown(run))
    if options.plot is not None:
        plot.draw(run, options.plot)
    if options.json is None and options.markdown is None and options.plot is None:
        print(report.markdown(run))
    print(report.summary(run))
    held = [outcome for outcome in run.simulated if outcome.environments >= _HELD_FROM]
    return 0 if all(abs(outcome.error) <= _MOST_APART for outcome in held) else 1


def _measure(run: Run, payload: str, is_quick: bool, patience: float) -> None:
    rounds = _ROUNDS
    counts: Sequence[int] = simulation.COUNTS
    if is_quick:
        rounds, counts, patience = _QUICK_ROUNDS, _QUICK_COUNTS, _QUICK_PATIENCE
    with costs.gauge(payload) as gauge:
        run.costs[payload] = found = costs.measure(payload, rounds, gauge, _tell)
        simulated = simulation.simulate(payload, found, gauge, patience, _tell, counts)
        _keep(run.simulated, simulated)
        _keep(run.served, simulation.serve(payload, found, gauge, patience, _tell))


def _keep(kept: list[Outcome], found: Iterable[Outcome]) -> None:
    for outcome in found:
        _tell(
            f"  {outcome.measured:,.0f} steps/s, {outcome.error:+.0%}, "
            f"{outcome.disturbance:.1%} disturbed"
        )
        kept.append(outcome)


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
