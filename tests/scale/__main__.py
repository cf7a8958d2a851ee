"""How many environments, measured: their costs, and the steps per second of up to 1,000.

    python -m tests.scale            # takes some ten minutes
    python -m tests.scale --quick    # few environments, few turns

Prints the tables of the guide to scale. Nothing else should run beside it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Iterable, Sequence

from tests.benchmarks.cheap import PAYLOADS
from tests.scale.fakes import fake
from tests.scale.measuring import COMPUTES, WAITS, costs, real_rate, served, simulated_rates

_COUNTS, _QUICK_COUNTS = (16, 64, 256, 1000), (64,)
_TURNS, _QUICK_TURNS = 40, 3
_REAL = ((COMPUTES, 16, 0.0), (COMPUTES, 16, 0.001), (COMPUTES, 16, 0.020), (WAITS, 64, 0.020))
"""What environments of a real server do in a step, how many they are, and for how many seconds."""

_KIB = 1 << 10


def main(arguments: list[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="few environments, few turns")
    parser.add_argument("--only", choices=list(PAYLOADS), action="append", help="repeatable")
    options = parser.parse_args(arguments)
    payloads = options.only or list(PAYLOADS)
    turns = _QUICK_TURNS if options.quick else _TURNS
    counts = _QUICK_COUNTS if options.quick else _COUNTS
    print(_facts())
    print(_costs(payloads, turns))
    print(_simulated(payloads, counts, turns))
    print(_real(payloads, turns))
    return 0


def _facts() -> str:
    """Says where and when this runs."""
    return (
        f"date: {datetime.date.today()}; Python: {platform.python_version()}; "
        f"system: {platform.system()} {platform.machine()}; "
        f"cores: {len(os.sched_getaffinity(0))}"
    )


def _costs(payloads: Sequence[str], turns: int) -> str:
    rows = []
    for payload in payloads:
        _tell(f"{payload}: what an environment costs")
        found = costs(payload, turns)
        micro = [_number(seconds * 1e6) for seconds in (found.client, found.server)]
        memory = [f"{size / _KIB:,.0f}" for size in (found.client_bytes, found.server_bytes)]
        rows.append([payload, *micro, *memory])
    return _table(["observation", "client, us", "server, us", "client, KiB", "server, KiB"], rows)


def _simulated(payloads: Sequence[str], counts: Sequence[int], turns: int) -> str:
    cells: dict[tuple[str, str, str], list[str]] = {}
    for payload in payloads:
        with fake(payload) as server:
            for count in counts:
                _tell(f"{payload}: {count} environments of a fake server")
                for latency, mode, rate in simulated_rates(server, payload, count, turns):
                    row = payload, f"{latency * 1000:g} ms", f"`{mode}`"
                    cells.setdefault(row, []).append(_number(rate))
    rows = [[*row, *rates] for row, rates in cells.items()]
    return _table(["observation", "latency", "", *(f"{count:,}" for count in counts)], rows)


def _real(payloads: Sequence[str], turns: int) -> str:
    names = [f"{count}, each {does} for {seconds * 1000:g} ms" for does, count, seconds in _REAL]
    rows = []
    for payload in payloads:
        rows.append([payload])
        with served() as server:
            for name, case in zip(names, _REAL, strict=True):
                _tell(f"{payload}: {name}")
                rows[-1].append(_number(real_rate(server, payload, *case, turns)))
    return _table(["observation", *names], rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float) -> str:
    """Returns three digits of a number."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 1000 else f"{value:.3g}"


def _tell(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
