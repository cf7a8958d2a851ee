"""Tests that need a program beside Python, in groups: each is run whole or skipped whole.

A test that is marked with the name of a group, and one that calls `need`, is skipped if the
group's programs are not installed. `report_together` gives all skips of a group one place, so
that pytest's summary has one line for each group. `.ci/run` installs the programs and fails if a
group is skipped all the same.

A few tests need a Python package that the extra `test` leaves out. They call `need_package`, and
their skips are shown together, too.
"""

from __future__ import annotations

import importlib.util
import shutil
from typing import NoReturn

import pytest

__all__ = ["GROUPS", "PACKAGES", "need", "need_package", "report_together", "skip"]

GROUPS = {
    "browser": ("chromium", "chromedriver"),
    "terminal": ("tmux",),
    "compiler": ("cc", "nm"),
    "certificates": ("openssl",),
}
"""The programs of each group. The peers in other languages know theirs themselves."""

PACKAGES = {
    "stable_baselines3": "pip install stable-baselines3; with torch it takes a gigabyte",
    "ray": "pip install ray",
    "envpool": "pip install envpool",
    "sb3_contrib": "pip install sb3-contrib; with torch it takes a gigabyte",
    "torch": "pip install torch 'ray[rllib]'",
    "minari": "pip install 'minari>=0.5.3', which needs Python 3.11",
    "moviepy": "pip install moviepy, which needs a Pillow before 12",
}
"""Packages that the extra `test` leaves out, and how to get them."""

_PREFIX = "group "
_PACKAGE = "package "


def skip(group: str, reason: str) -> NoReturn:
    """Skips the test that runs, as one of a group."""
    pytest.skip(f"{_PREFIX}{group}: {reason}")


def report_together(report: pytest.TestReport) -> None:
    """Moves the skip of a group to this file; pytest would name each test that has a fixture."""
    if report.skipped and isinstance(report.longrepr, tuple):
        reason = report.longrepr[2]
        if reason.removeprefix("Skipped: ").startswith((_PREFIX, _PACKAGE)):
            report.longrepr = (__file__, 1, reason)


def need(group: str) -> None:
    """Skips the test that runs unless the programs of its group are installed."""
    missing = [program for program in GROUPS[group] if shutil.which(program) is None]
    if missing:
        skip(group, f"not installed: {', '.join(missing)}")


def need_package(name: str) -> None:
    """Skips the test that runs, or the file that is imported, unless a package is installed."""
    if importlib.util.find_spec(name) is None:
        reason = f"{_PACKAGE}{name}: not installed: {PACKAGES[name]}"
        pytest.skip(reason, allow_module_level=True)
