"""Servers that break one rule each, and the check that is there to notice."""

from __future__ import annotations

from tests.compliance import (
    broken_properties,
    broken_sequences,
    broken_streams,
    broken_tensors,
    broken_worlds,
)
from tests.compliance.breakage import BROKEN

__all__ = [
    "BROKEN",
    "broken_properties",
    "broken_sequences",
    "broken_streams",
    "broken_tensors",
    "broken_worlds",
]
