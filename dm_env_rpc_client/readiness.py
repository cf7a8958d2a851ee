"""Waiting for the answers of several connections at once, in the calling thread."""

from __future__ import annotations

import selectors
import time
from collections.abc import Mapping

from dm_env_rpc_client.connection import Connection

__all__ = ["Readiness"]


class Readiness:
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
          connections: those to wait for, by number. Each was polled and had nothing.
          timeout: seconds; None for any time.

        Returns:
          The numbers of those to poll again; none where the time is over.
        """
        for number, connection in connections.items():
            if number not in self._descriptors:
                descriptor = connection.fileno()
                if descriptor < 0:
                    return [number]
                self._selector.register(descriptor, selectors.EVENT_READ, number)
                self._descriptors[number] = descriptor
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            events = self._selector.select(left)
            ready = [key.data for key, _ in events]
            awaited = [number for number in ready if number in connections]
            if awaited or not ready:
                return awaited
            for number in ready:
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
