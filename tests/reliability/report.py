"""What a run of the scorecard found, as text, Markdown and JSON."""

from __future__ import annotations

import dataclasses
import datetime
import json
import platform
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.reliability.scorecard import FULL, QUICK, ROWS, Row

PASSED, FAILED, MISSING, SKIPPED = "passed", "FAILED", "not there yet", "SKIPPED"

_COUNTS = {FULL: "the scorecard's", QUICK: "those of the gate"}

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
        if skipped := sum(test["outcome"] == "skipped" for test in self.tests):
            parts[-1] += f", {skipped} skipped"
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
    if isinstance(value, int):
        return f"{value:,} {name.replace('_', ' ')}"
    words, _, unit = name.rpartition("_")
    if unit not in _UNITS:
        words, unit = name, ""
    return f"{words.replace('_', ' ')} at most {value:.3g} {_UNITS.get(unit, '')}".rstrip()


def facts(mode: str, started: datetime.datetime, seconds: float) -> dict[str, str]:
    """What was run where."""
    return {
        "counts": _COUNTS[mode],
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


def as_json(results: Iterable[RowResult], about: dict[str, str]) -> str:
    """Everything that the tests recorded; `read` takes it back."""
    rows = [
        {
            "row": result.row.number,
            "tried": result.row.tried,
            "expected": result.row.expected,
            "reference": result.row.reference,
            "outcome": result.outcome,
            "seen": result.counts,
            "seconds": round(result.seconds, 1),
            "exit_code": result.exit_code,
            "tests": result.tests,
        }
        for result in results
    ]
    return json.dumps({"about": about, "rows": rows}, indent=1) + "\n"


def read(path: Path, mode: str) -> dict[int, RowResult]:
    """Returns the rows of an earlier run; ValueError if its counts were others."""
    run = json.loads(path.read_text())
    if run["about"]["counts"] != _COUNTS[mode]:
        raise ValueError(f"{path} is of a run with other counts: {run['about']['counts']}")
    return {
        row["row"]: RowResult(ROWS[row["row"]], row["tests"], row["seconds"], row["exit_code"])
        for row in run["rows"]
    }


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
        _cells("#", "tried", "has to be seen", "dm-env-rpc 1.1.7", "seen here"),
        _cells(*["---"] * 5),
    ]
    found = {result.row.number: result for result in results}
    for row in ROWS.values():
        result = found.get(row.number)
        seen = ["not run"] if result is None else [result.outcome, result.seen]
        lines.append(_cells(*row, ": ".join(filter(None, seen))))
    return "\n".join(lines) + "\n"
