"""Threads that own objects and call their methods on behalf of all other threads.

Some objects, such as sqlite3 connections, OpenGL contexts and browser drivers, accept calls from
only one thread.

An owner never waits for another owner, a client or another process, because such a wait could end
in a deadlock. Only threads that own nothing do work that has to wait; `require_no_owner` enforces
this.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.locks import make_lock, make_rlock
from dm_env_rpc_client.system.waiting import PART_SECONDS, later_signals

_T = TypeVar("_T")


class OwnerGoneError(RuntimeError):
    """The owner's thread has ended, or exists only in a parent process."""


class ElsewhereError(Exception):
    """A blocking call was refused in an owner's thread and must be repeated in another thread."""


class Owner:
    """A thread that makes calls one by one on behalf of other threads.

    Args:
      name: the description of the thread in error messages and thread names.

    Attributes:
      name: the same as the argument.
      holds: the number of objects that the thread owns, plus one while it leads. Only the thread
        changes this number, or the creator of the thread before the first call.
      slow: the streams of the owner's worlds that answer slowly. Only the thread changes this set.
      may_lead: whether the thread may do other work until a bell rings.
    """

    may_lead = True

    def __init__(self, name: str):
        self.name = name
        self.holds = 0
        self.slow: set[Any] = set()
        # Protects the attributes below, and prevents calls from being queued after the end.
        # Reentrant: the garbage collector may end an owner in the middle of a call to it.
        self._lock = make_rlock()
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._ident: int | None = None
        self._is_over = False
        self._bell: Callable[[], None] | None = None
        forking.register(self, Owner.after_fork_in_child)

    @property
    def is_here(self) -> bool:
        """Whether the current thread is the owner's thread."""
        return threading.get_ident() == self._ident

    @property
    def leads(self) -> bool:
        """Whether a bell currently announces calls to this owner (see `listening`)."""
        return self._bell is not None

    @property
    def is_quick(self) -> bool:
        """Whether this owner is allowed to lead, and owns at least one object but no slow ones."""
        return self.holds > 0 and not self.slow and self.may_lead

    def is_to_lead(self, leading: Owner) -> bool:
        """Whether the leading owner has only one object and should be replaced by this owner.

        With the right leader, most requests need no change of threads.
        """
        return self is not leading and leading.holds == 1 and self.is_quick

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Make the owner's thread call a function, and wait for the result.

        In the owner's thread, the function is called immediately.

        Args:
          function: the function.
          *arguments: its arguments.

        Returns:
          The function's result.

        Raises:
          OwnerGoneError: the thread has ended, or belongs to a parent process.
          BaseException: the function's error.
        """
        if threading.get_ident() == self._ident:
            return function(*arguments)
        call = Call(function, arguments)
        self._put(call)
        return call.result()  # type: ignore[no-any-return]  # of the function

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Make the owner's thread call a function, without waiting for the result.

        In the owner's thread, the function is called immediately.

        Raises:
          OwnerGoneError: as `call`.
        """
        call = Call(function, arguments, threading.Event())
        if self.is_here:
            call.run()
        else:
            self._put(call)
        return call

    def put(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Queue a call after the owner's pending calls, even from within the owner's thread.

        Args:
          function: a function that handles its own exceptions.
          *arguments: its arguments.

        Raises:
          OwnerGoneError: as `call`.
          RuntimeError: the thread cannot be started.
        """
        self._put(Call(function, arguments))

    def hold(self) -> None:
        """Increment the number of objects held by this owner."""
        self.holds += 1

    def release(self) -> None:
        """Decrement the number of objects held. This must be called in the owner's thread."""
        self.holds -= 1

    def end(self) -> None:
        """Make the owner's thread end after its queued calls, without waiting until it ends."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._calls.put(None)
                bell = self._bell
            else:
                bell = None
        if bell is not None:
            bell()

    @contextlib.contextmanager
    def listening(self, bell: Callable[[], None]) -> Iterator[None]:
        """Return a context in which the owner's thread does other work until a bell rings.

        The thread must call `run_waiting` at the beginning and whenever the bell rings.

        Args:
          bell: a function called, in any thread, after a call has been queued.
        """
        with self._lock:
            self._bell = bell
        self.holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._bell = None
            self.release()

    def run_waiting(self, run: Callable[[Callable[[], None]], None]) -> None:
        """Run the queued calls while the thread is `listening`.

        Args:
          run: a function that receives each call. If it raises an exception, the remaining calls
            stay in the queue.
        """
        while True:
            try:
                call = self._calls.get_nowait()
            except queue.Empty:
                return
            if call is None:
                self._calls.put(None)  # Ends the thread after its other work.
                return
            run(call.run)

    def after_fork_in_child(self) -> None:
        """Record in a forked child that the owner's thread does not exist there."""
        self._lock = make_rlock()
        self._ident, self._is_over, self._bell = None, True, None
        _local.owner = None

    def _put(self, call: Call) -> None:
        with self._lock:
            # At the very end of the interpreter daemon threads do not run.
            if self._is_over or sys.is_finalizing():
                raise OwnerGoneError(f"the thread {self.name!r} has ended")
            if self._ident is None:
                self._start()
            self._calls.put(call)
            bell = self._bell
        if bell is not None:
            bell()

    def _start(self) -> None:
        """Start the owner's thread if necessary. The caller must hold the lock."""

    @contextlib.contextmanager
    def _being_current(self) -> Iterator[None]:
        """Return a context in which `current` returns this owner."""
        former, _local.owner = _local.owner, self
        try:
            yield
        finally:
            _local.owner = former


class OwnerThread(Owner):
    """An owner with its own daemon thread, which starts at the first call.

    The thread ends when it no longer owns anything and no call is queued, because a queued call
    can create another object.
    """

    def __init__(self, name: str):
        super().__init__(name)
        self._is_released = False

    def release(self) -> None:
        super().release()
        if not self.holds:
            self._is_released = True
            self._end_if_free()

    def _end_if_free(self) -> None:
        with self._lock:
            if not self.holds and self._calls.empty():
                self.end()

    def _work(self) -> None:
        with self._being_current():
            while True:
                call = self._calls.get()
                if call is None:
                    break
                call.run()
                if self._is_released:
                    self._end_if_free()
                del call  # What it returned belongs to its caller.
        self._ident = None  # Another thread may get this number.

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        thread.start()
        self._ident = thread.ident


class MainOwner(Owner):
    """An owner that uses an existing thread, such as the main one, while that thread waits.

    The first waiting thread becomes the owner, and remains the owner as long as it owns anything.
    """

    may_lead = False

    def claim(self) -> None:
        """Make the current thread the owner's thread.

        Raises:
          RuntimeError: another thread is the owner and still owns objects.
        """
        with self._lock:
            me = threading.get_ident()
            if self._ident not in (None, me) and self.holds:
                raise RuntimeError(
                    f"{self.name} belong to the thread that waited first; wait in that thread "
                    "instead"
                )
            self._ident = me

    @contextlib.contextmanager
    def lent_here(self) -> Iterator[None]:
        """Return a context in which the current thread temporarily replaces the owner's thread."""
        former, self._ident = self._ident, threading.get_ident()
        try:
            yield
        finally:
            self._ident = former

    def work_until(self, is_over: Callable[[], bool], timeout: float | None = None) -> bool:
        """Make the current thread the owner's thread and run its queued calls.

        A signal during a call is handled after the call, but a second signal is handled at once.

        Args:
          is_over: a function that returns whether to stop. A call of `wake` makes the thread check
            it again.
          timeout: the time limit, in seconds, or None for no limit.

        Returns:
          Whether it is over.

        Raises:
          RuntimeError: as `claim`.
        """
        self.claim()
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._being_current():
            while True:
                if is_over():
                    break
                left = PART_SECONDS
                if deadline is not None:
                    left = min(left, max(0.0, deadline - time.monotonic()))
                try:
                    call = self._calls.get(timeout=left)
                except queue.Empty:
                    if deadline is not None and time.monotonic() >= deadline:
                        return is_over()
                    continue
                if call is None:
                    return True
                with later_signals():
                    call.run()
                del call  # What it returned belongs to its caller.
        return True

    def wake(self) -> None:
        """Wake `work_until` so that it checks its end condition."""
        with contextlib.suppress(OwnerGoneError):
            self.put(_nothing)

    def aside(self, function: Callable[[], _T]) -> _T:
        """Call a function that needs this owner but must not run in its thread.

        If the current thread is the owner, or no thread is the owner yet, another thread calls the
        function while the current thread makes the owner's calls.
        """
        if self._ident is not None and not self.is_here:
            return function()
        call = Call(function, ())
        threading.Thread(target=self._aside, args=(call,), name=self.name, daemon=True).start()
        self.work_until(call.is_over)
        return call.result()  # type: ignore[no-any-return]  # of the function

    def _aside(self, call: Call) -> None:
        call.run()
        self.wake()


class Call:
    """A function call and its outcome.

    Args:
      function: the function.
      arguments: its arguments.
      has_begun: an event that is set when the thread reaches the call, or None if no thread waits
        for the event.
    """

    __slots__ = (
        "_arguments", "_error", "_function", "_has_begun", "_is_done", "_is_taken", "_result",
    )  # fmt: skip

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        has_begun: threading.Event | None = None,
    ):
        self._function = function
        self._arguments = arguments
        self._has_begun = has_begun
        # By the thread that makes the call, or that takes it back.
        self._is_taken = None if has_begun is None else make_lock()
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done = make_lock()
        self._is_done.acquire()

    def run(self) -> None:
        """Make the call and store its outcome."""
        if self._has_begun is not None and self._is_taken is not None:
            if not self._is_taken.acquire(blocking=False):
                return
            self._has_begun.set()
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:
            self._error = error
        finally:
            self._is_done.release()

    def is_over(self) -> bool:
        """Whether the call has finished."""
        return not self._is_done.locked()

    def wait_begun(self, seconds: float) -> bool:
        """Wait up to `seconds` for a call from `Owner.begin` to begin; return whether it has."""
        assert self._has_begun is not None, "made by `begin`"
        return self._has_begun.wait(seconds)

    def take_back(self) -> bool:
        """Cancel a call queued by `Owner.begin`, or return False if the call has already begun."""
        assert self._is_taken is not None, "made by `begin`"
        return self._is_taken.acquire(blocking=False)

    def result(self) -> Any:
        """Wait until the call ends, and return its result or raise its error.

        Call this only once.
        """
        self._is_done.acquire()
        # The traceback of the error refers to the call, and to this frame.
        error, self._error = self._error, None
        if error is None:
            return self._result
        try:
            raise error
        finally:
            del error


class _Local(threading.local):
    owner: Owner | None = None


_local = _Local()


def current() -> Owner | None:
    """Return the owner of the current thread, or None if the thread has no owner."""
    return _local.owner


def require_no_owner() -> None:
    """Raise ElsewhereError in an owner's thread before a wait that would block the thread."""
    if _local.owner is not None:
        raise ElsewhereError


def _nothing() -> None:
    pass
