"""What a run of the scorecard found, as text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Iterable, Sequence
from typing import Any

from tests.reliability.scorecard import FULL, Row

__all__ = ["MISSING", "PASSED", "RowResult", "facts", "markdown", "summary"]

PASSED, FAILED, MISSING, SKIPPED = "passed", "FAILED", "not there yet", "SKIPPED"

_UNITS = {"s": "s", "ms": "ms", "mib": "MiB", "percent": "%"}


@dataclasses.dataclass
class RowResult:
    """The outcome of the tests of one row."""

    row: Row

    tests: list[dict[str, Any]]
    """What each test recorded; see `recording`."""

    seconds: float = 0.0

    exit_code: int = 0
    """Of pytest, which also fails where no test does: a file that cannot be imported."""

    @property
    def outcome(self) -> str:
        outcomes = {test["outcome"] for test in self.tests}
        if self.exit_code not in (0, 5) or "failed" in outcomes:
            return FAILED
        if not self.tests:
            return MISSING
        return PASSED if "passed" in outcomes else SKIPPED

    @property
    def counts(self) -> dict[str, int | float]:
        """Counts of all tests added up, and the largest of their extremes."""
        total: dict[str, int | float] = {}
        for test in self.tests:
            for values in test["seen"]:
                for name, value in values.items():
                    if isinstance(value, int):
                        total[name] = total.get(name, 0) + value
                    else:
                        total[name] = max(total.get(name, value), value)
        return total

    @property
    def transports(self) -> list[str]:
        return sorted({test["transport"] for test in self.tests if "transport" in test})

    @property
    def seen(self) -> str:
        """What was seen, in one line."""
        if not self.tests:
            return ""
        passed = sum(test["outcome"] == "passed" for test in self.tests)
        parts = [_shown(name, value) for name, value in self.counts.items()]
        parts.append(f"{passed} of {len(self.tests)} tests passed")
        if self.transports:
            parts.append(" and ".join(self.transports))
        return "; ".join(parts)

    @property
    def failures(self) -> list[str]:
        return [
            f"{test['test']}\n{test.get('error', '')}"
            for test in self.tests
            if test["outcome"] == "failed"
        ]


def _shown(name: str, value: float) -> str:
    words, _, unit = name.rpartition("_")
    if isinstance(value, float) and unit in _UNITS:
        return f"{words.replace('_', ' ')} at most {value:.3g} {_UNITS[unit]}"
    return f"{value:,} {name.replace('_', ' ')}"


def facts(mode: str, started: datetime.datetime, seconds: float) -> dict[str, str]:
    """What was run where."""
    return {
        "counts": "the scorecard's" if mode == FULL else "those of the gate",
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
    """The table of a run, with the figures of the reference beside ours."""
    lines = [
        "<!-- Written by `python -m tests.reliability --markdown`; do not edit. -->",
        "",
        "; ".join(f"{name}: {value}" for name, value in about.items()) + ".",
        "",
        _cells("#", "tried", "has to be seen", "dm-env-rpc 1.1.7", "seen here", "result"),
        _cells(*["---"] * 6),
    ]
    for result in results:
        row = result.row
        lines.append(
            _cells(
                row.number,
                row.tried,
                row.expected,
                row.reference,
                result.seen,
                result.outcome,
            )
        )
    return "\n".join(lines) + "\n"
