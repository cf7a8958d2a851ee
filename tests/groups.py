"""Tests that need a program beside Python, in groups: each is run whole or skipped whole.

A test that is marked with the name of a group, and one that calls `need`, is skipped if the
group's programs are not installed. `report_together` gives all skips of a group one place, so
that pytest's summary has one line for each group. `.ci/run` installs the programs and fails if a
group is skipped all the same.
"""

from __future__ import annotations

import shutil
from typing import NoReturn

import pytest

__all__ = ["GROUPS", "need", "report_together", "skip"]

GROUPS = {
    "browser": ("chromium", "chromedriver"),
    "terminal": ("tmux",),
    "compiler": ("cc", "nm"),
    "certificates": ("openssl",),
}
"""The programs of each group. The peers in other languages know theirs themselves."""


_PREFIX = "group "


def skip(group: str, reason: str) -> NoReturn:
    """Skips the test that runs, as one of a group."""
    pytest.skip(f"{_PREFIX}{group}: {reason}")


def report_together(report: pytest.TestReport) -> None:
    """Moves the skip of a group to this file; pytest would name each test that has a fixture."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if reason.removeprefix("Skipped: ").startswith(_PREFIX):
            report.longrepr = (__file__, 1, reason)


def need(group: str) -> None:
    """Skips the test that runs unless the programs of its group are installed."""
    missing = [program for program in GROUPS[group] if shutil.which(program) is None]
    if missing:
        skip(group, f"not installed: {', '.join(missing)}")
