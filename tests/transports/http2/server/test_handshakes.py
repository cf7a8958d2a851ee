"""How the thread of the TLS handshakes shares the processor with those that play."""

from __future__ import annotations

import contextlib
import time
from typing import Any

from dm_env_rpc_client.transports.http2.server.clients import Handshakes
from tests.support.scripted import settles

HANDSHAKES = 50
SECONDS = 0.001


class Computing:
    """A connection whose handshake computes for a while."""

    is_open = True
    address = "ipv4:127.0.0.1:1"

    def __init__(self, ended: list[float]) -> None:
        self.lock = contextlib.nullcontext()
        self._ended = ended

    def encrypt(self) -> bool:
        ends = time.perf_counter() + SECONDS
        while time.perf_counter() < ends:
            pass
        self._ended.append(time.perf_counter())
        return True

    def flush(self) -> None:
        pass


def test_the_thread_rests_as_long_as_it_computes() -> None:
    ended: list[float] = []
    handshakes = Handshakes("shakes hands", lambda failed: None)
    for _ in range(HANDSHAKES):
        connection: Any = Computing(ended)
        handshakes.go_on(connection)
    assert settles(lambda: len(ended) == HANDSHAKES)
    handshakes.stop()
    assert ended[-1] - ended[0] >= 2 * SECONDS * (HANDSHAKES - 1)
