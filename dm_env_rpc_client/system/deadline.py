"""A point in time until which several waits together may last."""

from __future__ import annotations

import dataclasses
import math
import time


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Deadline:
    """A time of the monotonic clock; `min` of several is the earliest.

    A timeout limits one wait. An operation that waits several times makes a deadline of its
    timeout once, and each wait takes what remains.

    Attributes:
      time: seconds of `time.monotonic()`; infinite for a deadline that never passes.
    """

    time: float

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Returns the deadline this many seconds from now; one that never passes for None."""
        return cls(math.inf if seconds is None else time.monotonic() + seconds)

    @property
    def remaining(self) -> float | None:
        """Seconds until it passes, 0.0 if it has; None if it never does.

        This is what `wait`, `join` and `select` take as a timeout. For a socket 0.0 means
        non-blocking, so look at it before `settimeout`.
        """
        if self.time == math.inf:
            return None
        return max(0.0, self.time - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """Whether no time remains."""
        return time.monotonic() >= self.time
