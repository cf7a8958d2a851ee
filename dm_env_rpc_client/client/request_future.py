"""The future of a request, which reads answers itself, and the thread that reads for callbacks."""

from __future__ import annotations

import collections
import concurrent.futures
import functools
import logging
import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.system.locks import make_lock, make_rlock

__all__ = ["FuturesThread", "RequestFuture"]

_log = logging.getLogger(__name__)

_LINGER_SECONDS = 1.0
"""How long the thread of the futures waits for more of them."""


class Reader(Protocol):
    """What reads the answers: a `ThreadedPipeline`."""

    futures: FuturesThread

    def wait(self, pending: Pending) -> Any:
        """Returns or raises the outcome of a request that was started."""

    def wait_for_future(self, pending: Pending, timeout: float | None) -> None:
        """Returns when the outcome is known, or after `timeout` seconds."""


class RequestFuture(concurrent.futures.Future[Any]):
    """The future of a request.

    A request that was written cannot be cancelled, so the future cannot either. Whoever asks for
    the outcome reads until it is there.

    Most futures are only asked for their result, which needs nothing of the base class. What it has
    for others is made when it is first looked for: a lock takes longer than the rest of a future.
    """

    def __init__(self, reader: Reader, pending: Pending):
        self._reader = reader
        self._pending = pending
        self._is_read_for = False
        self._is_prepared = False

    def __getattr__(self, name: str) -> Any:
        # Attributes of the base class; also `concurrent.futures.wait` and `as_completed` use them.
        if name not in _OF_BASE:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with self._reader.futures.preparing:
            if not self._is_prepared:
                super().__init__()
                self.set_running_or_notify_cancel()
                self._waiters: list[Any] = _Waiters(self)
                self._pending.waiters.append(self.resolve)
                self._is_prepared = True
        if self._pending.outcome is not None:
            self.resolve()
        return self.__dict__[name]

    def result(self, timeout: float | None = None) -> Any:
        self._read(timeout)
        return self._pending.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._read(timeout)
        return self._pending.error

    def done(self) -> bool:
        """Whether the outcome is known; reads the answers that have arrived."""
        if self._pending.outcome is None:
            self._reader.wait_for_future(self._pending, 0.0)
        return self._pending.outcome is not None

    def running(self) -> bool:
        """Whether the outcome is not known yet."""
        return not self.done()

    def add_done_callback(self, fn: Callable[[concurrent.futures.Future[Any]], object]) -> None:
        super().add_done_callback(fn)
        self.be_read_for()

    def be_read_for(self) -> None:
        """Has a thread read until the outcome is known, since nobody waits for it."""
        if self._pending.outcome is not None:
            self.resolve()
        elif not self._is_read_for:
            self._is_read_for = True
            self._reader.futures.run(functools.partial(self._reader.wait, self._pending))

    def resolve(self) -> None:
        """Takes the outcome of the request; a second call does nothing."""
        if super().done():
            return
        try:
            try:
                result = self._pending.result()
            except BaseException as error:
                self.set_exception(error)
            else:
                self.set_result(result)
        except concurrent.futures.InvalidStateError:
            pass

    def call_callbacks(self) -> None:
        """Calls the callbacks. What one raises ends neither the others nor the connection."""
        while self._done_callbacks:
            callback = self._done_callbacks.pop(0)
            try:
                callback(self)
            except BaseException:
                _log.exception("the callback %r of a future failed", callback)

    def after_fork_in_child(self) -> None:
        """Leaves callbacks and waiting threads to the parent; they do not exist here."""
        self._condition = threading.Condition()
        self._done_callbacks: list[Callable[[concurrent.futures.Future[Any]], object]] = []
        self._waiters = []

    def _read(self, timeout: float | None) -> None:
        if self._pending.outcome is None:
            self._reader.wait_for_future(self._pending, timeout)
            if self._pending.outcome is None:
                raise concurrent.futures.TimeoutError

    def _invoke_callbacks(self) -> None:
        # The base class would call them here, in the thread that reads.
        if self._done_callbacks:
            self._reader.futures.call_back(self)


_OF_BASE = frozenset(vars(concurrent.futures.Future()))


class _Waiters(list[Any]):
    """Those who wait for a future in a way that does not read."""

    def __init__(self, future: RequestFuture):
        super().__init__()
        self._future = future

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self._future.be_read_for()


class FuturesThread:
    """The daemon thread that reads for futures with callbacks, and calls these.

    It is started when it is needed and ends when it has had nothing to do for a second.

    Args:
      name: of the thread.

    Attributes:
      preparing: held while what a future has of its base class is made.
      wake: has the thread look whether it may end; refers to nothing but the thread's queue.
    """

    def __init__(self, name: str):
        # One thread may come twice: what a signal handler asks of another future.
        self.preparing = make_rlock()
        self._name = name
        self._thread: threading.Thread | None = None
        self._starting = make_lock()
        self._is_over = False
        # What waits for a request; None only wakes the thread.
        self._waits: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.wake: Callable[[], None] = functools.partial(self._waits.put, None)
        # Futures whose callbacks it is to call.
        self._resolved: collections.deque[RequestFuture] = collections.deque()

    def run(self, wait: Callable[[], object]) -> None:
        """Has the thread wait for a request that nobody waits for."""
        self._waits.put(wait)
        self._have_thread()

    def call_back(self, future: RequestFuture) -> None:
        """Has the thread call the callbacks of a future."""
        self._resolved.append(future)
        self._waits.put(None)
        self._have_thread()

    def end(self) -> None:
        """Has the thread end: no request will get an answer any more."""
        self._is_over = True
        self.wake()

    def join(self, timeout: float) -> None:
        """Waits for the thread to end, unless it is the one that calls."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _have_thread(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                thread.start()
                # Not before: `join` joins it.
                self._thread = thread

    def _serve(self) -> None:
        while True:
            wait = None
            try:
                wait = self._waits.get(timeout=_LINGER_SECONDS)
                is_idle = self._is_over
            except queue.Empty:
                is_idle = True
            if wait is not None:
                try:
                    wait()
                except Exception:
                    pass  # The future has the error.
            while self._resolved:
                self._resolved.popleft().call_callbacks()
            if is_idle:
                with self._starting:
                    if self._waits.empty():
                        self._thread = None
                        return
