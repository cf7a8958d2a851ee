"""When to ask whether a silent server is still there, without I/O.

While an answer is waited for, silence is answered with a ping, and silence after the ping is
the end. Servers may take offence at pings that come often (gRPC's own allow two while they
send no data), so after two there are no more until data has come: a long step is no flood.

It is asked only when a wait has brought nothing, so that a step that is answered costs no
look at the clock.
"""

from __future__ import annotations

import enum
import time

from dm_env_rpc_client.transports.http2.framing import Framing

__all__ = [
    "KEEPALIVE_SECONDS",
    "KEEPALIVE_TIMEOUT_SECONDS",
    "LOOK_SECONDS",
    "Keepalive",
    "Verdict",
]

# A frozen peer is detected within 15 s.
KEEPALIVE_SECONDS = 10.0
KEEPALIVE_TIMEOUT_SECONDS = 5.0

LOOK_SECONDS = 1.0
"""How long a wait may be until the keepalive is asked."""

_MAX_PINGS = 2


class Verdict(enum.Enum):
    """What to do about the silence of a server."""

    WAIT = 0
    PING = 1
    GIVE_UP = 2


class Keepalive:
    """Follows what is sent and received by one framing."""

    def __init__(self, framing: Framing):
        self._framing = framing
        self._activity = (0, 0)
        self._data_frames = 0
        self._silent_since = time.monotonic()
        self._pings = 0
        self._is_awaited = False

    def judge(self) -> Verdict:
        """Says what to do now that a wait of up to `LOOK_SECONDS` has brought nothing.

        Who is told to PING has sent one by the next time.
        """
        framing = self._framing
        now = time.monotonic()
        activity = (framing.receptions, framing.submissions)
        if activity != self._activity:
            if framing.receptions != self._activity[0]:
                self._is_awaited = False
            self._activity = activity
            if not self._is_awaited:
                self._silent_since = now
        if framing.data_frames != self._data_frames:
            self._data_frames = framing.data_frames
            self._pings = 0
        silence = now - self._silent_since
        if self._is_awaited:
            return Verdict.GIVE_UP if silence >= KEEPALIVE_TIMEOUT_SECONDS else Verdict.WAIT
        if silence < KEEPALIVE_SECONDS or self._pings >= _MAX_PINGS:
            return Verdict.WAIT
        self._pings += 1
        self._is_awaited = True
        self._silent_since = now
        return Verdict.PING
