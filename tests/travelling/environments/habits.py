"""What an environment does, and what is refused of it; without Gymnasium."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Refused(NamedTuple):
    """A value is refused, with an error that has these texts."""

    parts: tuple[str, ...]
    """The kind and the place, by every way."""
    details: tuple[str, ...] = ()
    """What this package's server says of the value."""


class Habit(NamedTuple):
    """An environment that surprises, and what is refused of what it does."""

    make: Callable[[int], Any]
    """Makes it for a row, so that rows differ."""

    refused: Mapping[int, Refused] = {}
    """By the position of a call: the value that it returns is refused, by every way."""

    calls: str = "RsssrsRs"
    """What is called; see `told.Call`."""
