"""Transcripts compared."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

_NEAR = 1
"""So many lines beside a difference are shown."""


def differences(recorded: Sequence[str], now: Sequence[str]) -> list[str]:
    """Returns the lines that differ, with - and + and the part that they are in; none if equal."""
    if list(recorded) == list(now):
        return []
    if not recorded:
        return ["+ " + line for line in now]
    lines = list(difflib.unified_diff(recorded, now, "recorded", "now", lineterm="", n=_NEAR))
    return lines[2:]
