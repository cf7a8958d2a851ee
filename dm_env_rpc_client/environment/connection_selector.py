"""Waiting for the answers of several connections at once, in the calling thread."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Mapping

from dm_env_rpc_client.client.connection import Connection

__all__ = ["LOOK_SECONDS", "ConnectionSelector"]

LOOK_SECONDS = 1.0
"""After so long without an answer every connection is returned, to be polled."""


class ConnectionSelector:
    """Waits until one of several connections may have an answer, and says which.

    The caller numbers the connections. Each stays registered with the operating system from the
    first wait for it, so that waiting again needs no registration.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._descriptors: dict[int, int] = {}
        # The numbers of the connections that share a descriptor.
        self._sharing: dict[int, set[int]] = {}

    def wait(self, connections: Mapping[int, Connection], timeout: float | None) -> list[int]:
        """Waits until one of the connections may have something to read.

        Args:
          connections: those to wait for, by number.
          timeout: seconds; None for any time, 0 for a look.

        Returns:
          The numbers of the connections to `poll`; none after the timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # A socket is not readable if its bytes were read already.
        ready = self._look(connections)
        while not ready:
            left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            readable = self._selector.select(min(left, LOOK_SECONDS))
            if not readable:
                # Polling a connection is also what detects a frozen server.
                return list(connections) if left > LOOK_SECONDS else []
            ready = self._look(connections)
            if not ready:
                ready = [
                    number for key, _ in readable for number in self._one_of(key.fd, connections)
                ]
        return ready

    def _look(self, connections: Mapping[int, Connection]) -> list[int]:
        """Returns the numbers of those with something to read, and registers those that are new."""
        ready = []
        looked_at: set[int] = set()
        for number, connection in connections.items():
            descriptor = self._descriptors.get(number)
            if descriptor is None:
                descriptor = connection.fileno()
                if descriptor >= 0:
                    self._register(descriptor, number)
            if descriptor < 0 or connection.has_unread(look=descriptor not in looked_at):
                ready.append(number)
            looked_at.add(descriptor)
        return ready

    def _one_of(self, descriptor: int, connections: Mapping[int, Connection]) -> list[int]:
        """Returns one of those with a descriptor that is readable, although none has an answer.

        To poll it reads what there is, such as a part of an answer.
        """
        sharing = self._sharing[descriptor]
        for number in sharing:
            if number in connections:
                return [number]
        for number in tuple(sharing):
            # It stays readable until it is read: it has ended, or sent an unexpected answer.
            self.forget(number)
        return []

    def _register(self, descriptor: int, number: int) -> None:
        sharing = self._sharing.setdefault(descriptor, set())
        if not sharing:
            self._selector.register(descriptor, selectors.EVENT_READ)
        sharing.add(number)
        self._descriptors[number] = descriptor

    def forget(self, number: int) -> None:
        """Unregisters a connection; call it before another connection gets its number."""
        descriptor = self._descriptors.pop(number, None)
        if descriptor is not None:
            sharing = self._sharing[descriptor]
            sharing.discard(number)
            if not sharing:
                self._selector.unregister(descriptor)

    def close(self) -> None:
        """Unregisters all connections."""
        self._descriptors.clear()
        self._sharing.clear()
        self._selector.close()
