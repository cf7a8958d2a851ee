"""When and where worlds end that nobody has left: environments that were not closed.

An environment may be freed in any thread, in the middle of any code, whatever locks that code
holds. So a thread of its own talks to the server, and the exit of the interpreter waits for it.
Environments that exist at the exit are ended there, one after the other.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import threading
import time
from collections.abc import Callable

from dm_env_rpc_client.system.locks import make_lock

__all__ = ["EXIT_SECONDS", "at_exit", "in_background"]

_log = logging.getLogger(__name__)

EXIT_SECONDS = 1.0
"""How long the exit of the interpreter is delayed before it goes on without the rest."""


class _Exit:
    """The exit of the interpreter, whose time all environments share."""

    deadline: float | None = None

    @classmethod
    def remaining(cls) -> float:
        if cls.deadline is None:
            cls.deadline = time.monotonic() + EXIT_SECONDS
        return max(0.0, cls.deadline - time.monotonic())


_is_first_at_exit = False

# Locked until what runs in the background is done; with the process that it belongs to.
_running: dict[threading.Lock, int] = {}


def in_background(action: Callable[[], None]) -> None:
    """Calls a function in a thread of its own. Raises nothing.

    Args:
      action: takes a limited time.
    """
    global _is_first_at_exit
    if not _is_first_at_exit:
        # Called before everything that was registered earlier, so before the finalizers of
        # `weakref`, which end the connections that threads of ours use.
        _is_first_at_exit = True
        atexit.register(_wait_for_background)
    done = make_lock()
    done.acquire()
    _running[done] = os.getpid()

    def run() -> None:
        try:
            _guarded(action)
        finally:
            _running.pop(done, None)
            done.release()

    try:
        # Not a `threading.Thread`: this may be the middle of code that holds a lock of that module.
        _thread.start_new_thread(run, ())
    except RuntimeError:
        run()  # The interpreter exits and starts no more threads.


def at_exit(action: Callable[[], None]) -> None:
    """Calls a function, unless others have used up the time at the exit. Raises nothing.

    Args:
      action: takes a limited time.
    """
    if _Exit.remaining() > 0:
        try:
            _guarded(action)
        except BaseException:
            _Exit.deadline = 0.0  # Ctrl-C: the user does not want to wait.


def _guarded(action: Callable[[], None]) -> None:
    try:
        action()
    except Exception:
        _log.warning("could not end an environment that was not closed", exc_info=True)


def _wait_for_background() -> None:
    try:
        for done in (done for done, pid in list(_running.items()) if pid == os.getpid()):
            done.acquire(timeout=_Exit.remaining())
    except KeyboardInterrupt:
        _Exit.deadline = 0.0


# Called after the finalizers, some of which call `in_background`.
atexit.register(_wait_for_background)
