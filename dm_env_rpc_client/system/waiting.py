"""Functions and classes that wait for a deadline, a signal, or work in several threads.

Python calls a signal's handler between two bytecodes of the main thread. A signal that arrives
just before the main thread sleeps, or that the system delivers to another thread, does not wake
the main thread. Without a time limit, the main thread would continue to sleep, and SIGTERM or
Ctrl-C would seem to be ignored.

A handler can raise an error at the wrong point in `threading.Condition.wait`, or in anything built
on it. Then `wait` returns without holding its lock, and the surrounding `with` raises RuntimeError
instead of the handler's error. At other points, such an error leaves the lock locked. A handler
that interrupts a wait for an event and sets the same event can wait forever for the event's lock.
The waits in this module use no lock.

`concurrent.futures` and `asyncio.to_thread` accept no work after the main thread's code has ended.
However, functions registered with `atexit` run later, and a training thread can still be running.
Python 3.12.0 and 3.12.1 cannot start threads during `atexit`, so in these versions the calling
thread does the work.
"""

from __future__ import annotations

import _thread
import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import functools
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, Generic, TypeVar

from dm_env_rpc_client.system.locks import make_lock


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Deadline:
    """A time on the monotonic clock. The `min` of several deadlines is the earliest.

    A timeout limits one wait. An operation with several waits turns its timeout into a deadline
    once, and each wait uses the remaining time.

    Attributes:
      time: the time on the clock of `time.monotonic()`, in seconds; infinite for a deadline that
        never passes.
    """

    time: float

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return a deadline `seconds` from now, or one that never passes if `seconds` is None."""
        return cls(math.inf if seconds is None else time.monotonic() + seconds)

    @property
    def remaining(self) -> float | None:
        """The seconds until the deadline: 0.0 once it has passed, and None if it never passes.

        The value is suitable as the timeout of `wait`, `join` and `select`. For a socket, 0.0
        means non-blocking, so check the value before calling `settimeout`.
        """
        if self.time == math.inf:
            return None
        return max(0.0, self.time - time.monotonic())

    @property
    def has_passed(self) -> bool:
        """Whether the deadline has passed."""
        return time.monotonic() >= self.time


PART_SECONDS = 0.5
"""The maximum time, in seconds, of one sleep, and therefore the maximum delay before a signal's
handler is called."""


def wait_in_parts(wait: Callable[[float], bool], timeout: float | None) -> bool:
    """Wait up to `timeout` seconds for `wait` to return True, and return whether it did.

    Args:
      wait: a function that waits for up to the given number of seconds, and returns whether the
        wait is over.
      timeout: the time limit, in seconds, or None for no limit.
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
    """A condition variable without a lock, for threads that receive signals.

    Change the awaited state first, then call `notify_all`, in any thread or signal handler.
    """

    def __init__(self) -> None:
        # Locked locks of threads that sleep or were woken by a signal.
        self._sleepers: list[threading.Lock] = []

    def notify_all(self) -> None:
        """Wake all waiting threads so that they check the condition again."""
        with contextlib.suppress(IndexError):
            while True:
                self._sleepers.pop().release()

    def wait_for(self, is_met: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `is_met` returns True. `is_met` may be called many times.

        Args:
          is_met: a function that returns whether the condition holds.
          timeout: the time limit, in seconds, or None for no limit.

        Returns:
          The last result of `is_met`.
        """
        if is_met():
            return True
        return wait_in_parts(functools.partial(self._sleep, is_met), timeout)

    def _sleep(self, is_met: Callable[[], bool], seconds: float) -> bool:
        sleeper = make_lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        # Checked after adding the lock; the notifier changes the state first and then notifies.
        if not is_met():
            # One call of C, which a signal ends before it or behind it.
            sleeper.acquire(timeout=seconds)
        with contextlib.suppress(ValueError):
            self._sleepers.remove(sleeper)
        return is_met()


class InterruptibleEvent:
    """A `threading.Event` that is safe in threads that receive signals, and in signal handlers."""

    def __init__(self) -> None:
        self._is_set = False
        self._changed = InterruptibleCondition()

    def is_set(self) -> bool:
        """Whether the event is set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiting threads. A second call does nothing."""
        self._is_set = True
        self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to `timeout` seconds for the event to be set, and return whether it is set."""
        return self._changed.wait_for(self.is_set, timeout)


_SIGNALS = [signal.SIGINT, signal.SIGTERM] + [signal.SIGHUP] * hasattr(signal, "SIGHUP")


@contextlib.contextmanager
def later_signals() -> Iterator[None]:
    """Return a context that defers the first signal until the context ends.

    A second signal is handled at once.

    Signal handlers raise errors in the main thread. In the middle of an answer, an error from a
    handler would leave a connection in an undefined state or be mistaken for an error of the
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
            # The environment, or the handler of a second signal, may have set other handlers.
            if signal.getsignal(number) is handle:
                signal.signal(number, handlers[number])
    for number in come:
        own = handlers[number]
        assert callable(own), "only such were replaced"
        own(number, None)


Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_THREADS = 64
"""The maximum number of items that are processed at the same time."""


def at_once(
    items: Iterable[Item],
    action: Callable[[Item], object],
    undo: Callable[[Item], object] = lambda _: None,
) -> None:
    """Call a function for each item, several at a time, and wait until all calls have returned.

    After an error or an interrupt of the wait, no further item is started. If `action` raises
    errors, the error of the first failed item is raised. After an interrupt, calls that do not
    return within `RELEASE_SECONDS` continue in daemon threads.

    Args:
      items: the items.
      action: called with each.
      undo: called with each item for which `action` returned after an interrupt.
    """
    work = _Work(items, action, undo)
    threads: list[threading.Thread] = []
    try:
        for _ in range(min(MOST_THREADS, len(work.left))):
            thread = threading.Thread(target=work.run, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # The interpreter exits, or the system has no more threads.
                break
            threads.append(thread)
        if not threads:
            work.run()
        for thread in threads:
            thread.join()
    except BaseException:
        work.left.clear()
        work.is_interrupted = True
        deadline = Deadline.after(RELEASE_SECONDS)
        for thread in threads:
            thread.join(deadline.remaining)
        raise
    for index in sorted(work.failures):
        raise work.failures[index]


RELEASE_SECONDS = 0.5
"""The time limit, in seconds, for releasing something after an interrupt."""


def start_daemon(run: Callable[[], object]) -> None:
    """Call a function in a daemon thread, or in this one if no thread can be started."""
    try:
        # Not a `threading.Thread`: code that was interrupted, by a signal or by the collection of
        # garbage, may hold a lock of that module.
        _thread.start_new_thread(run, ())
    except RuntimeError:  # The interpreter exits, or the system has no more threads.
        run()


def release(end: Callable[[], object]) -> None:
    """Call a function that releases something, and wait for it for `RELEASE_SECONDS` at most.

    The function runs in a daemon thread, where no signal interrupts it. If it waits there for a
    thread that an interrupt has kept from starting or ending, the program still goes on and exits.
    """
    done = make_lock()
    done.acquire()

    def run() -> None:
        try:
            end()
        finally:
            done.release()

    start_daemon(run)
    done.acquire(timeout=RELEASE_SECONDS)


@contextlib.contextmanager
def telling(tell: Callable[[], object], seconds: float) -> Iterator[None]:
    """Return a context that calls a function in a daemon thread if it is not left in time.

    Args:
      tell: the function, such as one that logs what is waited for.
      seconds: the time, in seconds.
    """
    is_over = InterruptibleEvent()

    def run() -> None:
        if not is_over.wait(seconds):
            tell()

    with contextlib.suppress(RuntimeError):  # No thread can be started.
        _thread.start_new_thread(run, ())
    try:
        yield
    finally:
        is_over.set()


def uninterrupted(
    call: Callable[[], Result], abandon: Callable[[Result], object] = lambda _: None
) -> Result:
    """Call a function in a daemon thread, where no signal interrupts it, and wait for it.

    Use this for libraries whose locks and threads do not survive an error of a signal's handler.
    Such an error ends the wait, but not the call.

    Args:
      call: the function.
      abandon: called in a daemon thread with the result of a call whose wait was interrupted.

    Raises:
      RuntimeError: no thread can be started. Some Python versions cannot start threads at exit, and
        systems limit the number of threads.
    """
    is_over = InterruptibleEvent()
    is_abandoned = False
    results: list[Result] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            failures.append(error)
        is_over.set()
        if is_abandoned:
            abandon_result()

    def abandon_result() -> None:
        with contextlib.suppress(IndexError):  # Both threads may try.
            abandon(results.pop())

    try:
        # A library may look for the deadline or the trace of an enclosing call in the context.
        _thread.start_new_thread(contextvars.copy_context().run, (run,))
        is_over.wait()
        if failures:
            raise failures[0]
        return results[0]
    except BaseException:
        is_abandoned = True
        if results:
            release(abandon_result)
        raise
    finally:
        failures.clear()  # The traceback of an error refers to this frame.


async def in_thread(function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
    """Call a function in a new thread and await its result, as `asyncio.to_thread` does."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Result] = loop.create_future()
    call = functools.partial(contextvars.copy_context().run, function, *arguments, **named)

    def run() -> None:
        finish: Callable[[], object]
        try:
            finish = functools.partial(outcome.set_result, call())
        except BaseException as error:
            finish = functools.partial(outcome.set_exception, error)
        try:
            loop.call_soon_threadsafe(lambda: None if outcome.done() else finish())
        except RuntimeError:
            pass  # The loop was closed meanwhile.

    try:
        threading.Thread(target=run, daemon=True).start()
    except RuntimeError:
        return call()
    return await outcome


class _Work(Generic[Item]):
    """The remaining items, shared by several threads."""

    def __init__(
        self,
        items: Iterable[Item],
        action: Callable[[Item], object],
        undo: Callable[[Item], object],
    ):
        self.left = collections.deque(enumerate(items))
        self.failures: dict[int, BaseException] = {}
        self.is_interrupted = False
        self._action = action
        self._undo = undo

    def run(self) -> None:
        """Call the function with each remaining item."""
        while True:
            try:
                index, item = self.left.popleft()
            except IndexError:
                return
            try:
                self._action(item)
                if self.is_interrupted:
                    self._undo(item)
            except BaseException as error:
                self.failures[index] = error
                self.left.clear()
