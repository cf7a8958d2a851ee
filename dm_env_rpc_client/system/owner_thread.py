"""A thread to which objects belong: only it calls them, for the threads that need them.

Some objects take calls from one thread alone, such as connections of sqlite3, contexts of OpenGL
and drivers of browsers.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from dm_env_rpc_client.system import forking

_T = TypeVar("_T")


class OwnerThread:
    """A thread that does one call after the other, for any thread that waits for it.

    It starts with the first call, and is a daemon thread.

    Args:
      name: of the thread.
    """

    def __init__(self, name: str):
        self._name = name
        # Guards that no call is queued behind the end.
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._ident: int | None = None
        self._is_over = False
        forking.register(self)

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Has the thread call a function, and waits for it.

        In the thread itself, the function is called at once.

        Args:
          function: the function.
          *arguments: its arguments.

        Returns:
          What it returns.

        Raises:
          RuntimeError: the thread has ended, or it is that of a parent process.
          BaseException: what the function raises.
        """
        if threading.get_ident() == self._ident:
            return function(*arguments)
        call = _Call(function, arguments)
        with self._lock:
            # At the very end of the interpreter daemon threads do not run.
            if self._is_over or sys.is_finalizing():
                raise RuntimeError(f"the thread {self._name!r} has ended")
            if self._ident is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._ident = thread.ident
            self._calls.put(call)
        call.is_done.acquire()
        # The traceback of the error refers to the call, and to this frame.
        error, call.error = call.error, None
        if error is None:
            return call.result  # type: ignore[no-any-return]  # of the function
        try:
            raise error
        finally:
            del error

    def end(self) -> None:
        """Ends the thread after the calls that wait; returns at once."""
        with self._lock:
            if not self._is_over:
                self._is_over = True
                self._calls.put(None)

    def after_fork_in_child(self) -> None:
        """Takes note that there is no such thread; called in a forked child."""
        self._lock = threading.Lock()
        self._ident, self._is_over = None, True

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                self._ident = None  # Another thread may get this number.
                return
            call.run()
            del call  # What it returned belongs to its caller.


class _Call:
    """A call of a function, and what came of it."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]):
        self._function = function
        self._arguments = arguments
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = threading.Lock()
        self.is_done.acquire()

    def run(self) -> None:
        try:
            self.result = self._function(*self._arguments)
        except BaseException as error:
            self.error = error
        finally:
            self.is_done.release()
