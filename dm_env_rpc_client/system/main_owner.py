"""An owner that is the main thread, or whichever thread waits."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

from dm_env_rpc_client.system.owners import Call, Owner, OwnerGoneError
from dm_env_rpc_client.system.waiting import PART_SECONDS

_T = TypeVar("_T")


class MainOwner(Owner):
    """An owner that is a thread which exists already, such as the main one, while that waits.

    It is the first thread that waits, and no other as long as anything belongs to it.
    """

    may_lead = False

    def claim(self) -> None:
        """Makes this thread the owner.

        Raises:
          RuntimeError: something belongs to another thread.
        """
        with self._lock:
            me = threading.get_ident()
            if self._ident not in (None, me) and self.holds:
                raise RuntimeError(
                    f"{self.name} belong to the thread that waited first, and this is another one"
                )
            self._ident = me

    @contextlib.contextmanager
    def lent_here(self) -> Iterator[None]:
        """A context in which this thread is the owner, whichever is it afterwards."""
        former, self._ident = self._ident, threading.get_ident()
        try:
            yield
        finally:
            self._ident = former

    def work_until(self, is_over: Callable[[], bool], timeout: float | None = None) -> bool:
        """Does calls in this thread, which becomes the owner.

        A signal that comes during a call is taken note of, and handled after it; a second one
        at once.

        Args:
          is_over: whether there is no need to go on; looked at when `wake` was called.
          timeout: seconds; None for no limit.

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
                with _later_signals():
                    call.run()
                del call  # What it returned belongs to its caller.
        return True

    def wake(self) -> None:
        """Has `work_until` look whether it is over."""
        with contextlib.suppress(OwnerGoneError):
            self.put(_nothing)

    def aside(self, function: Callable[[], _T]) -> _T:
        """Calls a function that needs this owner, and is no part of it.

        If this thread is the owner, or there is none yet, another thread calls the function, and
        this one does meanwhile what it asks.
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


def _nothing() -> None:
    pass


_SIGNALS = [signal.SIGINT, signal.SIGTERM] + [signal.SIGHUP] * hasattr(signal, "SIGHUP")


@contextlib.contextmanager
def _later_signals() -> Iterator[None]:
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
