"""How long something takes, and how late a plain timer is meanwhile.

A bound such as "within 1 s" is about the package, and not about other programs that have the
processors. So a process beside the tests does nothing but sleep, and adds up how much later than
asked for it wakes. That much more is allowed, and in the scorecard's full mode nothing.

What computes is delayed by more than what sleeps. Of one process the system tells how long it has
waited for a processor: `ends_within`. Where only whether something happens is asked, and not when,
the time after which a test gives up is `patience`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import mmap
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dm_env_rpc_client.system.polling import processors
from tests.reliability.scorecard import is_strict

_USUAL_LOAD = 2.0
"""How many programs per processor want to run, at most, while only the tests do. See
`pytest_xdist_auto_num_workers`."""

_LONGEST = 10.0
"""However busy the machine is, what never happens is given up."""

_TELLS_WAITS = sys.platform == "linux"
_PERIOD = 0.01
_THREE = struct.Struct("ddd")

# In another process, since a thread would also be late where the package keeps the interpreter.
_SLEEPER = """
import mmap, os, struct, sys, time
one, period = struct.Struct("d"), float(sys.argv[2])
with open(sys.argv[1], "r+b") as file:
    told = mmap.mmap(file.fileno(), 3 * one.size)
late, parent = 0.0, int(sys.argv[3])
while os.getppid() == parent:
    due = time.monotonic() + period
    # From the last to the first, since it is read from the first to the last. Written at once, they
    # come in an order that nothing promises.
    for place, value in ((2, due), (1, late), (0, due)):
        one.pack_into(told, place * one.size, value)
    time.sleep(period)  # How late it ends is what is measured.
    late += time.monotonic() - due
"""


@functools.cache
def _sleeper(owner: int) -> mmap.mmap:
    """Starts the process that sleeps, and returns where it tells its times, for one owner."""
    told, process = _start_sleeper(_PERIOD, owner)
    atexit.register(_end, process, owner)
    return told


def _start_sleeper(period: float, owner: int) -> tuple[mmap.mmap, subprocess.Popen[bytes]]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(_THREE.size))
        file.flush()
        told = mmap.mmap(file.fileno(), _THREE.size)
        command = [sys.executable, "-I", "-S", "-c", _SLEEPER, file.name, str(period), str(owner)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        _read(told)
    return told, process


def _read(told: mmap.mmap) -> tuple[float, float]:
    """Returns when the sleeper is to wake next, and how late it has been in all.

    While it writes, there are zeros in between, or a part of what it told before. The time when
    it wakes is written before and after the other, and is always another one.
    """
    while True:
        due, late, again = _THREE.unpack_from(told)
        if due and due == again:
            return due, late
        time.sleep(0)  # It goes on to write, or starts; nothing tells.


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() == owner:
        process.kill()
        process.wait()


def _late() -> float:
    """How late it has been in all, in seconds, with the time for which it is late just now."""
    due, late = _read(_sleeper(os.getpid()))
    return late + max(time.monotonic() - due, 0.0)


def _waited(thread: int | str) -> float:
    """How long a thread has waited for a processor, in seconds; of a process, its main thread."""
    # https://docs.kernel.org/scheduler/sched-stats.html
    if not _TELLS_WAITS:
        return 0.0
    return int(Path(f"/proc/{thread}/schedstat").read_text().split()[1]) / 1e9


def own_seconds() -> float:
    """A clock that stands still while this thread waits for a processor that others have."""
    return time.monotonic() - _waited("thread-self")


class Stopwatch:
    """Runs from when it is made.

    The allowance is for what passed since then, so a short claim in a long test has a stopwatch
    of its own.

    Args:
      pid: a process whose main thread does what is timed; it may have ended, but not been waited
        for. None if there are several.
    """

    def __init__(self, pid: int | None = None) -> None:
        self._pid = pid
        self._before = self._delays()
        self._begun = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    @property
    def allowance(self) -> float:
        """How much later than on an idle machine something may be."""
        return max(now - before for now, before in zip(self._delays(), self._before, strict=True))

    @property
    def net(self) -> float:
        """The seconds without the allowance."""
        return self.seconds - self.allowance

    def __repr__(self) -> str:
        return f"{self.seconds:.2f} s, of which {self.allowance:.2f} s are allowed"

    def _delays(self) -> tuple[float, float]:
        """How late the timer has been in all, and how long the process has waited."""
        if is_strict():
            return 0.0, 0.0
        return _late(), 0.0 if self._pid is None else _waited(self._pid)

    def within(self, seconds: float) -> bool:
        """Whether no more time has passed than that, and what is allowed in addition."""
        return self.net <= seconds


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[Stopwatch]:
    """Fails a block that takes longer."""
    stopwatch = Stopwatch()
    yield stopwatch
    assert stopwatch.within(seconds), f"{stopwatch}; at most {seconds} s are allowed"


@contextlib.contextmanager
def ends_within(seconds: float, process: subprocess.Popen[Any]) -> Iterator[None]:
    """Waits, after a block, until a process has ended; fails if that took longer, with the block.

    What the process itself has waited for a processor is allowed. Its parent can wait for it still.
    """
    stopwatch = Stopwatch(process.pid)
    yield
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert stopwatch.within(seconds), f"{stopwatch}; at most {seconds} s are allowed"


def patience(seconds: float) -> float:
    """How long to wait for what takes at most so long while nothing else has the processors."""
    if is_strict():
        return seconds
    usual = _USUAL_LOAD * processors()
    return seconds * min(max(os.getloadavg()[0] / usual, 1.0), _LONGEST)
