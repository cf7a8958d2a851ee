"""How long the answers of a stream take, and whether it gets a thread for them.

Streams whose answers take long have threads, so that those that wait or compute outside of the
interpreter do so at the same time. Where each processor has a server process already, environments
that compute gain nothing from that: four streams of steps of 1 ms lost 0.15 ms between two steps to
the change of threads. So their answers stay with the thread that leads, up to the time after which
that thread is relieved of them.
"""

from __future__ import annotations

import resource

SLOW_SECONDS = 0.001
"""Streams whose answers take longer than this have threads."""

HICCUP_SECONDS = 0.004
"""An answer that took longer counts as this: one alone, on a busy machine or with a reset, does not
make a quick stream slow, but three do."""

_QUICK_SECONDS = 0.0003
"""Those whose answers take less than this again have none any more."""

_LONGEST_SECONDS = 0.004
"""Computing streams whose answers use a processor for longer than this have threads, too."""

_COMPUTING = 0.6
"""The part of its answers that a computing stream makes without a wait."""

_FIRST_TRIAL = 8
_NEXT_TRIAL = 1000
"""After so many answers of a thread it is tried whether the stream computes: beside other threads
of the interpreter that cannot be told, since they wait for one another."""


class Pace:
    """The pace of one stream.

    Args:
      may_stay: whether each processor has a server process, so that the answers of a computing
        stream stay with the thread that leads.

    Attributes:
      may_stay: as the argument.
      seconds: about how long its answers take.
    """

    __slots__ = ("_processor_seconds", "_unbroken", "_until_trial", "may_stay", "seconds")

    def __init__(self, may_stay: bool):
        self.seconds = 0.0
        self.may_stay = may_stay
        # The part of the answers that were made without a wait.
        self._unbroken = 0.0
        self._processor_seconds = 0.0
        self._until_trial = _FIRST_TRIAL

    def begin(self) -> resource.struct_rusage | None:
        """Begins an answer; returns what `end` takes."""
        if self.may_stay and self.seconds > SLOW_SECONDS / 2:
            return resource.getrusage(resource.RUSAGE_THREAD)
        return None

    def end(self, begun: resource.struct_rusage | None, took: float, is_alone: bool) -> None:
        """Takes note of an answer.

        Args:
          begun: what `begin` returned, in the same thread.
          took: the seconds since then.
          is_alone: whether the thread that leads has made it, and not one of several.
        """
        self.seconds += (took - self.seconds) / 8
        if begun is None:
            return
        now = resource.getrusage(resource.RUSAGE_THREAD)
        used = now.ru_utime + now.ru_stime - begun.ru_utime - begun.ru_stime
        self._processor_seconds += (used - self._processor_seconds) / 8
        if is_alone:
            has_waited = now.ru_nvcsw > begun.ru_nvcsw
            self._unbroken += ((not has_waited) - self._unbroken) / 4
            return
        self._until_trial -= 1
        if self._until_trial <= 0:
            self._until_trial = _NEXT_TRIAL
            self._unbroken = 1.0

    @property
    def is_slow(self) -> bool:
        """Whether the stream is to have a thread."""
        return self.seconds > SLOW_SECONDS and not self._stays

    @property
    def is_quick(self) -> bool:
        """Whether a stream that has a thread is to have none any more."""
        return self.seconds < _QUICK_SECONDS or self._stays

    @property
    def _stays(self) -> bool:
        return self._unbroken > _COMPUTING and self._processor_seconds < _LONGEST_SECONDS
