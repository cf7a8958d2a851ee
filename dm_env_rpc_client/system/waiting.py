"""Waits that a signal ends.

Python calls a signal's handler between two bytecodes of the main thread. A signal that comes after
the last of them, just before the thread sleeps, or that the system gives to another thread, does
not wake it. Without a limit it would sleep on, and SIGTERM or Ctrl-C would seem to be ignored.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PART_SECONDS = 0.5
"""The longest sleep, so the longest time until a signal's handler is called."""


def wait_in_parts(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Waits until `wait` returns True or the timeout has passed; returns which.

    Args:
      wait: waits for at most the seconds that it is called with; returns whether it is over.
      timeout: seconds; None for no limit.
    """
    if timeout is None:
        while not wait(PART_SECONDS):
            pass
        return True
    deadline = time.monotonic() + timeout
    while not wait(max(0.0, min(PART_SECONDS, deadline - time.monotonic()))):
        if time.monotonic() >= deadline:
            return False
    return True
