"""When a client probes a silent server, and when it gives it up."""

from __future__ import annotations

import itertools
import time

import pytest

from dm_env_rpc_client.transports.net import keepalive
from dm_env_rpc_client.transports.net.keepalive import Keepalive, Verdict


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def seconds_until(clock: Clock, verdict: Verdict, monitor: Keepalive, timeout: float) -> float:
    """How long after the last activity, with one look a second, the first verdict of its kind is.

    The looks before it request at most one probe.
    """
    began = clock.now
    for _ in itertools.count():
        clock.now += 1.0
        found = monitor.judge(7, 1, lambda: timeout)
        if found is verdict:
            return clock.now - began
        assert found is not Verdict.GIVE_UP
    raise AssertionError


@pytest.mark.parametrize("timeout", [20.0, 45.0, 300.0])
def test_a_silent_server_is_probed_after_10_s_and_given_up_in_the_last_2_s(
    clock: Clock, timeout: float
) -> None:
    monitor = Keepalive()
    probed = seconds_until(clock, Verdict.PROBE, monitor, timeout)
    assert 8.0 <= probed <= keepalive.PROBE_SECONDS
    given_up = probed + seconds_until(clock, Verdict.GIVE_UP, monitor, timeout)
    assert timeout - 2.0 <= given_up <= timeout


def test_an_answered_probe_begins_the_silence_again(clock: Clock) -> None:
    monitor = Keepalive()
    for received in range(7, 20):
        probed = False
        for _ in range(12):
            clock.now += 1.0
            verdict = monitor.judge(received, 1, lambda: 20.0)
            assert verdict is not Verdict.GIVE_UP
            probed |= verdict is Verdict.PROBE
        assert probed
        assert monitor.is_awaiting


def test_a_client_that_was_stopped_gives_the_server_time_to_answer(clock: Clock) -> None:
    monitor = Keepalive()
    assert monitor.judge(7, 1, lambda: 20.0) is Verdict.WAIT
    clock.now += 3600.0
    assert monitor.judge(7, 1, lambda: 20.0) is Verdict.PROBE
    given_up = seconds_until(clock, Verdict.GIVE_UP, monitor, 20.0)
    assert given_up >= keepalive.ANSWER_SECONDS - 1.0
