"""Decide, without doing I/O, when to probe whether a silent server is still alive.

If the server is silent while an answer is awaited, the client sends a probe. If the server does
not answer the probe, the client ends the connection. A frozen server is detected within
`KEEPALIVE_SECONDS + KEEPALIVE_TIMEOUT_SECONDS` plus the time of two checks, no matter how long a
step takes. Servers do not count the probe as a PING (see `Framing.probe`).

The clock is read only after a wait without traffic, so a step that is answered immediately needs no
check.
"""

from __future__ import annotations

import enum
import time

from dm_env_rpc_client.transports.http2.protocol.framing import Framing
from dm_env_rpc_client.transports.net.sockets import KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS

LOOK_SECONDS = 1.0
"""The maximum time, in seconds, to wait before the keepalive is checked."""


class Verdict(enum.Enum):
    """The action to take when a server is silent."""

    WAIT = 0
    PROBE = 1
    GIVE_UP = 2


class Keepalive:
    """A monitor that detects silence in the traffic of one connection."""

    def __init__(self, framing: Framing):
        self._framing = framing
        self._activity = (0, 0)
        self._silent_since = time.monotonic()
        self._is_awaited = False

    def judge(self) -> Verdict:
        """Decide how to react to `LOOK_SECONDS` without traffic.

        The caller must send the probe that `Verdict.PROBE` requests before it calls this again.
        """
        framing = self._framing
        now = time.monotonic()
        activity = (framing.receptions, framing.sending.submitted)
        if activity != self._activity:
            if framing.receptions != self._activity[0]:
                self._is_awaited = False
            self._activity = activity
            if not self._is_awaited:
                self._silent_since = now
        silence = now - self._silent_since
        if self._is_awaited:
            return Verdict.GIVE_UP if silence >= KEEPALIVE_TIMEOUT_SECONDS else Verdict.WAIT
        if silence < KEEPALIVE_SECONDS:
            return Verdict.WAIT
        self._is_awaited = True
        self._silent_since = now
        return Verdict.PROBE
