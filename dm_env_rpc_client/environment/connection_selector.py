"""Waiting for the answers of several connections at once, in the calling thread."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Mapping

from dm_env_rpc_client.client.connection import Connection

__all__ = ["LOOK_SECONDS", "ConnectionSelector"]

LOOK_SECONDS = 1.0
"""How long nothing may be heard until every connection is to be looked at."""


class ConnectionSelector:
    """Says which of several connections may have an answer.

    Connections go by numbers of the caller's choice. Each stays registered with the
    operating system from the first wait for it on, so that waiting again costs nothing.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._descriptors: dict[int, int] = {}

    def wait(self, connections: Mapping[int, Connection], timeout: float | None) -> list[int]:
        """Waits until one of the connections may have something to read.

        Args:
          connections: those to wait for, by number.
          timeout: seconds; None for any time, 0 for a look.

        Returns:
          The numbers of all to `poll`; none where the time is over.
        """
        # What has been read from a socket already does not show there.
        ready = {number: None for number, own in connections.items() if own.has_unread()}
        for number, connection in connections.items():
            if number not in self._descriptors:
                descriptor = connection.fileno()
                if descriptor < 0:
                    ready[number] = None
                else:
                    self._selector.register(descriptor, selectors.EVENT_READ, number)
                    self._descriptors[number] = descriptor
        deadline = 0.0 if ready else None if timeout is None else time.monotonic() + timeout
        while True:
            left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            readable = [key.data for key, _ in self._selector.select(min(left, LOOK_SECONDS))]
            ready |= {number: None for number in readable if number in connections}
            if ready or (not readable and left <= LOOK_SECONDS):
                return list(ready)
            if not readable:
                # To poll a connection is also what notices a server that has frozen.
                return list(connections)
            for number in readable:
                # It has ended, or says something that nobody asked for, until it is read.
                self.forget(number)

    def forget(self, number: int) -> None:
        """Waits for a connection no more; do so before it is replaced by another."""
        descriptor = self._descriptors.pop(number, None)
        if descriptor is not None:
            self._selector.unregister(descriptor)

    def close(self) -> None:
        """Forgets all of them."""
        self._descriptors.clear()
        self._selector.close()
