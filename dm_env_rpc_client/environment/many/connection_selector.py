"""Waiting for the answers of several connections at once, in the calling thread."""

from __future__ import annotations

import math
import selectors
import time
from collections.abc import Collection
from typing import NamedTuple

from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.transports.streams import SharedSocket

__all__ = ["LOOK_SECONDS", "ConnectionSelector"]

LOOK_SECONDS = 1.0
"""After so long without an answer every connection is returned, to be polled."""


class _Watched(NamedTuple):
    connection: Connection
    descriptor: int
    """-1 if the connection is closed."""
    shared: tuple[SharedSocket, int] | None
    """The socket that it shares, and its number there."""


class ConnectionSelector:
    """Waits until one of several connections may have an answer, and says which.

    The caller numbers the connections. Each stays registered with the operating system, so that
    waiting again needs no registration. Those that share a socket cost nothing while they have no
    answer, so that a thousand can be waited for.

    Attributes:
      watched: the connections, by number.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self.watched: dict[int, _Watched] = {}
        # The numbers of the connections that share a descriptor.
        self._sharing: dict[int, set[int]] = {}
        # Connections with a socket of their own; and the numbers of those that share one, by their
        # number on it.
        self._alone: dict[int, _Watched] = {}
        self._shared: dict[SharedSocket, dict[int, int]] = {}

    def watch(self, number: int, connection: Connection) -> None:
        """Adds a connection; does nothing if its number is watched already.

        Args:
          number: what `wait` returns.
          connection: `forget` it before another connection gets its number.
        """
        if number in self.watched:
            return
        descriptor = connection.fileno()
        shared = None if descriptor < 0 else connection.shared_socket()
        watched = self.watched[number] = _Watched(connection, descriptor, shared)
        if shared is None:
            self._alone[number] = watched
        else:
            socket, own = shared
            self._shared.setdefault(socket, {})[own] = number
        if descriptor >= 0:
            sharing = self._sharing.setdefault(descriptor, set())
            if not sharing:
                self._selector.register(descriptor, selectors.EVENT_READ)
            sharing.add(number)

    def wait(self, wanted: Collection[int], timeout: float | None) -> list[int]:
        """Waits until one of the connections may have something to read.

        Args:
          wanted: the numbers of those to wait for, which are watched.
          timeout: seconds; None for any time, 0 for a look.

        Returns:
          The numbers of the connections to `poll`, which has to be done: one that shares a socket
          is returned once for an answer. Empty after the timeout.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # A socket is not readable if its bytes were read already.
        ready = self._look(wanted)
        while not ready:
            left = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            readable = self._selector.select(min(left, LOOK_SECONDS))
            if not readable:
                # Polling a connection is also what detects a frozen server.
                return list(wanted) if left > LOOK_SECONDS else []
            ready = self._look(wanted)
            if not ready:
                ready = [number for key, _ in readable for number in self._one_of(key.fd, wanted)]
        return ready

    def _look(self, wanted: Collection[int]) -> list[int]:
        """Returns the numbers of those with something to read."""
        ready = []
        for socket, numbers in self._shared.items():
            for own in socket.take_unread():
                number = numbers.get(own)
                if number is not None and number in wanted:
                    ready.append(number)
        for number, (connection, descriptor, _) in self._alone.items():
            if number in wanted and (descriptor < 0 or connection.has_unread()):
                ready.append(number)
        return ready

    def _one_of(self, descriptor: int, wanted: Collection[int]) -> list[int]:
        """Returns one of those with a descriptor that is readable, although none has an answer.

        To poll it reads what there is, such as a part of an answer.
        """
        sharing = self._sharing[descriptor]
        for number in sharing:
            if number in wanted:
                return [number]
        # It stays readable until it is read: it has ended, or sent an unexpected answer.
        for number in tuple(sharing):
            self.forget(number)
        return []

    def forget(self, number: int) -> None:
        """Watches a connection no longer; nothing happens if it is not watched."""
        watched = self.watched.pop(number, None)
        if watched is None:
            return
        self._alone.pop(number, None)
        if watched.shared is not None:
            socket, own = watched.shared
            del self._shared[socket][own]
            if not self._shared[socket]:
                del self._shared[socket]
        if watched.descriptor >= 0:
            sharing = self._sharing[watched.descriptor]
            sharing.discard(number)
            if not sharing:
                self._selector.unregister(watched.descriptor)

    def close(self) -> None:
        """Forgets all connections."""
        self.watched.clear()
        self._sharing.clear()
        self._alone.clear()
        self._shared.clear()
        self._selector.close()
