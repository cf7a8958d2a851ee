"""Handshakes of TLS, in a thread of their own: each computes for up to some milliseconds.

Anybody who can connect can begin as many as there may be connections. Meanwhile the thread that
leads goes on with those that play; the interpreter is free while a handshake computes.
"""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable

from dm_env_rpc_client.system.busy_wait import at_work
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection

_log = logging.getLogger(__name__)


class Handshakes:
    """The handshakes of a listener. Only the thread that leads calls the methods.

    Args:
      start: starts a thread, called with what the thread calls and a name; RuntimeError if none
        can be started.
      failed: told of each connection whose handshake failed, in any thread.
    """

    def __init__(self, start: Callable[..., None], failed: Callable[[ServerConnection], None]):
        self._start = start
        self._failed = failed
        # Each connection is in it once at most: the poll is silent about it from then on.
        self._waiting: queue.SimpleQueue[ServerConnection | None] = queue.SimpleQueue()
        self._has_thread = False

    def go_on(self, connection: ServerConnection) -> None:
        """Goes on with the handshake of a connection, of which the poll has told."""
        if not self._has_thread:
            try:
                self._start(self._run, "shakes hands")
            except RuntimeError:
                self._encrypt(connection)
                return
            self._has_thread = True
        self._waiting.put(connection)

    def stop(self) -> None:
        """Ends the thread."""
        self._waiting.put(None)

    def _run(self) -> None:
        while True:
            connection = self._waiting.get()
            if connection is None:
                return
            with at_work():
                self._encrypt(connection)
            del connection  # It may be closed before another one comes.

    def _encrypt(self, connection: ServerConnection) -> None:
        try:
            with connection.lock:
                is_over = connection.is_open and connection.encrypt()
                if is_over:
                    connection.flush()
        except BaseException:
            _log.exception("the handshake with %s failed", connection.address)
            is_over = False
        if is_over is False:
            self._failed(connection)
