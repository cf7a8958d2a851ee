"""When to ask whether a silent server is still there, without I/O.

While an answer is waited for, silence is answered with a ping, and silence after the ping is
the end. Servers may take offence at pings that come often (gRPC's own allow two while they
send no data), so after two there are no more until data has come: a long step is no flood.
"""

from __future__ import annotations

import math
import time

from dm_env_rpc_client.transports.conditions import KEEPALIVE_SECONDS, KEEPALIVE_TIMEOUT_SECONDS

__all__ = ["Keepalive"]

_MAX_PINGS = 2


class Keepalive:
    """Follows what one connection sends and hears.

    Attributes:
      due: when something must be done about the silence, on the monotonic clock.
      is_awaited: whether a ping has been sent and nothing heard since.
    """

    def __init__(self) -> None:
        self.is_awaited = False
        self._pings = 0
        self._data_frames = 0
        self.due = time.monotonic() + KEEPALIVE_SECONDS

    def sent(self) -> None:
        """A request was sent: the server has time from now on."""
        if not self.is_awaited:
            self.due = time.monotonic() + KEEPALIVE_SECONDS

    def heard(self, data_frames: int) -> None:
        """Something was received, after which there were so many frames of data in all."""
        self.is_awaited = False
        if data_frames != self._data_frames:
            self._data_frames = data_frames
            self._pings = 0
        self.due = time.monotonic() + KEEPALIVE_SECONDS

    def ping(self) -> bool:
        """Whether to send a ping now that there was silence; call it when `due` has passed."""
        if self._pings >= _MAX_PINGS:
            self.due = math.inf
            return False
        self._pings += 1
        self.is_awaited = True
        self.due = time.monotonic() + KEEPALIVE_TIMEOUT_SECONDS
        return True
