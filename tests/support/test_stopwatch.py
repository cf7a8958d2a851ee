"""Only a machine that is busy makes a bound wider, and only by as much as it is."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dm_env_rpc_client.system.polling import processors
from tests.reliability.scorecard import FULL, MODE
from tests.support import stopwatch
from tests.support.stopwatch import Stopwatch, ends_within, time_limit


def held(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """From now on, timers have been so much later in all."""
    before = stopwatch._late()
    monkeypatch.setattr(stopwatch, "_late", lambda: before + seconds)


def test_what_takes_too_long_fails() -> None:
    def take_too_long() -> None:
        with time_limit(0.01) as stopwatch:
            while stopwatch.within(0.01):
                time.sleep(0.01)  # Time passes, of which the test is.

    with pytest.raises(AssertionError, match=r"at most 0.01 s are allowed"):
        take_too_long()


def test_what_a_timer_was_late_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with time_limit(0.001):
        time.sleep(0.01)  # Longer than the limit.
        held(monkeypatch, 60.0)


def test_what_was_late_before_is_not_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    held(monkeypatch, 60.0)
    assert Stopwatch().allowance == 0.0


def test_the_scorecard_allows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE, FULL)
    it = Stopwatch()
    held(monkeypatch, 60.0)
    assert it.allowance == 0.0


def test_a_sleeper_that_does_not_get_the_processor_is_late() -> None:
    it = Stopwatch()
    (child,) = sleepers()
    os.kill(child, 19)  # SIGSTOP: as if it waited for the processor.
    try:
        time.sleep(0.5)  # So much later is the one that is stopped.
        assert it.allowance >= 0.4
    finally:
        os.kill(child, 18)
    assert it.allowance >= 0.4  # Before it has told so itself, and after.


def test_what_a_process_waits_for_a_processor_is_allowed_where_it_is_timed() -> None:
    on_one = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(flush=True)"
    with contextlib.ExitStack() as stack:
        for _ in range(3):
            other = stack.enter_context(started(f"{on_one}\nwhile True: pass"))
            stack.callback(other.kill)
        one = stack.enter_context(started(f"{on_one}\ninput()\nfor _ in range(10**7): pass"))
        it = Stopwatch(one.pid)
        with ends_within(20, one):
            assert one.stdin is not None
            one.stdin.write(b"\n")
            one.stdin.flush()
        waited = stopwatch._waited(one.pid)
        assert 0.0 < waited - it._before[1] <= it.allowance
        with pytest.raises(AssertionError, match="at most -1 s are allowed"), ends_within(-1, one):
            pass  # It has ended.
        assert one.wait() == 0


def started(program: str) -> subprocess.Popen[bytes]:
    """Starts a program, which prints a line when it is there."""
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_what_the_sleeper_tells_is_read_whole() -> None:
    """Half a time was read as no time, and then a limit was exceeded at once, or never."""
    told, process = stopwatch._start_sleeper(0.0, os.getpid())
    try:
        last_due, last_late, reads, writes = 0.0, 0.0, 0, 0
        # On one processor few of the reads have a write between them.
        while reads < 100_000 or writes < 20:
            due, late = stopwatch._read(told)
            assert due >= last_due
            assert late >= last_late
            reads += 1
            writes += due > last_due
            last_due, last_late = due, late
    finally:
        stopwatch._end(process, os.getpid())


@pytest.mark.parametrize(("load", "times"), [(0.5, 1.0), (2.0, 1.0), (6.0, 3.0), (1000.0, 10.0)])
def test_patience_grows_with_the_programs_that_want_the_processors(
    monkeypatch: pytest.MonkeyPatch, load: float, times: float
) -> None:
    per_processor = load * processors()
    monkeypatch.setattr(os, "getloadavg", lambda: (per_processor, 0.0, 0.0))
    assert stopwatch.patience(4.0) == 4.0 * times
    monkeypatch.setenv(MODE, FULL)
    assert stopwatch.patience(4.0) == 4.0


def sleepers() -> list[int]:
    own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
    with open(own) as children:
        pids = [int(pid) for pid in children.read().split()]
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # It has ended meanwhile.
            if stopwatch._SLEEPER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found
