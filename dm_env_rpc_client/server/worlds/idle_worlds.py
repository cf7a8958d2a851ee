"""Ends worlds that have been idle for some time.

All worlds have the same time, so those that became idle first are due first. One thread waits for
the first of them. It runs only while a world is idle.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.worlds.world import World

__all__ = ["IDLE_WORLD_SECONDS", "IdleWorlds", "check_idle_seconds"]

IDLE_WORLD_SECONDS = 60.0
"""Default for how long a world that nobody uses or keeps stays."""

_JOIN_SECONDS = 1.0


def check_idle_seconds(seconds: float | None) -> None:
    """Raises SpecError if a time after which idle worlds end is negative or not finite."""
    if seconds is not None and not 0 <= seconds < math.inf:
        raise SpecError(
            f"idle_world_seconds must be finite and at least 0, or None to keep worlds, got "
            f"{seconds}"
        )


class IdleWorlds:
    """The idle worlds of a registry, whose lock the caller holds in all methods but `join`.

    Args:
      seconds: how long a world is idle before it ends; None for no limit.
      lock: the registry's.
      remove: takes a world out of the registry and returns it; called with the lock.
      close: closes that world; called without the lock.
    """

    def __init__(
        self,
        seconds: float | None,
        lock: threading.Lock,
        remove: Callable[[str], World],
        close: Callable[[str, World], None],
    ):
        self._seconds = seconds
        self._remove = remove
        self._close = close
        self._due: dict[str, float] = {}  # In the order in which they are due.
        self._changed = threading.Condition(lock)
        self._thread: threading.Thread | None = None

    def begin(self, name: str) -> None:
        """A world became idle."""
        if self._seconds is None:
            return
        self._due.pop(name, None)
        self._due[name] = time.monotonic() + self._seconds
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="dm_env_rpc idle worlds", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # There are too many threads, or the interpreter exits: with the next world.
            self._thread = thread

    def cancel(self, name: str) -> None:
        """A world is used or destroyed; nothing happens if it was not idle."""
        if self._due.pop(name, None) is not None and not self._due:
            self._changed.notify()

    def clear(self) -> None:
        """No world is idle any more, and the thread ends."""
        self._due.clear()
        self._changed.notify()

    def join(self) -> None:
        """Waits until the thread has ended, for at most a second; after `clear`."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                name = self._wait()
                if name is None:
                    self._thread = None
                    return
                world = self._remove(name)
            self._close(name, world)

    def _wait(self) -> str | None:
        """Returns the next world that is due; None if no world is idle."""
        while self._due:
            name, due = next(iter(self._due.items()))
            remaining = due - time.monotonic()
            if remaining <= 0:
                del self._due[name]
                return name
            self._changed.wait(min(remaining, threading.TIMEOUT_MAX))
        return None
