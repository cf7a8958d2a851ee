"""Ctrl-C at random moments while connections over grpcio open and close; run as a process.

It prints how many interrupts came in time. It exits right after the last one, without closing
anything else. Not within pytest: an interrupt inside the locking of a tool that watches the tests
leaves its lock behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from grpc import _channel

from dm_env_rpc_client import connect, connect_async, make
from dm_env_rpc_client.server import serve
from tests.support.alarms import Alarm
from tests.support.environments import Echo
from tests.support.interrupts import Interrupt

_HANGS_SECONDS = 20
"""After which the program tells where its threads are, and ends: before the test gives up."""


_STARTING: Any = [
    _channel._UnaryUnaryMultiCallable._blocking,
    _channel._StreamStreamMultiCallable.__call__,
    _channel._run_channel_spin_thread,
    _channel._consume_request_iterator,
    threading.Thread.start,
]
"""What begins calls and starts threads. An interrupted `Thread.start` may raise a RuntimeError."""

Way = Callable[[str, AbstractContextManager[None]], None]
"""Opens and closes something at an address, within a block that is interrupted."""


def _synchronous(opened_and_closed: Callable[[str], object]) -> Way:
    def run(address: str, interrupted: AbstractContextManager[None]) -> None:
        with interrupted:
            opened_and_closed(address)

    return run


async def _connect_async(address: str, interrupted: AbstractContextManager[None]) -> None:
    # While its task runs, `asyncio.run` makes an interrupt a cancellation. It raises later ones in
    # the loop, and grpc.aio does not survive that: in some of the next loops it waits for ever.
    with interrupted:
        connection = await connect_async(address, transport="grpc")
        await connection.close()


WAYS: dict[str, Way] = {
    "connect": _synchronous(lambda address: connect(address, transport="grpc").close()),
    "make": _synchronous(lambda address: make(address, transport="grpc").close()),
    "connect_async": lambda address, block: asyncio.run(_connect_async(address, block)),
    "serve": _synchronous(lambda _: serve(Echo, transport="grpc").stop(0.0)),
}


def at_each_line(address: str) -> None:
    """Interrupts the main thread at each line that begins a call of grpcio or starts a thread."""
    line = 0
    while True:
        line += 1
        with Interrupt(line, *_STARTING) as interrupt:
            try:
                connect(address, transport="grpc").close()
            except KeyboardInterrupt:
                pass
        if interrupt.left > 0:  # It has fewer lines.
            break
    print(line - 1, flush=True)


def at_random(way: str, address: str, count: int, seed: int) -> None:
    """Interrupts the main thread so often while something opens and closes."""
    chance = random.Random(seed)
    run = WAYS[way]
    usual = []
    for _ in range(5):
        began = time.monotonic()
        run(address, contextlib.nullcontext())
        usual.append(time.monotonic() - began)
    interrupts = 0
    for _ in range(count):
        alarm = Alarm(
            sorted(usual)[2] * chance.uniform(0.1, 1.2),
            lambda *_: signal.raise_signal(signal.SIGINT),
        )
        try:
            run(address, alarm)
        except KeyboardInterrupt:
            interrupts += 1
    print(interrupts, flush=True)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(_HANGS_SECONDS, exit=True)
    # Connections that are interrupted before they are closed are forgotten.
    warnings.simplefilter("ignore", ResourceWarning)
    if sys.argv[1] == "each line":
        at_each_line(sys.argv[2])
    else:
        at_random(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
