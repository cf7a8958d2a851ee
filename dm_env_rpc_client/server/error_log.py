"""Exceptions of environments and of the server itself: kept and logged, both within bounds.

An environment that fails in every step would otherwise fill the memory and the log.
"""

from __future__ import annotations

import collections
import logging
import time
from collections.abc import Callable
from typing import TypeAlias

from dm_env_rpc_client.system.locks import make_lock

_log = logging.getLogger("dm_env_rpc_client.server")

Report: TypeAlias = Callable[[Exception, str], None]
"""Takes what a row has raised, or another error that no request fails with, and what failed."""


def unreported(error: Exception, text: str) -> None:
    """Takes no notice: a `Report` where no server runs."""


KEPT_ERRORS = 100
"""Exceptions that are kept, the last ones."""

_BURST = 20
"""Lines that are logged at once; then one in `_SECONDS`."""

_SECONDS = 10.0


class Allowance:
    """Limits how many lines of one kind are logged. Thread-safe."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._credit = float(_BURST)
        self._seen = time.monotonic()
        self._left_out = 0

    def log(
        self, log: logging.Logger, level: int, text: str, error: BaseException | None = None
    ) -> None:
        """Logs a line, with the traceback of `error`, unless there were many just now."""
        if not log.isEnabledFor(level):
            return
        with self._lock:
            now = time.monotonic()
            self._credit = min(float(_BURST), self._credit + (now - self._seen) / _SECONDS)
            self._seen = now
            if self._credit < 1.0:
                self._left_out += 1
                return
            self._credit -= 1.0
            left_out, self._left_out = self._left_out, 0
        if left_out:
            text += f" ({left_out} more were not logged)"
        log.log(level, "%s", text, exc_info=error)


class ErrorLog:
    """Collects exceptions; any thread may add one.

    Attributes:
      count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._kept: collections.deque[BaseException] = collections.deque(maxlen=KEPT_ERRORS)
        self._lock = make_lock()
        self._allowance = Allowance()

    @property
    def kept(self) -> list[BaseException]:
        """The last exceptions, oldest first."""
        with self._lock:
            return list(self._kept)

    def add(self, error: BaseException, text: str) -> None:
        """Keeps an exception, and logs it with its traceback unless there were many just now.

        Args:
          error: the exception.
          text: what failed.
        """
        with self._lock:
            self.count += 1
            self._kept.append(error)
        self._allowance.log(_log, logging.ERROR, text, error)
