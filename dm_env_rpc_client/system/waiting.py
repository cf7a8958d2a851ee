"""Waits that a signal ends, and calls that no signal interrupts.

Python calls a signal's handler between two bytecodes of the main thread. A signal that comes after
the last of them, just before the thread sleeps, or that the system gives to another thread, does
not wake it. Without a limit it would sleep on, and SIGTERM or Ctrl-C would seem to be ignored.

A handler that raises at the wrong point of `threading.Condition.wait`, and of what is built on it,
has it return without its lock, so that the `with` around it raises RuntimeError in the place of
what the handler raised. At another point the lock is left locked. A handler that does not raise
but sets the event that it interrupts may wait for that lock forever. Here there is no lock.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from dm_env_rpc_client.system.locks import make_lock

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


class InterruptibleCondition:
    """A condition variable without a lock, for threads that get signals.

    What is waited for is changed first, and `notify_all` is called afterwards, in any thread and
    in the handler of a signal.
    """

    def __init__(self) -> None:
        # Locked locks of threads that sleep, or that a signal has woken.
        self._sleepers: list[threading.Lock] = []

    def notify_all(self) -> None:
        """Has all that wait look again."""
        with contextlib.suppress(IndexError):
            while True:
                self._sleepers.pop().release()

    def wait_for(self, is_met: Callable[[], bool], timeout: float | None = None) -> bool:
        """Waits until `is_met`, which may be called again and again.

        Args:
          is_met: returns what is waited for.
          timeout: seconds; None for no limit.

        Returns:
          What `is_met` returned last.
        """
        if is_met():
            return True
        return wait_in_parts(functools.partial(self._sleep, is_met), timeout)

    def _sleep(self, is_met: Callable[[], bool], seconds: float) -> bool:
        sleeper = make_lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        # After that: who changes it does both in the other order.
        if not is_met():
            # One call of C, which a signal ends before it or behind it.
            sleeper.acquire(timeout=seconds)
        with contextlib.suppress(ValueError):
            self._sleepers.remove(sleeper)
        return is_met()


class InterruptibleEvent:
    """As `threading.Event`, for threads that get signals, and for what their handlers call."""

    def __init__(self) -> None:
        self._is_set = False
        self._changed = InterruptibleCondition()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Sets it, and wakes all that wait; a second call does nothing."""
        self._is_set = True
        self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set, or `timeout` seconds; returns whether it is set."""
        return self._changed.wait_for(self.is_set, timeout)


_SIGNALS = [signal.SIGINT, signal.SIGTERM] + [signal.SIGHUP] * hasattr(signal, "SIGHUP")


@contextlib.contextmanager
def later_signals() -> Iterator[None]:
    """A context after which signals are handled that come in it; a second one is at once.

    Their handlers raise in the main thread. In the middle of an answer that would leave a
    connection as nobody expects it, or the error of the signal would be taken for one of the
    environment.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {int(number): signal.getsignal(number) for number in _SIGNALS}
    come: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        if not come:
            come.append(number)
            return
        own = handlers[number]
        if callable(own):
            own(number, frame)

    replaced = [number for number, own in handlers.items() if callable(own)]
    for number in replaced:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number in replaced:
            # The environment, or what handles a second one, may have set others.
            if signal.getsignal(number) is handle:
                signal.signal(number, handlers[number])
    for number in come:
        own = handlers[number]
        assert callable(own), "only such were replaced"
        own(number, None)
