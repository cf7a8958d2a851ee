"""Row 38: a server that is alive for long in a step, and then freezes."""

from __future__ import annotations

import asyncio
import signal
import threading
import time

import pytest

from dm_env_rpc_client import ConnectionLostError, make, make_async
from tests.reliability.recording import Seen
from tests.scripted import served_echo, time_limit

# grpcio sends no third ping while a step sends no data, for servers may end the connection for it;
# it sends the next one a minute later.
TRANSPORTS = ["http2"]

ALIVE_SECONDS = 30.0
NOTICED_SECONDS = 20.0


@pytest.mark.row(38)
@pytest.mark.slow
@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_that_freezes_after_30_seconds_of_a_step_is_noticed(
    is_async: bool, seen: Seen
) -> None:
    frozen: list[float] = []

    def step(address: str) -> None:
        with make(address, {"seconds": 600.0}) as env:
            env.reset()
            env.step({"value": 1})

    async def step_async(address: str) -> None:
        async with await make_async(address, {"seconds": 600.0}) as env:
            await env.reset()
            await env.step({"value": 1})

    with served_echo() as server:

        def freeze() -> None:
            server.signal(signal.SIGSTOP)
            frozen.append(time.monotonic())

        timer = threading.Timer(ALIVE_SECONDS, freeze)
        timer.start()
        with time_limit(ALIVE_SECONDS + NOTICED_SECONDS + 5), pytest.raises(ConnectionLostError):
            asyncio.run(step_async(server.address)) if is_async else step(server.address)
        timer.join()
        noticed = time.monotonic() - frozen[0]
    seen(frozen_servers=1, noticed_and_closed_after_s=noticed)
    assert 0 < noticed < NOTICED_SECONDS + 2  # `close` takes up to 2 s.
