"""Locks that are never left locked after an interrupt.

In Python 3.14 and later, an interrupt can arrive after `with` has acquired a `threading` lock but
before the block begins, and nothing then releases the lock. Therefore this package creates all its
locks with this module.

In CPython 3.13 and 3.14, the exception table of a `try` or `with` statement does not cover the
backward jump of a loop inside the statement, unless the loop is a `for` or `while True` loop.
If an interrupt arrives at this jump, neither `except` nor `finally` runs.
`tests/system/test_locks.py` finds loops with this problem.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

_WAIT = (True,)


class Kept:
    """A lock that a `with` statement always releases after acquiring it.

    The methods are those of the underlying lock, because a Python method can be interrupted before
    it does anything. Only `__enter__` is a Python method, which costs 0.2 us per block. It
    acquires the lock and records the acquisition in one C call. No interrupt is raised between the
    end of `__enter__` and the block.

    Args:
      lock: a lock of `threading`.
    """

    __slots__ = (
        "__exit__", "_acquire_restore", "_at_fork_reinit", "_is_owned", "_release_save", "acquire",
        "locked", "release",
    )  # fmt: skip

    def __init__(self, lock: Any):
        for name in self.__slots__:
            if hasattr(lock, name):
                setattr(self, name, getattr(lock, name))

    def __enter__(self) -> bool:
        held: list[bool] = []
        try:
            held.extend(map(self.acquire, _WAIT))  # type: ignore[attr-defined]
        except BaseException:
            if held:
                self.release()  # type: ignore[attr-defined]
            raise
        return True


def make_lock() -> threading.Lock:
    """Return a lock that behaves like `threading.Lock`."""
    return cast("threading.Lock", _kept(threading.Lock()))


def make_rlock() -> threading.RLock:
    """Return a reentrant lock that behaves like `threading.RLock`."""
    return cast("threading.RLock", _kept(threading.RLock()))


def _kept(lock: Any) -> Any:
    return lock if sys.version_info < (3, 14) else Kept(lock)


def take(lock: threading.Lock, held: list[bool], seconds: float = 0.0) -> None:
    """Acquire a lock if it is free, without leaving it locked after a KeyboardInterrupt.

    A `with` statement is safe only for waits without a time limit. Otherwise an interrupt can
    arrive between the call of `acquire` and the following `try`. This function acquires the lock
    and records the acquisition in a single C call, in which no interrupt is raised, at a cost of
    0.25 us.

    held: list[bool] = []
    try:
        take(lock, held)
        if held:
            ...
    finally:
        if held:
            lock.release()

    Args:
      lock: the lock.
      held: an empty list; not empty afterwards if the lock was acquired, even after an interrupt.
      seconds: maximum time to wait for the lock.
    """
    held.extend(filter(None, map(lock.acquire, _WAIT, (seconds,))))


def trying(lock: threading.Lock) -> Callable[[], bool]:
    """Return the argument of `iter` with which code that runs in each step acquires a lock.

    `held.extend(iter(trying, False))` does the same as `take(lock, held)`, without a Python call.
    `iter` calls `trying` until the lock is not free, which it is no longer after the first call.

    Args:
      lock: the lock, which must not be reentrant.
    """
    return functools.partial(lock.acquire, False)


def run(lock: threading.Lock, action: Callable[[], object], seconds: float = 0.0) -> None:
    """Call a function with a lock held, or do nothing if the lock cannot be acquired in time.

    Args:
      lock: the lock, which an interrupt does not leave locked.
      action: the function.
      seconds: maximum time to wait for the lock.
    """
    held: list[bool] = []
    try:
        take(lock, held, seconds)
        if held:
            action()
    finally:
        if held:
            lock.release()
