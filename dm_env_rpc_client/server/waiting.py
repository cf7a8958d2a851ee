"""Waiting on behalf of a client that might disconnect in the meantime.

A ResetWorld request waits until every agent has been informed, and a step in lock-step waits until
every agent has stepped. If the client of a waiting request disconnects, no one will read the
answer. The wait then ends, which frees the connection and the agent's place in the world.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from dm_env_rpc_client.system.locks import make_lock


class CallerGoneError(Exception):
    """Raised when the client whose request is being executed has disconnected."""


class Caller:
    """The client of one stream. Within this context, `wait` waits on behalf of the client."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._is_gone = False
        self._condition: threading.Condition | None = None

    def __enter__(self) -> None:
        local.caller = self

    def __exit__(self, *exc_info: object) -> None:
        local.caller = None

    def leave(self) -> None:
        """End the current wait and all later ones, because the client has disconnected."""
        with self._lock:
            self._is_gone = True
            condition = self._condition
        if condition is not None:
            # In a thread of its own: a step may hold the condition's lock for long, and this
            # thread may serve other clients.
            threading.Thread(target=_notify, args=(condition,), daemon=True).start()

    def wait(self, condition: threading.Condition, timeout: float | None) -> None:
        """Wait as the function `wait` does, in the thread that executes this client's request."""
        with self._lock:
            if self._is_gone:
                raise CallerGoneError
            self._condition = condition
        try:
            # `leave` cannot notify before this waits: it needs the lock of the condition.
            condition.wait(timeout)
        finally:
            self._condition = None
        if self._is_gone:
            raise CallerGoneError


class _Local(threading.local):
    caller: Caller | None = None


local = _Local()
"""The client on whose behalf `wait` waits in the current thread."""


def wait(condition: threading.Condition, timeout: float | None = None) -> None:
    """Call `condition.wait(timeout)`, but end early if the client of the request disconnects.

    Args:
      condition: the condition, whose lock is held.
      timeout: seconds; None for no limit.

    Raises:
      CallerGoneError: the client is gone.
    """
    if local.caller is None:
        condition.wait(timeout)
    else:
        local.caller.wait(condition, timeout)


def wait_for(
    condition: threading.Condition, is_met: Callable[[], bool], timeout: float | None = None
) -> bool:
    """Call `condition.wait_for`, but end early if the client of the request disconnects.

    Args:
      condition: a condition that is notified when `is_met` may have become true. The caller holds
        its lock.
      is_met: the predicate to wait for.
      timeout: seconds; None for no limit.

    Returns:
      Whether it is met; False after the timeout.

    Raises:
      CallerGoneError: the client is gone.
    """
    # One deadline for all wake-ups: a notification must not extend the wait.
    deadline = None if timeout is None else time.monotonic() + timeout
    while not is_met():
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return False
        wait(condition, left)
    return True


def _notify(condition: threading.Condition) -> None:
    with condition:
        condition.notify_all()
