"""Objects that `select` can wait for, and brief polling before a thread sleeps.

The reader of a queue checks the queue first and calls `select` only if the queue is empty, because
a readable descriptor means only that the queue might contain an item.

At either end, putting a thread to sleep and waking it takes longer than a cheap step. While both
ends poll, neither end sleeps during a round trip. In alternating runs with one environment, a step
took 0.31 to 0.35 times as long with polling as without. With 16 environments on one server, the
ratio was 0.69 to 0.92 for a scalar observation, and 0.66 to 0.93 for a uint8 84x84x4 observation.
Polling did not make the client's processor busy for longer. With an agent that computed for 0.1 or
0.3 ms between two steps, the wait for a step took 0.33 to 0.47 times as long as without polling.
In exchange, the server keeps a processor busy that would otherwise be idle.

Polling helps only if the input arrives soon and nothing else needs the processor or the GIL.
Therefore each `BusyWait` adapts. A thread sleeps immediately, and seldom polls again, after waits
that were too long for polling and after waits in which another program used the processor and
thereby delayed the input. In addition, a thread does not poll while other threads of its process
handle traffic on this package's sockets or wait for it, because polling would take the GIL from
them. A step took 0.99 to 1.05 times as long as without polling in three cases: with a server in
the same process, with four threads that step their own environments, and with a thread that
computes. On two processors, a step took 0.96 to 1.05 times as long while one other program was
computing. With two such programs, it took 0.88 to 1.25 times as long, but repeated runs of the
same code differed by as much.

The polling thread yields the processor to other processes after each poll. Without yielding, while
another program was computing, a step of a single environment took 1.2 times as long as with
polling turned off, because client and server ran on different processors. However, a process that
takes the processor keeps it for up to 3 ms. For this reason, rests (series of waits without
polling) become shorter only after many waits in which no process took the processor.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from dm_env_rpc_client.system.locks import make_lock


class SelfPipe:
    """A file descriptor that `notify` makes readable and `drain` makes unreadable.

    The pipe is opened by the first call of `fileno`, so an unused pipe costs nothing.
    """

    def __init__(self) -> None:
        # No byte may be written while the descriptors are closed: their numbers may belong to
        # other files then.
        self._lock = make_lock()
        self._ends: tuple[int, int] | None = None
        self._is_closed = False

    def fileno(self) -> int:
        """Return the file descriptor, readable from the first `notify` to the next `drain`.

        A new descriptor is readable at once, because `notify` might have been called before the
        pipe was opened. If the pipe is closed, the result is -1.
        """
        with self._lock:
            if self._is_closed:
                return -1
            if self._ends is None:
                self._ends = os.pipe()
                for end in self._ends:
                    os.set_blocking(end, False)
                os.write(self._ends[1], b"!")
            return self._ends[0]

    def notify(self) -> None:
        """Make the descriptor readable."""
        if self._ends is None:
            return
        with self._lock:
            if self._ends is not None:
                try:
                    os.write(self._ends[1], b"!")
                except BlockingIOError:
                    pass  # The pipe is full, so it is readable already.

    def drain(self) -> None:
        """Make the descriptor unreadable. Call this before checking the queue."""
        if self._ends is None:
            return
        with self._lock:
            if self._ends is not None:
                try:
                    os.read(self._ends[0], 4096)
                except BlockingIOError:
                    pass  # The pipe is empty already.

    def abandon(self) -> None:
        """Close a forked child's copy of the descriptors."""
        self._lock = make_lock()
        self.close()

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        with self._lock:
            ends, self._ends = self._ends, None
            self._is_closed = True
        for end in ends or ():
            os.close(end)


def why_no_epoll() -> str:
    """Return what epoll requires, as a phrase to follow "requires" or "takes"."""
    if not sys.platform.startswith("linux"):
        return "Linux"
    return (
        "select.epoll, which monkey patching, such as gevent's, has removed from this process; "
        "serve in a process without it"
    )


_Argument = TypeVar("_Argument")
_Found = TypeVar("_Found")

SPIN_SECONDS = 0.0005
"""The maximum polling time, in seconds. One step of 16 environments takes about this long.
With a limit of 0.2 ms, the gain for 16 environments was half as large."""

_AWAY_SECONDS = 0.00002
"""The maximum duration, in seconds, of a yield in which no other process takes the processor."""

_TOO_LONG = 4
"""The number of short waits needed to make up for one long wait."""

_MOST_CREDIT = 256
"""How far short waits must outnumber long waits before rests become shorter again. Next to a
hostile client (tiny increments, scorecard row 42), the 99th percentile of the step time was up to
2.05 ms with a value of 64, and up to 1.38 ms with 256, in two runs each."""

_SHORTEST_REST, _LONGEST_REST = 16, 1024
"""The minimum and maximum number of waits in a rest, which begins when the credit is used up. Each
rest is twice as long as the one before."""

_TRIALS = 128
"""The number of trials after each rest. A trial is a wait in which another process may use the
processor for less than `SPIN_SECONDS` without a loss of credit.

Another process uses the processor briefly if the other end of the connection runs on the same
processor. While both ends are runnable, the system moves them to separate processors within
milliseconds. Without these trials, a client and a server whose part of a step takes 35 us stayed
on one processor for thousands of steps, each of which took 60 us instead of 32. With 64 trials,
one pair in five stayed on one processor. If another program is computing, both ends have to share
a processor, so there are no more trials until the next rest. In that case, a step took 0.98 times
as long as without polling."""

threads: set[int] = set()
"""The IDs of this process's threads that handle traffic on this package's sockets or wait for
it."""


class BusyWait:
    """Decides whether a particular wait in the code polls before the thread sleeps.

    Attributes:
      rests: the waits that are left of a rest. A caller that takes one of them (`next(rests, None)`
        is not None) sleeps without calling `spin`, which saves a call in each step.
    """

    __slots__ = ("_credit", "_next_rest", "_trials", "rests")

    def __init__(self) -> None:
        self._credit = 0
        self._trials = _TRIALS
        self._next_rest = _SHORTEST_REST
        # With one processor the other end cannot continue while this one polls.
        self.rests = iter(range(0 if processors() > 1 else sys.maxsize))

    def spin(
        self, look: Callable[[_Argument], _Found | None], argument: _Argument
    ) -> _Found | None:
        """Poll with `look` for up to `SPIN_SECONDS`, unless polling is currently not useful.

        Args:
          look: a function that polls once, without waiting.
          argument: the argument of `look`.

        Returns:
          The result of `look`, or None if the caller should sleep.
        """
        if next(self.rests, None) is not None:
            return None
        if len(threads) > 1:
            return None
        end = time.perf_counter() + SPIN_SECONDS
        was_away = False
        while True:
            found = look(argument)
            if found:
                break
            before = time.perf_counter()
            os.sched_yield()
            now = time.perf_counter()
            if now - before > SPIN_SECONDS:
                found = look(argument)
                if found:  # The input had to wait until this thread ran again.
                    self._begin_rest()
                else:
                    self._lose_credit()
                self._trials = 0
                return found
            if now - before > _AWAY_SECONDS:
                was_away = True
            if now > end:
                self._lose_credit()
                return None
        if not was_away:
            self._credit += 1
            if self._credit > _MOST_CREDIT:
                self._credit = _MOST_CREDIT // 2
                self._next_rest = max(_SHORTEST_REST, self._next_rest // 2)
        elif self._trials:
            self._trials -= 1
            self._credit = 0
        else:
            self._lose_credit()
        return found

    def _lose_credit(self) -> None:
        self._credit -= _TOO_LONG
        if self._credit < 0:
            self._begin_rest()

    def _begin_rest(self) -> None:
        self._credit = 0
        self._trials = _TRIALS
        self.rests = iter(range(self._next_rest))
        self._next_rest = min(2 * self._next_rest, _LONGEST_REST)


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Register this thread, during the context, as one that handles traffic on sockets.

    A nested context has no effect.
    """
    me = threading.get_ident()
    if me in threads:
        yield
        return
    threads.add(me)
    try:
        yield
    finally:
        threads.discard(me)


def processors() -> int:
    """Return the number of processors available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


os.register_at_fork(after_in_child=threads.clear)
