"""Rows 1 to 4 and 15: servers that are killed or frozen, for every way to step environments."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    EnvironmentsFailedError,
    connect,
    make,
)
from tests.launch.processes import is_alive
from tests.reliability.connections.counting import WAYS
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict
from tests.support.loops import opened
from tests.support.scripted import SignalledServer, extension, served_echo, settles
from tests.support.stopwatch import Stopwatch, time_limit

CLOSE_SECONDS = 2.2
FAILED = (ConnectionLostError, DeadlineExceededError, EnvironmentsFailedError)


@contextlib.contextmanager
def playing(name: str, address: str, settings: Any, **how: Any) -> Iterator[Callable[[], object]]:
    """Yields what takes a step of a sequence that has begun; closing is quick."""
    if name != ASYNCIO:
        way = WAYS[name]
        env = way.opened(address, settings, **how)
        yield lambda: way.step(env)
        with time_limit(CLOSE_SECONDS):
            env.close()
        return
    with opened(True, address, settings, **how) as env:
        env.reset()
        yield lambda: env.step({"value": 1})


ASYNCIO = "asyncio"
EVERY_WAY = [*WAYS, ASYNCIO]


def check(error: BaseException, name: str, kind: type[Exception], address: str) -> None:
    """Each environment has failed in this way, and its server is named."""
    assert address in str(error)
    failures = list(getattr(error, "failures", {"": error}).values())
    assert len(failures) == (1 if name == ASYNCIO else WAYS[name].rows)
    assert all(isinstance(failure, kind) for failure in failures)


@pytest.mark.row(1)
@pytest.mark.parametrize("way", EVERY_WAY)
@counts(2, 25)
def test_row_1_a_server_killed_in_mid_step_is_noticed_within_a_second(
    way: str, count: int, seen: Seen
) -> None:
    for _ in range(count):
        with served_echo() as server, playing(way, server.address, {"seconds": 30.0}) as step:
            killed: list[float] = []

            def kill(server: SignalledServer = server, killed: list[float] = killed) -> None:
                server.signal(signal.SIGKILL)
                killed.append(time.monotonic())

            timer = threading.Timer(0.02, kill)
            timer.start()
            stopwatch = Stopwatch()
            with pytest.raises(FAILED) as caught:
                step()
            noticed = time.monotonic()
            timer.join()
            check(caught.value, way, ConnectionLostError, server.address)
            seen(kills=1, noticed_after_s=noticed - killed[0])
            assert noticed - killed[0] < 1.0 + stopwatch.allowance
            with pytest.raises(FAILED) as again:
                step()
            check(again.value, way, ConnectionLostError, server.address)


@pytest.mark.row(15)
@pytest.mark.parametrize("way", EVERY_WAY)
def test_row_15_a_server_killed_between_steps_is_noticed_and_closing_is_quick(way: str) -> None:
    with served_echo() as server, playing(way, server.address, {}) as step:
        step()
        server.signal(signal.SIGKILL)
        assert settles(lambda: not is_alive(server.pid))
        with pytest.raises(FAILED) as caught:
            step()
        check(caught.value, way, ConnectionLostError, server.address)


@pytest.mark.row(2, 15)
@pytest.mark.parametrize("way", ["make", ASYNCIO, "streams", "batch"])
@counts(1, 12)
def test_row_2_a_frozen_server_is_a_missed_deadline(way: str, count: int, seen: Seen) -> None:
    # On a busy machine a good answer may take longer than a second.
    deadline = 1.0 if is_strict() else 2.0
    for _ in range(count):
        with served_echo() as server:
            opened = playing(way, server.address, {}, request_timeout=deadline)
            with opened as step:
                server.signal(signal.SIGSTOP)
                started = Stopwatch()
                with pytest.raises(FAILED) as caught:
                    step()
                seen(frozen_servers=1, error_after_the_deadline_s=started.seconds - deadline)
                assert started.net - deadline < 0.2
                check(caught.value, way, DeadlineExceededError, server.address)
                with pytest.raises(FAILED) as again:
                    step()
                check(again.value, way, ConnectionLostError, server.address)


@pytest.mark.row(15)
def test_row_15_the_bodys_own_error_survives_the_close() -> None:
    def body(server: SignalledServer) -> None:
        with make(server.address) as env:
            env.reset()
            server.signal(signal.SIGKILL)
            raise ZeroDivisionError

    with served_echo() as server, pytest.raises(ZeroDivisionError):
        body(server)


@pytest.mark.row(3)
@pytest.mark.slow
def test_row_3_keepalive_alone_notices_a_frozen_server(seen: Seen) -> None:
    with served_echo() as server:
        connection = connect(server.address)
        server.signal(signal.SIGSTOP)
        frozen = time.monotonic()
        with time_limit(20), pytest.raises(ConnectionLostError):
            connection.send(extension(1))
        seen(noticed_after_s=time.monotonic() - frozen)
        connection.close()


@pytest.mark.row(4)
@pytest.mark.slow
def test_row_4_a_step_of_45_seconds_succeeds(seen: Seen) -> None:
    with served_echo() as server, make(server.address, {"seconds": 45.0}) as env:
        env.reset()
        assert env.step({"value": 7}).observation["value"] == 7
        seen(steps_of_45_s=1)
