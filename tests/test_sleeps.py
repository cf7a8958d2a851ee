"""Tests wait for events and not for the clock; a sleep that is left says why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
SLEEP = re.compile(r"\bsleep\((?!0\))")
"""A sleep that takes time. `sleep(0)` lets others have their turn."""


def unexplained(lines: list[str]) -> Iterator[int]:
    """Yields the numbers of lines that sleep without a comment beside or right above them."""
    above = ""
    for number, line in enumerate(lines, 1):
        if SLEEP.search(line) and "#" not in line and not above.lstrip().startswith("#"):
            yield number
        above = line


def test_a_sleep_says_why() -> None:
    found = [
        f"{path.relative_to(HERE.parent)}:{number}"
        for path in sorted(HERE.rglob("*.py"))
        if path != Path(__file__)
        for number in unexplained(path.read_text().splitlines())
    ]
    assert found == [], "wait for an event, as with `settles`, or say in a comment why time passes"


def test_what_counts_as_a_reason() -> None:
    lines = [
        "time.sleep(0.1)",
        "time.sleep(0.1)  # So slow is the device.",
        "# The device takes as long.",
        "await asyncio.sleep(0.1)",
        "await asyncio.sleep(0)",
        "await asyncio.sleep(seconds)",
    ]
    assert list(unexplained(lines)) == [1, 6]
