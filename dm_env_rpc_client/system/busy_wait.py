"""Looking for input again and again for a moment, before sleeping until it comes.

To put a thread to sleep and to wake it takes longer than a cheap step, at either end. While both
ends look, a round trip has no sleep in it. Of the time without that, in turns, a step took 0.31 to
0.35 with one environment, 0.69 to 0.92 with 16 on one server if the observation is a scalar, and
0.66 to 0.93 if it is uint8 84x84x4; the client's processor was busy for no longer. If an agent
thinks for 0.1 or 0.3 ms between two steps, the wait for the step took 0.33 to 0.47, and meanwhile
the server keeps a processor busy that would be idle.

Looking is of use only if the input comes soon, and if nothing else needs the processor or the
interpreter. So each place that waits learns: after waits that were too long for it, or in which
input had to wait because another program was given the processor, it sleeps at once, and looks
again seldom. And a thread does not look while others of its process work for sockets of this
package, or wait for them: it would take the interpreter from them. With a server in the same
process, with four threads that step environments of their own, and beside a thread that computes, a
step took 0.99 to 1.05 of the time without all this. On two processors it took 0.96 to 1.05 beside
one other program that computes, and 0.88 to 1.25 beside two, where two equal states differed by as
much.

The processor is offered to others after each look. Otherwise, beside one program that computes, a
step of one environment took 1.2 of the time, because both ends were on different processors. But
whoever takes the processor keeps it for up to 3 ms, so rests become shorter only after many waits
without that.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

_Argument = TypeVar("_Argument")
_Found = TypeVar("_Found")

SPIN_SECONDS = 0.0005
"""How long to look: about a step of 16 environments. With 0.2 ms these gained half as much."""

_AWAY_SECONDS = 0.00002
"""How long it takes at most to offer the processor to others if none of them wants it."""

_TOO_LONG = 4
"""How many waits that are short enough make up for one that is not."""

_MOST_CREDIT = 256
"""After so many more short waits than long ones, rests are shorter again. Beside a hostile client
the 99th percentile of steps was up to 2.05 ms with 64, and up to 1.38 ms with 256, in two runs each
(tiny increments, row 42)."""

_SHORTEST_REST, _LONGEST_REST = 16, 1024
"""How many waits are without a look when there is no credit; twice as many after each such time."""

_TRIALS = 128
"""In how many waits after a rest the processor may be elsewhere for less than `SPIN_SECONDS`.

So it looks if the other end is on this processor: as both can run then, the system gives them one
each within milliseconds. Without this, a client and a server whose turn takes 35 us stayed together
for thousands of steps of 60 us instead of 32; with 64 one pair in five did. Beside a program that
computes they have to stay together: no trials then until the next rest. A step there took 0.98."""

threads: set[int] = set()
"""The threads of this process that wait for sockets of this package, or work for them."""


class BusyWait:
    """Whether it is worth while to look, at one place that waits."""

    __slots__ = ("_credit", "_next_rest", "_rest", "_trials")

    def __init__(self) -> None:
        self._credit = 0
        self._trials = _TRIALS
        self._next_rest = _SHORTEST_REST
        # With one processor the other end cannot go on while this one looks.
        self._rest = 0 if processors() > 1 else sys.maxsize

    def spin(
        self, look: Callable[[_Argument], _Found | None], argument: _Argument
    ) -> _Found | None:
        """Calls `look` until it returns something, for up to `SPIN_SECONDS`, or not at all.

        Args:
          look: looks once, without waiting.
          argument: of `look`.

        Returns:
          What it returned; None if there was nothing: the caller sleeps then.
        """
        if self._rest:
            self._rest -= 1
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
                if found:  # It had to wait for this thread.
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
            self._gain_credit()
        elif self._trials:
            self._trials -= 1
            self._credit = 0
        else:
            self._lose_credit()
        return found

    def _gain_credit(self) -> None:
        self._credit += 1
        if self._credit > _MOST_CREDIT:
            self._credit = _MOST_CREDIT // 2
            self._next_rest = max(_SHORTEST_REST, self._next_rest // 2)

    def _lose_credit(self) -> None:
        self._credit -= _TOO_LONG
        if self._credit < 0:
            self._begin_rest()

    def _begin_rest(self) -> None:
        self._credit = 0
        self._trials = _TRIALS
        self._rest = self._next_rest
        self._next_rest = min(2 * self._next_rest, _LONGEST_REST)


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """Has the other threads of this process know that this one works for sockets.

    Within such a context, another one changes nothing.
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
    """Returns how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


os.register_at_fork(after_in_child=threads.clear)
