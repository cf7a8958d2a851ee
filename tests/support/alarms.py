"""An exception in the main thread at a chosen moment."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import FrameType


class Alarm:
    """An exception in the main thread after some seconds; none after the end of the block.

    pytest-timeout uses the same timer. Its handler and the time that it has left are put back,
    so that a test that hangs afterwards is still ended.

    Args:
        seconds: When the exception is raised, counted from the beginning of the block.
        interrupt: Raises the exception. A KeyboardInterrupt, unless given.
    """

    def __init__(
        self,
        seconds: float,
        interrupt: Callable[[int, FrameType | None], object] = signal.default_int_handler,
    ):
        self._seconds = seconds
        self._interrupt = interrupt

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._former_left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self._former = signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, self._seconds)

    def __exit__(self, *exc_info: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._former)
        if self._former_left:
            left = self._former_left - (time.monotonic() - self._began)
            signal.setitimer(signal.ITIMER_REAL, max(left, 0.1))
