"""Handshakes of TLS, in a thread of their own: each computes for up to some milliseconds.

Anybody who can connect can begin as many as there may be connections. Meanwhile the thread that
leads goes on with those that play; the interpreter is free while a handshake computes. The thread
rests after each handshake for as long as that took.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from dm_env_rpc_client.system.busy_wait import at_work
from dm_env_rpc_client.transports.http2.server.connection import ServerConnection

_log = logging.getLogger(__name__)

_LONGEST_REST = 0.002
"""Seconds that the thread rests at most after a handshake."""


class Handshakes:
    """The handshakes of a listener. Only the thread that leads calls the methods.

    Args:
      name: of the thread, which starts with the first handshake.
      failed: told of each connection whose handshake failed, in any thread.
    """

    def __init__(self, name: str, failed: Callable[[ServerConnection], None]):
        self._failed = failed
        self._name = name
        # No pool of `concurrent.futures`: these end with the code of the main thread.
        self._thread: threading.Thread | None = None
        self._waiting: queue.SimpleQueue[ServerConnection | None] = queue.SimpleQueue()

    def go_on(self, connection: ServerConnection) -> None:
        """Goes on with the handshake of a connection, of which the poll has told."""
        # Each connection is in it once at most: the poll is silent about it from then on.
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # No thread can be started now.
                self._encrypt(connection)
                return
            self._thread = thread
        self._waiting.put(connection)

    def stop(self) -> None:
        """Ends the thread."""
        self._waiting.put(None)

    def _run(self) -> None:
        while True:
            connection = self._waiting.get()
            if connection is None:
                return
            self._encrypt(connection)
            del connection  # While it waits for the next one.

    def _encrypt(self, connection: ServerConnection) -> None:
        begun = time.perf_counter()
        try:
            with at_work(), connection.lock:
                is_over = connection.is_open and connection.encrypt()
                if is_over:
                    connection.flush()
        except BaseException:
            _log.exception("the handshake with %s failed", connection.address)
            is_over = False
        if is_over is False:
            self._failed(connection)
        # A thread that always computes keeps its processor for some milliseconds while others wait
        # for it. With rests they wait for one handshake: beside a flood of ClientHellos at two
        # processes the 99th percentile of a step fell from 2.1 to 1.0 ms (row 50).
        time.sleep(min(time.perf_counter() - begun, _LONGEST_REST))
