"""Row 38: a server that is alive for long in a step, and then freezes."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from dm_env_rpc_client import ConnectionLostError
from tests.reliability.recording import Seen
from tests.support.both_transports import EVERY
from tests.support.loops import opened
from tests.support.scripted import served_echo
from tests.support.stopwatch import time_limit

TRANSPORTS = EVERY

ALIVE_SECONDS = 30.0

NOTICED_SECONDS = 20.0
"""How soon after it froze."""

CLOSE_SECONDS = 2.0


@pytest.mark.row(38)
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_server_that_freezes_after_30_seconds_of_a_step_is_noticed(
    is_async: bool, transport: str, seen: Seen
) -> None:
    frozen: list[float] = []
    noticed: list[float] = []

    with served_echo() as server:

        def freeze() -> None:
            server.signal(signal.SIGSTOP)
            frozen.append(time.monotonic())

        timer = threading.Timer(ALIVE_SECONDS, freeze)
        timer.start()
        with (
            time_limit(ALIVE_SECONDS + NOTICED_SECONDS + CLOSE_SECONDS) as it,
            opened(is_async, server.address, {"seconds": 600.0}) as env,
        ):
            env.reset()
            with pytest.raises(ConnectionLostError, match="did not answer a probe"):
                env.step({"value": 1})
            noticed.append(time.monotonic())
        timer.join()
    after = noticed[0] - frozen[0]
    seen(frozen_servers=1, **{f"{transport}_noticed_after_s": after})
    assert 0 < after < NOTICED_SECONDS + it.allowance
