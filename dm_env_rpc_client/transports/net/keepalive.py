"""Decide, without doing I/O, when to probe a silent server, and when to give it up.

If the server is silent while an answer is awaited, the client sends a probe. If the server shows no
sign of life for the keepalive timeout, the client ends the connection. A server that acknowledges
probes is never given up, no matter how long a step takes. A frozen server cannot be told apart from
one whose environment computes without releasing the GIL, so the timeout depends on the awaited
request (see `Pipeline.keepalive_seconds`).

The clock is read only after a wait without traffic, so a step that is answered immediately needs no
check.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from typing import TypeAlias

LOOK_SECONDS = 1.0
"""The maximum time, in seconds, to wait before the keepalive is checked."""

PROBE_SECONDS = 10.0
"""The silence, in seconds, after which a client sends a probe, or half of the keepalive timeout if
that is shorter."""

ANSWER_SECONDS = 5.0
"""The time, in seconds, that a server has at least to answer a probe, or half of the keepalive
timeout if that is shorter. The process of the client may have been stopped before it probed."""

OPENING_SECONDS = 20.0
"""The keepalive timeout, in seconds, until the user of a stream sets another one."""

KeepaliveSeconds: TypeAlias = Callable[[], float]
"""A function that returns the keepalive timeout for the awaited answer, in seconds.

It must not keep a connection alive, because the stream refers to it.
"""


def opening_seconds() -> float:
    """Return the keepalive timeout of a stream for which none was set, in seconds."""
    return OPENING_SECONDS


class Verdict(enum.Enum):
    """The action to take when a server is silent."""

    WAIT = 0
    PROBE = 1
    GIVE_UP = 2


class Keepalive:
    """A monitor that detects silence in the traffic of one connection."""

    def __init__(self) -> None:
        self._received = self._sent = 0
        self._silent_since = time.monotonic()
        self._probed_at: float | None = None
        self._judged_at = 0.0

    @property
    def is_awaiting(self) -> bool:
        """Whether a probe is unanswered."""
        return self._probed_at is not None

    def judge(self, received: int, sent: int, seconds: KeepaliveSeconds) -> Verdict:
        """Decide how to react to `LOOK_SECONDS` without traffic.

        The caller must send the probe that `Verdict.PROBE` requests before it calls this again.

        Args:
          received: a number that changes with everything received from the server.
          sent: a number that changes with each sent request.
          seconds: returns the keepalive timeout, in seconds.
        """
        now = time.monotonic()
        # Each of a thousand streams on a connection may ask, and `seconds` looks at all of them.
        if now - self._judged_at < LOOK_SECONDS / 2:
            return Verdict.WAIT
        self._judged_at = now
        timeout = seconds()
        if received != self._received:
            self._probed_at = None
        if (received, sent) != (self._received, self._sent):
            self._received, self._sent = received, sent
            if self._probed_at is None:
                self._silent_since = now
        # The silence may have begun one look earlier, and must not exceed the timeout at the next.
        silence = now - self._silent_since + 2 * LOOK_SECONDS
        if self._probed_at is None:
            if silence < min(PROBE_SECONDS, timeout / 2):
                return Verdict.WAIT
            self._probed_at = now
            return Verdict.PROBE
        waited = now - self._probed_at + LOOK_SECONDS
        if silence < timeout or waited < min(ANSWER_SECONDS, timeout / 2):
            return Verdict.WAIT
        return Verdict.GIVE_UP
