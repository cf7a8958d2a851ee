"""Which streams get threads of their own."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment
from dm_env_rpc_client.transports.http2.protocol.pace import Pace
from tests.support.scripted import settles


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a stream answer, in a thread that uses a processor and waits as a test says."""
    now = SimpleNamespace(ru_utime=0.0, ru_stime=0.0, ru_nvcsw=0)
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(**vars(now)))

    def answer(
        pace: Pace, count: int, took: float, used: float, waits: int = 0, is_alone: bool = True
    ) -> None:
        for _ in range(count):
            begun = resource.getrusage(resource.RUSAGE_THREAD)
            now.ru_utime += used
            now.ru_nvcsw += waits
            pace.end(begun, took, is_alone)

    return answer


def test_slow_streams_have_threads_until_they_are_quick_again() -> None:
    pace = Pace(may_stay=False)
    for took, expected in ((1e-5, (False, True)), (0.002, (True, False)), (1e-4, (False, True))):
        for _ in range(60):
            begun = pace.begin()
            assert begun is None
            pace.end(begun, took, is_alone=expected[1])
        assert (pace.is_slow, pace.is_quick) == expected


@pytest.mark.parametrize(
    ("took", "used", "waits", "is_slow"),
    [
        (0.002, 0.0019, 0, False),
        (0.02, 0.002, 0, False),  # The processor is busy with something else.
        (0.002, 0.0001, 1, True),
        (0.002, 0.0008, 2, True),
        (0.006, 0.006, 0, True),
    ],
)
def test_what_computes_for_a_short_time_stays_where_each_processor_has_a_process(
    took: float, used: float, waits: int, is_slow: bool, answers: Callable[..., None]
) -> None:
    pace = Pace(may_stay=True)
    answers(pace, 40, took, used, waits)
    assert pace.is_slow is is_slow


def test_a_computing_stream_comes_back_after_a_long_answer(answers: Callable[..., None]) -> None:
    pace = Pace(may_stay=True)
    answers(pace, 1, 0.1, 0.1)  # A reset, perhaps.
    assert pace.is_slow
    # Four threads of one interpreter wait for one another.
    answers(pace, 40, 0.008, 0.002, 3, is_alone=False)
    assert pace.is_quick
    answers(pace, 40, 0.002, 0.002)
    assert not pace.is_slow


def test_a_sleeping_stream_is_tried_and_gets_its_thread_again(answers: Callable[..., None]) -> None:
    pace = Pace(may_stay=True)
    answers(pace, 40, 0.008, 0.001, 3, is_alone=False)
    assert pace.is_quick  # It might compute.
    alone = 0
    while not pace.is_slow:
        answers(pace, 1, 0.008, 0.0001, 1)
        alone += 1
    assert alone < 5
    tried = 0
    for _ in range(900):
        answers(pace, 1, 0.008, 0.001, 3, is_alone=False)
        tried += pace.is_quick
    assert not tried


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors are not chosen here")
@pytest.mark.parametrize(("processes", "sleeps"), [(2, 0), (2, 1), (1, 0)])
def test_environments_that_compute_share_a_thread_if_there_are_enough_processes(
    processes: int, sleeps: int
) -> None:
    settings = {"seconds": 0.0012, "sleeps": sleeps}
    command = [sys.executable, "-m", "tests.transports.http2.server.pace_server", str(processes)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with contextlib.ExitStack() as stack:
        stack.callback(process.wait)
        stack.callback(process.terminate)
        address = process.stdout.readline().strip()
        # Worlds are given threads when they are made, and by then it has to be known.
        with BatchedEnvironment(address, 4, settings, num_batches=0) as env:
            env.reset()
            for _ in range(60):
                env.step({})

        def threads() -> int:
            with BatchedEnvironment(address, 4, settings, num_batches=0) as env:
                observation = env.reset().observation
                for _ in range(20):
                    np.testing.assert_array_equal(
                        env.step({}).observation["thread"], observation["thread"]
                    )
                return len(set(observation["thread"].tolist()))

        # One for each process, or one for each environment.
        expected = 2 if (processes, sleeps) == (2, 0) else 4
        assert settles(lambda: threads() == expected, 60)
    process.stdout.close()
