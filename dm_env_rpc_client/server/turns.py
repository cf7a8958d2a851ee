"""The rows of a batch in turn: one after the other, or at the same time where they wait."""

from __future__ import annotations

import concurrent.futures
import logging
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

from dm_env_rpc_client.tensors.limits import shortened

_log = logging.getLogger("dm_env_rpc_client.server")

_ERROR_BYTES = 4096
"""The size of the text of one row that has failed; the rest is cut off."""

_THREADS = 64

_WAITING_SECONDS = 1e-3
"""Rows that together wait longer than this are worth threads, which take 50 us for each."""

_WATCHED = 16
"""In the first turns, and in as many after one that took long, it is measured whether rows wait,
which takes 3 us."""

_CERTAIN = 2
"""After so many turns in a row that waited the rows have threads, and keep them: one alone may have
waited for the GIL, which another thread held without a processor."""

_COUNTS_SWITCHES = hasattr(resource, "RUSAGE_THREAD")
"""Linux counts how often a thread has given up the processor; macOS does not."""


def _switches() -> int:
    """Returns how often this thread has given up the processor to wait; 0 where unknown."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if _COUNTS_SWITCHES else 0


class Turns:
    """Has each of some rows do something, and says which have failed.

    An environment may wait: for an engine in another process, a socket, a device. Rows that were
    found to wait do so at the same time from then on, as they would on streams of their own. Those
    that compute in Python do not gain from threads.
    """

    def __init__(self) -> None:
        self._executor: concurrent.futures.ThreadPoolExecutor | None = None
        self._to_watch = _WATCHED
        self._waited = 0

    def take(
        self,
        rows: Sequence[int],
        act: Callable[[int, Any, Any], None],
        environments: Sequence[Any],
        actions: Any = None,
    ) -> dict[int, str]:
        """Has each row act.

        Args:
          rows: their indices.
          act: called with the index of each, its environment and the actions.
          environments: of all rows.
          actions: of all rows.

        Returns:
          What rows have raised, as text, by row.
        """
        failures: dict[int, str] = {}
        if self._executor is not None and len(rows) > 1:
            tries = [self._executor.submit(act, row, environments[row], actions) for row in rows]
            for row, one in zip(rows, tries, strict=True):
                error = one.exception()
                if isinstance(error, Exception):
                    failures[row] = failed(row, error)
                elif error is not None:
                    raise error
            return failures
        computed, switches = 0.0, 0
        if self._to_watch:
            computed, switches = time.thread_time(), _switches()
        began = time.perf_counter()
        for row in rows:
            try:
                act(row, environments[row], actions)
            except Exception as error:
                failures[row] = failed(row, error)
        took = time.perf_counter() - began
        is_watched = self._to_watch > 0
        if took <= _WAITING_SECONDS:
            self._to_watch = max(0, self._to_watch - 1)
            # One row says nothing about rows together, and a reset nothing about steps.
            if len(rows) > 1 and actions is not None:
                self._waited = 0
            return failures
        self._to_watch = _WATCHED
        if not is_watched or len(rows) < 2:
            return failures
        waited = took - (time.thread_time() - computed)
        # On a busy machine time passes without a wait, but then nothing was given up by itself.
        gave_up = not _COUNTS_SWITCHES or _switches() - switches >= len(rows) // 2
        is_waiting = waited > max(_WAITING_SECONDS, took / 2) and gave_up
        self._waited = self._waited + 1 if is_waiting else 0
        if self._waited == _CERTAIN:
            self._executor = concurrent.futures.ThreadPoolExecutor(_THREADS, "row")
        return failures

    def close(self) -> None:
        """Ends the threads."""
        if self._executor is not None:
            self._executor.shutdown(wait=False)


def failed(row: int, error: Exception) -> str:
    """Logs what a row has raised, and returns its text, which is cut off if it is long."""
    _log.warning("row %d of a batch failed", row, exc_info=error)
    return shortened(f"{type(error).__name__}: {error}", _ERROR_BYTES)
