"""Tests that need a program beside Python, in groups: each is run whole or skipped whole.

A test that is marked with the name of a group, and one that calls `need`, is skipped if the
group's programs are not installed. All skips of a group have one reason and one place, so that
pytest's summary has one line for each. `.ci/run` installs the programs and fails if a group is
skipped all the same.
"""

from __future__ import annotations

import shutil
from typing import NoReturn

import pytest

__all__ = ["GROUPS", "need", "skip"]

GROUPS = {
    "browser": ("chromium", "chromedriver"),
    "terminal": ("tmux",),
    "compiler": ("cc", "nm"),
    "certificates": ("openssl",),
}
"""The programs of each group. The peers in other languages know theirs themselves."""


def skip(group: str, reason: str) -> NoReturn:
    """Skips the test that runs, as one of a group."""
    pytest.skip(f"group {group}: {reason}")


def need(group: str) -> None:
    """Skips the test that runs unless the programs of its group are installed."""
    missing = [program for program in GROUPS[group] if shutil.which(program) is None]
    if missing:
        skip(group, f"not installed: {', '.join(missing)}")
