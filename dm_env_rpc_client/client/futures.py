"""Request futures that can read answers themselves, and a thread that completes futures."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.system.locks import make_rlock

_log = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0
"""How long, in seconds, the idle futures thread waits for another future before it ends."""

_LOOK_SECONDS = 1.0
"""The interval, in seconds, at which the thread checks its futures even if nothing is read."""


class RequestFuture(concurrent.futures.Future[Any]):
    """The future for the outcome of a request.

    A written request cannot be cancelled, so neither can its future. A thread that calls `result`
    reads until the request has an outcome. `concurrent.futures.wait`, `as_completed` and callbacks
    (hence `asyncio.wrap_future`) do not read: they rely on the futures thread to complete the
    future, as an executor would.

    The base class is initialized on the first such use: creating its lock takes longer than
    creating the rest of a future.

    Args:
      pending: the request, already sent.
      wait: a function that reads until the request has an outcome, or until a timeout in seconds.
      thread: the thread that completes the future if something waits for its completion.
      deliver: a function that `result` calls with the result, to return it; None for none.
    """

    def __init__(
        self,
        pending: Pending,
        wait: Callable[[Pending, float | None], None],
        thread: FuturesThread,
        deliver: Callable[[Any], Any] | None = None,
    ):
        self.pending = pending
        self._deliver = deliver
        self._wait = wait
        self._thread = thread
        self._is_prepared = self._is_awaited = False

    def result(self, timeout: float | None = None) -> Any:
        self._read(timeout)
        result = self.pending.result()
        return result if self._deliver is None else self._deliver(result)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._read(timeout)
        return self.pending.error

    def done(self) -> bool:
        """Read the answers that have arrived, and return whether the outcome is known."""
        if self.pending.outcome is None:
            self._wait(self.pending, 0.0)
        return self.pending.outcome is not None

    def running(self) -> bool:
        """Return whether the outcome is still unknown."""
        return not self.done()

    def cancel(self) -> bool:
        """Return False, because a written request cannot be cancelled."""
        return False

    def cancelled(self) -> bool:
        """Return False, because a request is never cancelled."""
        return False

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[Any]], object]) -> None:
        self._prepare()
        super().add_done_callback(functools.partial(self._thread.call_back, fn))
        self._be_completed()  # Not before: the thread calls it if it has not been answered yet.

    def __hash__(self) -> int:
        # `wait` and `as_completed` drop duplicates: they hash a future before they wait for it,
        # and do nothing else with it that has a public name.
        self._prepare()
        self._be_completed()
        return super().__hash__()

    def __repr__(self) -> str:
        # The base class learns of an outcome only when the future is completed.
        state = "running" if self.pending.outcome is None else "finished"
        error = self.pending.error
        raised = "" if error is None else f", raised {type(error).__name__}"
        return f"<{type(self).__name__} for {self.pending.field}: {state}{raised}>"

    def complete(self) -> None:
        """Deliver the outcome to everything waiting for the future. A second call does nothing."""
        assert self.pending.outcome is not None, "the request is still pending"
        result, error = self.pending.outcome
        try:
            if error is None:
                self.set_result(result)
            else:
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass

    def after_fork_in_child(self) -> None:
        """Complete the future in a forked child, leaving callbacks and waiters to the parent."""
        super().__init__()  # A thread of the parent may have held the lock.
        self.complete()

    def _prepare(self) -> None:
        if not self._is_prepared:
            # The base class has a lock and a Condition, which cost more than a request: made on
            # demand.
            with self._thread.changing:
                if not self._is_prepared:
                    super().__init__()
                    self.set_running_or_notify_cancel()
                    self._is_prepared = True

    def _be_completed(self) -> None:
        if not self._is_awaited:
            if self.pending.outcome is None:
                self._thread.add(self)
            else:
                self.complete()
            self._is_awaited = True  # Not before: an interrupt may come.

    def _read(self, timeout: float | None) -> None:
        if self.pending.outcome is None:
            self._wait(self.pending, timeout)
            if self.pending.outcome is None:
                raise concurrent.futures.TimeoutError


class FuturesThread:
    """The daemon thread that completes futures for which no other thread is reading.

    It also calls their callbacks. It reads while no other thread reads or waits. It starts on
    demand and ends after a second without work.

    Args:
      name: the name of the thread.
      read: a method that reads an answer until a given time, unless another thread reads or waits,
        and returns whether it read. If not, `wake` is called when it is this thread's turn. The
        thread keeps the method's object alive only while a future needs it.

    Attributes:
      changing: a lock that is held while a future's base class is initialized, and while the
        thread receives a future, starts or ends.
      wake: a function that wakes the thread to check its work, and refers only to its queue.
    """

    def __init__(self, name: str, read: weakref.WeakMethod[Callable[[float], bool]]):
        self._name = name
        self._read = read
        self._thread: threading.Thread | None = None
        self._ident: int | None = None
        # Reentrant: a signal handler may use another future in the thread that holds it.
        self.changing = make_rlock()
        self._is_over = False
        self._futures: dict[int, RequestFuture] = {}
        # Futures with an outcome; None only wakes the thread.
        self._answered: queue.SimpleQueue[RequestFuture | None] = queue.SimpleQueue()
        self.wake: Callable[[], None] = functools.partial(self._answered.put, None)
        # Time of the next check of the futures: a deadline, or at most a second away.
        self._look_at = math.inf

    def add(self, future: RequestFuture) -> None:
        """Make the thread complete a future as soon as it has an outcome."""
        pending = future.pending
        with self.changing:
            self._futures[id(future)] = future
            self._look_at = min(self._look_at, _next_look(pending))
            pending.waiters.append(functools.partial(self._answered.put, future))
            # The waiters may have been called before this one was added.
            self._answered.put(None if pending.outcome is None else future)
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                # Not before: `join` joins it.
                self._thread = thread

    def call_back(
        self,
        callback: Callable[[concurrent.futures.Future[Any]], object],
        future: concurrent.futures.Future[Any],
    ) -> None:
        """Call a callback and log its exceptions, so that other callbacks still run."""
        try:
            callback(future)
        except BaseException:
            if threading.get_ident() != self._ident:
                raise  # The future had its outcome when the callback was added.
            _log.exception("the callback %r of a future failed", callback)

    def end(self) -> None:
        """Tell the thread to end, because no more answers will arrive."""
        self._is_over = True
        self.wake()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, or return at once if called by the thread itself."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def after_fork_in_child(self, fail: Callable[[Pending], None]) -> None:
        """Fail and complete the futures in a forked child, where the thread does not exist.

        Args:
          fail: a function that makes a request fail unless it already has an outcome.
        """
        self.changing = make_rlock()
        for future in self._futures.values():
            fail(future.pending)
            future.after_fork_in_child()
        self._futures.clear()

    def _serve(self) -> None:
        self._ident = threading.get_ident()
        while True:
            future, is_idle = None, False
            left = self._look_at - time.monotonic()
            if left <= 0:
                self._look()
            elif not self._reads():
                try:
                    future = self._answered.get(timeout=min(left, _LINGER_SECONDS))
                except queue.Empty:
                    is_idle = True
            if future is not None:
                future.complete()
                self._futures.pop(id(future), None)
            if (is_idle or self._is_over) and not self._futures:
                with self.changing:
                    if not self._futures and self._answered.empty():
                        self._thread = None
                        return

    def _reads(self) -> bool:
        """Read an answer if a future is waiting and it is this thread's turn to read."""
        read = self._read() if self._futures and self._answered.empty() else None
        try:
            return read is not None and read(self._look_at)
        except Exception:
            return False  # The futures have the error.

    def _look(self) -> None:
        """Time out late requests and deliver outstanding outcomes.

        An interrupt may have stopped a thread between setting an outcome and waking its waiters.
        """
        for future in list(self._futures.values()):
            try:
                if future.done():
                    self._answered.put(future)
            except Exception:
                pass  # The future has the error.
        with self.changing:
            pendings = [future.pending for future in self._futures.values()]
            looks = [_next_look(each) for each in pendings if each.outcome is None]
            self._look_at = min(looks, default=math.inf)


def _next_look(pending: Pending) -> float:
    look = time.monotonic() + _LOOK_SECONDS
    return look if pending.deadline is None else min(look, pending.deadline)
