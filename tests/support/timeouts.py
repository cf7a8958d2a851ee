"""A test that takes too long fails alone, and every failure is printed.

A plugin of pytest, which `tests/conftest.py` registers. It takes the place of the timer of
pytest-timeout, which raises wherever the main thread is: in a hook of pytest or of a plugin, that
ends the whole run with an INTERNALERROR. Nor does that know how busy the machine is: where ten
programs share a processor, what takes 20 seconds takes 200, and is no test that hangs.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest
from _pytest import fixtures, python

from tests.support.stopwatch import patience

AGAIN_SECONDS = 20.0
"""When it is raised once more, because something has swallowed it."""

_RETRY_SECONDS = 0.05

_STDERR = pytest.StashKey[int]()
"""A descriptor of the standard error of pytest itself."""

_OWN_CODE = frozenset(
    function.__code__
    for function in (
        python.pytest_pyfunc_call,
        fixtures.call_fixture_func,
        fixtures._teardown_yield_fixture,
    )
)
"""What calls the functions of tests and of fixtures. What those raise is a failure of the test."""


class OverdueError(BaseException):
    """A test takes too long. No Exception, which hypothesis would run again and make smaller."""


def _end_process_after(item: pytest.Item, seconds: float) -> None:
    """Ends the process if nothing else can end the test, with all threads' tracebacks."""
    faulthandler.dump_traceback_later(2 * seconds + 30, exit=True, file=item.config.stash[_STDERR])


def _is_in_own_code(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code in _OWN_CODE:
            return True
        frame = frame.f_back
    return False


@pytest.hookimpl
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Raises in the test or its fixtures; while pytest itself is at work, a little later."""
    begun = time.monotonic()

    def late(number: int, frame: FrameType | None) -> None:
        left = patience(settings.timeout) - (time.monotonic() - begun)
        if left > _RETRY_SECONDS:
            _end_process_after(item, left)
            signal.setitimer(signal.ITIMER_REAL, left)
            return
        if not _is_in_own_code(frame):
            signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
            return
        again = min(AGAIN_SECONDS, settings.timeout)
        signal.setitimer(signal.ITIMER_REAL, again, again)
        faulthandler.dump_traceback(2)  # Of all threads; pytest shows it with the failure.
        raise OverdueError(f"the test took longer than {settings.timeout} s")

    def cancel() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Has the process end if a test cannot be ended, as one that hangs in C code."""
    marker = item.get_closest_marker("timeout")
    seconds = float(marker.args[0]) if marker else float(item.config.getini("timeout"))
    if seconds:
        _end_process_after(item, seconds)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, sched: Any) -> None:
    """Has a test that has ended its process of the run count as done.

    The scheduler of `--dist=loadfile` would begin its file with it again in the next process, and
    end the run when eight have crashed.
    """
    for scope, unit in list(sched.workqueue.items()):
        if crashitem in unit:
            unit[crashitem] = True
            if all(unit.values()):
                del sched.workqueue[scope]


class Failures:
    """Names a failed test and its error at once: a run that is ended from outside has no summary.

    Nor has one that ends with an INTERNALERROR: the failures are printed then all the same.
    """

    def __init__(self, reporter: pytest.TerminalReporter):
        self._reporter = reporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._reporter.verbosity <= 0:
            self._reporter.ensure_newline()
            crash = getattr(report.longrepr, "reprcrash", None)
            # Of a process that has crashed there is a text.
            said = crash.message if crash else str(report.longrepr or "")
            why = f": {said.partition(chr(10))[0]}" if said else ""
            self._reporter.write_line(f"FAILED {report.nodeid} ({report.when}){why}", red=True)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            self._reporter.summary_errors()
            self._reporter.summary_failures()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_STDERR] = os.dup(2)  # Not captured yet.


def pytest_sessionstart(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    if reporter and not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(Failures(reporter))
