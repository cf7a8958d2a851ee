"""Calls to the rows of a batch: one after another, or concurrently if the rows have to wait.

An environment may have to wait for an engine in another process, a socket or a device. The rows of
such an environment get threads and step concurrently, provided that the server knows about the
waiting before it creates them. All other rows are stepped by the thread of their batch, because
environments that compute in Python gain nothing from threads.
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
"""Maximum number of threads of one batch. If a batch has more rows, some rows share a thread."""

_WAITING_SECONDS = 1e-3
"""Minimum total time, in seconds, that the rows must spend waiting to justify threads. Threads
cost 50 us per row."""

_WATCHED = 16
"""Number of calls to all rows in which their waiting time is measured, initially and again after
each slow call. Each measurement costs 3 us."""

_CERTAIN = 2
"""Number of consecutive calls in which rows must wait before rows created later get threads. A
single call is not enough: the rows may have waited for the GIL because the thread that held it had
no processor to run on."""

_COUNTS_SWITCHES = hasattr(resource, "RUSAGE_THREAD")
"""Whether the system counts a thread's voluntary context switches: Linux does, macOS does not."""


def _switches() -> int:
    """Return the number of this thread's voluntary context switches, or 0 if it is unknown."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw if _COUNTS_SWITCHES else 0


class Waits:
    """What is known about whether the rows of a factory's batches wait.

    Args:
      has_threads: whether rows get threads in any case.
      may_have: whether rows may get threads.

    Attributes:
      has_threads: whether rows made from now on get threads.
    """

    def __init__(self, has_threads: bool = False, may_have: bool = True):
        self.has_threads = has_threads
        self._may_have = may_have

    def found(self) -> None:
        """Record that the rows wait."""
        self.has_threads = self._may_have


class Turns:
    """Calls to the rows of a batch, and the exceptions raised by these calls.

    Args:
      count: the number of rows.
      waits: known facts about the rows; updated if they turn out to wait.
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
        """Create the environment of a row in the thread that will step it.

        Args:
          row: the index of the row.
          make: makes the environment.
          settings: the argument of `make`.

        Returns:
          The environment, for calls from the thread of the batch; its exceptions pass through.
        """
        if not self._owners:
            return make(settings)
        # The same thread as in `_take_together`: an environment keeps one thread for its life.
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
        """Call `act` for each of the given rows.

        Args:
          rows: the indices of the rows.
          act: called with the index of a row, its environment and the actions.
          environments: the environments of all rows.
          actions: the actions of all rows.

        Returns:
          The exceptions that rows raised, by row.
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
            # A single row tells nothing about rows together, and a reset nothing about steps.
            if len(rows) > 1 and actions is not None:
                self._waited = 0
            return failures
        self._to_watch = _WATCHED
        if not is_watched or len(rows) < 2:
            return failures
        waited = took - (time.thread_time() - computed)
        # On a busy machine, time also passes while the thread is preempted; only a thread that
        # waits gives up the processor itself.
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
        # All begin before the first result is awaited, so that they overlap.
        calls: list[Call] = []
        failures: dict[int, Exception | str] = {}
        fatal: BaseException | None = None
        try:
            for row in rows:
                owner = owners[row % len(owners)]
                calls.append(owner.begin(act, row, environments[row], actions))
        except BaseException as error:
            fatal = error  # Raised below, like those of rows.
        for row, call in zip(rows, calls, strict=False):
            try:
                call.result()
            except Exception as error:
                failures[row] = error
            except BaseException as error:
                fatal = error  # Raised below, when no row is running any more.
        if fatal is not None:
            raise fatal
        return failures

    def close(self) -> None:
        """End the threads after the environments have been closed."""
        for owner in self._owners:
            owner.end()
