"""Forked children that report what they saw, and end without running pytest's exit handlers."""

from __future__ import annotations

import gc
import os
import signal
import traceback
import warnings
from collections.abc import Callable


class Child:
    """A forked child that runs `act`, whose text comes back in `result`.

    Within pytest, call `gc.collect()` before the test sends its requests: a child that frees
    objects of grpcio, left by earlier tests, waits forever. Collecting them here would take so long
    that pending requests are answered before the fork.
    """

    def __init__(self, act: Callable[[], str]):
        self._from_child, to_parent = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of forks of processes with threads; that is what is tried here.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if self._pid:
            os.close(to_parent)
            return
        os.close(self._from_child)
        code = 1
        try:
            text = act()
            gc.collect()
            os.write(to_parent, text.encode()[:4000])
            code = 0
        except BaseException:
            os.write(to_parent, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(code)

    def result(self) -> str:
        """Waits for the child; fails if it raised."""
        try:
            with os.fdopen(self._from_child, "rb") as pipe:
                text = pipe.read().decode()
        except BaseException:  # The time of the test is over.
            os.kill(self._pid, signal.SIGABRT)  # Its faulthandler shows where it hangs.
            raise
        finally:
            _, status = os.waitpid(self._pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0, text
        return text
