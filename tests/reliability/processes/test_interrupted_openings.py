"""Row 6: what Ctrl-C interrupts while it opens is released, and hangs neither now nor at exit."""

from __future__ import annotations

import threading

import pytest

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.server import serve
from tests.reliability.processes.interrupted_openings import WAYS
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.alarms import Alarm
from tests.support.environments import Echo
from tests.support.programs import run_python
from tests.support.scripted import settles
from tests.support.stopwatch import time_limit

TRANSPORTS = ["grpc"]

_INTERRUPTS = 40
"""In each program."""


_PROGRAM = ("-m", "tests.reliability.processes.interrupted_openings")


@pytest.mark.row(6)
def test_row_6_the_thread_that_is_interrupted_starts_no_threads_of_grpcio(seen: Seen) -> None:
    with serve(Echo) as server:
        interrupts = int(run_python(*_PROGRAM, "each line", server.address).stdout)
        assert settles(lambda: server.agent_count == 0)
    seen(interrupts_within_grpcio=interrupts)
    assert interrupts == 0  # Where there are any, `connect` hangs.


@pytest.mark.row(6)
@counts(1, 50)
@pytest.mark.parametrize("way", WAYS)
def test_row_6_interrupts_while_a_connection_over_grpcio_opens_hang_nothing(
    way: str, count: int, seen: Seen
) -> None:
    interrupts = 0
    with serve(Echo) as server:
        for seed in range(count):
            arguments = (way, server.address, _INTERRUPTS, seed)
            interrupts += int(run_python(*_PROGRAM, *arguments).stdout)
        assert settles(lambda: server.agent_count == 0)
    seen(programs=count, interrupts=interrupts)
    assert interrupts > count * _INTERRUPTS / 10


@pytest.mark.parametrize("num_batches", [None, 0])
def test_an_interrupt_does_not_wait_for_environments_that_are_still_opened(
    num_batches: int | None,
) -> None:
    goes_on = threading.Event()
    is_begun = threading.Event()

    class Slow(Echo):
        def __init__(self) -> None:
            is_begun.set()
            goes_on.wait(60)
            super().__init__()

    with serve(Slow) as server:
        try:
            with time_limit(10), pytest.raises(KeyboardInterrupt), Alarm(0.5):
                BatchedEnvironment(server.address, 3, num_batches=num_batches)
            assert is_begun.is_set()
        finally:
            goes_on.set()
        # Those that are opened afterwards are closed.
        assert settles(lambda: server.agent_count == 0)
        assert settles(lambda: server.world_count == 0)
