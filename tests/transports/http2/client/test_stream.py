"""The stream over a socket: waiting, silence, and what a client sends while answers back up."""

from __future__ import annotations

import concurrent.futures
import itertools
import socket
import time

import pytest

from dm_env_rpc_client import ConnectionLostError, connect, dm_env_rpc_pb2
from dm_env_rpc_client.protocol import pipeline
from dm_env_rpc_client.transports.net import keepalive
from dm_env_rpc_client.transports.net.keepalive import Keepalive, Verdict
from tests.support.scripted import extension
from tests.support.stopwatch import time_limit
from tests.transports import frames
from tests.transports.frames import data, grpc_message, window_update
from tests.transports.raw_server import (
    Script,
    ask,
    both_ways,
    greet,
    next_frame,
    raw_server,
    until_closed,
)

# Sending while answers back up.


MEGABYTE = 1 << 20
LARGE = extension(0)
LARGE.value = bytes(MEGABYTE)
REQUEST_BYTES = MEGABYTE + 25
"""A request of a MiB, with what is around it."""


def stubborn(connection: socket.socket) -> None:
    """Answers a MiB with a MiB, and reads no further until the answer is taken."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536)
    greet(connection)
    connection.sendall(window_update(0, 1 << 30) + window_update(1, 1 << 30))
    response = dm_env_rpc_pb2.EnvironmentResponse(extension=LARGE).SerializeToString()
    left = 0
    while True:
        part = next_frame(connection)
        if part.kind == frames.DATA:
            left += len(part.payload)
            while left >= MEGABYTE:
                connection.sendall(data(grpc_message(response)))
                left -= REQUEST_BYTES


@pytest.mark.parametrize("threads", [1, 4])
def test_who_writes_reads_while_the_server_does_not(threads: int) -> None:
    def work(count: int) -> list[int]:
        pending = [connection.start(LARGE) for _ in range(count)]
        return [len(connection.wait(each).value) for each in pending]

    with (
        raw_server(stubborn) as address,
        connect(address, request_timeout=20) as connection,
        concurrent.futures.ThreadPoolExecutor(threads) as pool,
    ):
        for sizes in pool.map(work, [48 // threads] * threads):
            assert sizes == [MEGABYTE] * len(sizes)


# Silence.


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("net.keepalive", "http2.client.connection", "http2.client.connecting"):
        monkeypatch.setattr(f"dm_env_rpc_client.transports.{module}.LOOK_SECONDS", 0.02)
    monkeypatch.setattr("dm_env_rpc_client.client.async_pipeline._LOOK_SECONDS", 0.02)
    monkeypatch.setattr(keepalive, "PROBE_SECONDS", 0.1)
    # A busy machine takes a while to answer.
    monkeypatch.setattr(pipeline, "KEEPALIVE_SECONDS", 1.1)


def silent(connection: socket.socket) -> None:
    greet(connection)
    until_closed(connection)


def freezing(connection: socket.socket) -> None:
    """Acknowledges five probes in the middle of a step, and then nothing."""
    greet(connection)
    acknowledged = 0
    while acknowledged < 5:
        part = next_frame(connection)
        assert part.kind != frames.PING, "gRPC servers end connections for that"
        if part.kind == frames.SETTINGS and not part.flags and not part.payload:
            connection.sendall(frames.frame(frames.SETTINGS, flags=frames.ACK))
            acknowledged += 1
    until_closed(connection)


@pytest.mark.row(38)
@both_ways
@pytest.mark.parametrize(("script", "seconds"), [(silent, 3), (freezing, 10)])
@pytest.mark.usefixtures("short_silence")
def test_row_38_a_server_that_freezes_at_once_or_late_in_a_step_is_noticed(
    script: Script, seconds: float, is_async: bool
) -> None:
    expected = pytest.raises(ConnectionLostError, match="did not answer a probe")
    with raw_server(script) as address, time_limit(seconds), expected:
        ask(address, is_async, 5)


# Ends.


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
