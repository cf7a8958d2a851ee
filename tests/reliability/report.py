"""What a run of the scorecard found: pytest's reports of its rows, as text and Markdown."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.quick import SPENT
from tests.reliability.scorecard import FULL, QUICK, ROWS, Row

PASSED, FAILED, MISSING, SKIPPED = "passed", "FAILED", "not there yet", "SKIPPED"

_COUNTS = {FULL: "as in the table", QUICK: "reduced, as in the gate"}

_UNITS = {"s": "s", "ms": "ms", "mib": "MiB", "percent": "%"}

_OUTCOMES = {"failure": FAILED, "error": FAILED, "skipped": SKIPPED}


class RowResult(NamedTuple):
    """The outcome of the tests of one row."""

    row: Row

    outcomes: Sequence[str] = ()
    """Of each test."""

    counts: dict[str, int | float] = {}  # noqa: RUF012  # Never changed.
    """Counts of all tests added up, and the largest of their extremes."""

    transports: Iterable[str] = ()

    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        if FAILED in self.outcomes:
            return FAILED
        if not self.outcomes:
            return MISSING
        return PASSED if PASSED in self.outcomes else SKIPPED

    @property
    def seen(self) -> str:
        """What was seen, in one line."""
        if not self.outcomes:
            return ""
        parts = [_shown(name, value) for name, value in self.counts.items()]
        parts.append(f"{self.outcomes.count(PASSED)} of {len(self.outcomes)} tests passed")
        if skipped := self.outcomes.count(SKIPPED):
            parts[-1] += f", {skipped} skipped"
        return "; ".join([*parts, *filter(None, [" and ".join(sorted(self.transports))])])


def read(row: Row, path: Path) -> RowResult:
    """Reads pytest's report of a row; without one, pytest itself has failed."""
    if not path.exists():
        return RowResult(row, [FAILED])
    root = ElementTree.parse(path).getroot()
    outcomes = [
        next((_OUTCOMES[part.tag] for part in case if part.tag in _OUTCOMES), PASSED)
        for case in root.iter("testcase")
    ]
    counts: dict[str, int | float] = {}
    transports = set()
    for each in root.iter("property"):
        name, text = each.attrib["name"], each.attrib["value"]
        if name == "transport":
            transports.add(text)
        elif name == SPENT:
            continue
        elif text.isdecimal():
            counts[name] = counts.get(name, 0) + int(text)
        else:
            counts[name] = max(counts.get(name, float(text)), float(text))
    seconds = sum(float(suite.attrib["time"]) for suite in root.iter("testsuite"))
    return RowResult(row, outcomes, counts, transports, seconds)


def _shown(name: str, value: float) -> str:
    if isinstance(value, int):
        return f"{value:,} {name.replace('_', ' ')}"
    words, _, unit = name.rpartition("_")
    if unit not in _UNITS:
        words, unit = name, ""
    return f"{words.replace('_', ' ')} at most {value:.3g} {_UNITS.get(unit, '')}".rstrip()


def facts(mode: str, started: datetime.datetime, seconds: float) -> dict[str, str]:
    """What was run where."""
    return {
        "repetitions": _COUNTS[mode],
        "date": started.strftime("%Y-%m-%d"),
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "duration": f"{seconds / 60:.0f} min",
    }


def summary(results: Sequence[RowResult]) -> str:
    """One line: how many rows had which outcome."""
    outcomes = [result.outcome for result in results]
    return ", ".join(
        f"{outcomes.count(outcome)} {outcome}"
        for outcome in (PASSED, FAILED, SKIPPED, MISSING)
        if outcome in outcomes
    )


def _cells(*texts: object) -> str:
    return "| " + " | ".join(str(text).replace("|", r"\|") for text in texts) + " |"


def markdown(results: Iterable[RowResult], about: dict[str, str]) -> str:
    """The table of all rows, with the figures of the reference beside those of a run."""
    lines = [
        "<!-- Written by `python -m tests.reliability --markdown`; do not edit. -->",
        "",
        "# The scorecard",
        "",
        "; ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        _cells("#", "tried", "must be seen", "dm-env-rpc 1.1.7", "seen here"),
        _cells(*["---"] * 5),
    ]
    found = {result.row.number: result for result in results}
    for row in ROWS.values():
        result = found.get(row.number)
        seen = ["not run"] if result is None else [result.outcome, result.seen]
        lines.append(_cells(*row, ": ".join(filter(None, seen))))
    return "\n".join(lines) + "\n"
