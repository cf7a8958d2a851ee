"""The rows of a batch in turn: one after the other, or at the same time where they wait.

An environment may wait: for an engine in another process, a socket, a device. Rows that are known
to wait have threads before they are made, and step at the same time. All others belong to the
thread of their batch: those that compute in Python do not gain from threads.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

import dm_env

from dm_env_rpc_client.server.thread_bound import OwnedEnvironment
from dm_env_rpc_client.system.owner_threads import Call, Owner, OwnerThread

_THREADS = 256
"""Maximum number of threads of one batch. With more rows, some share a thread."""

_WAITING_SECONDS = 1e-3
"""Rows that together wait longer than this are worth threads, which take 50 us for each."""

_WATCHED = 16
"""In the first turns, and in as many after one that took long, it is measured whether rows wait,
which takes 3 us."""

_CERTAIN = 2
"""After so many turns in a row that waited, rows that are made later have threads: one alone may
have waited for the GIL, which another thread held without a processor."""

_COUNTS_SWITCHES = hasattr(resource, "RUSAGE_THREAD")
"""Linux counts how often a thread has given up the processor; macOS does not."""


def _switches() -> int:
    """Return how often this thread has given up the processor to wait; 0 where unknown."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if _COUNTS_SWITCHES else 0


class Waits:
    """Known facts about the rows of a factory's batches.

    Args:
      has_threads: whether they have threads in any case.
      may_have: whether they may have any.

    Attributes:
      has_threads: whether rows that are made from now on have threads.
    """

    def __init__(self, has_threads: bool = False, may_have: bool = True):
        self.has_threads = has_threads
        self._may_have = may_have

    def found(self) -> None:
        """Mark the rows as waiting."""
        self.has_threads = self._may_have


class Turns:
    """Run a function for some rows, and report the failed ones.

    Args:
      count: the number of rows.
      waits: what is known of them. It learns if they wait.
    """

    def __init__(self, count: int, waits: Waits):
        self._waits = waits
        self._owners: list[Owner] = []
        if waits.has_threads and count > 1:
            self._owners = [OwnerThread(f"row {row}") for row in range(min(count, _THREADS))]
            for owner in self._owners:
                owner.hold()
        self._to_watch = _WATCHED
        self._waited = 0

    def make(self, row: int, make: Callable[[Any], dm_env.Environment], settings: Any) -> Any:
        """Create the environment of a row in its thread.

        Args:
          row: its index.
          make: makes it.
          settings: what `make` is called with.

        Returns:
          The environment, which only the thread of the batch calls; what it raises passes through.
        """
        if not self._owners:
            return make(settings)
        owner = self._owners[row % len(self._owners)]
        made = owner.call(make, settings)
        return OwnedEnvironment(made, owner, made.close)

    def take(
        self,
        rows: Sequence[int],
        act: Callable[[int, Any, Any], None],
        environments: Sequence[Any],
        actions: Any = None,
    ) -> dict[int, Exception | str]:
        """Make each row act.

        Args:
          rows: their indices.
          act: called with the index of each, its environment and the actions.
          environments: of all rows.
          actions: of all rows.

        Returns:
          What rows have raised, by row.
        """
        failures: dict[int, Exception | str] = {}
        if self._owners:
            return self._take_together(rows, act, environments, actions)
        computed, switches = 0.0, 0
        if self._to_watch:
            computed, switches = time.thread_time(), _switches()
        began = time.perf_counter()
        for row in rows:
            try:
                act(row, environments[row], actions)
            except Exception as error:
                failures[row] = error
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
            self._waits.found()
        return failures

    def _take_together(
        self,
        rows: Sequence[int],
        act: Callable[[int, Any, Any], None],
        environments: Sequence[Any],
        actions: Any,
    ) -> dict[int, Exception | str]:
        owners = self._owners
        calls: list[Call] = [
            owners[row % len(owners)].begin(act, row, environments[row], actions) for row in rows
        ]
        failures: dict[int, Exception | str] = {}
        fatal: BaseException | None = None
        for row, call in zip(rows, calls, strict=True):
            try:
                call.result()
            except Exception as error:
                failures[row] = error
            except BaseException as error:
                fatal = error  # When no row acts any more.
        if fatal is not None:
            raise fatal
        return failures

    def close(self) -> None:
        """End the threads, after the environments were closed."""
        for owner in self._owners:
            owner.end()
