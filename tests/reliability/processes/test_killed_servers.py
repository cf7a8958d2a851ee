"""Rows 1 to 4 and 15: servers that are killed or frozen, for every way to step environments."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionLostError,
    DeadlineExceededError,
    EnvironmentsFailedError,
    connect,
    make,
    make_async,
)
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from tests.launch.processes import is_alive
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict
from tests.support.scripted import SignalledServer, extension, served_echo, settles
from tests.support.stopwatch import Stopwatch, time_limit

CLOSE_SECONDS = 2.2
ROWS = 3

FAILED = (ConnectionLostError, DeadlineExceededError, EnvironmentsFailedError)

Step = Callable[[], object]


@contextlib.contextmanager
def _playing(env: Any, step: Callable[[Any], object]) -> Iterator[Step]:
    try:
        env.reset()
        yield lambda: step(env)
    finally:
        with time_limit(CLOSE_SECONDS):
            env.close()


@contextlib.contextmanager
def _in_a_loop(address: str, settings: Any, **how: Any) -> Iterator[Step]:
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        run = loop.run_until_complete
        env = run(make_async(address, settings, **how))
        run(env.reset())
        yield lambda: run(env.step({"value": 1}))
        with time_limit(CLOSE_SECONDS):
            run(env.close())


def _rows(kind: Any, num_batches: int | None, action: Any) -> Callable[..., Any]:
    return lambda address, settings, **how: _playing(
        kind(address, ROWS, settings, num_batches=num_batches, **how), lambda env: env.step(action)
    )


def _one(step: Callable[[Any], object], wrap: Callable[[Any], Any] = lambda env: env) -> Any:
    return lambda address, settings, **how: _playing(wrap(make(address, settings, **how)), step)


ONES = np.ones(ROWS, np.int64)

WAYS: dict[str, Callable[..., contextlib.AbstractContextManager[Step]]] = {
    "make": _one(lambda env: env.step({"value": 1})),
    "future": _one(lambda env: env.step_async({"value": 1}).result(60)),
    "unroll": _one(lambda env: env.unroll([{"value": 1}] * 9)),
    "asyncio": _in_a_loop,
    "Gymnasium": _one(lambda env: env.step(1), lambda env: GymnasiumEnv(env, unwrap_single=True)),
    "streams": _rows(BatchedEnvironment, 0, {"value": ONES}),
    "rows": _rows(BatchedEnvironment, None, {"value": ONES}),
    "vector of streams": _rows(RemoteVectorEnv, 0, ONES),
    "vector of rows": _rows(RemoteVectorEnv, None, ONES),
}


def check(error: BaseException, way: str, kind: type[Exception], address: str) -> None:
    """Each environment has failed in this way, and its server is named."""
    assert address in str(error)
    failures = list(getattr(error, "failures", {"": error}).values())
    assert len(failures) == (ROWS if "rows" in way or "streams" in way else 1)
    assert all(isinstance(failure, kind) for failure in failures)


@pytest.mark.row(1)
@pytest.mark.parametrize("way", WAYS)
@counts(2, 25)
def test_row_1_a_server_killed_in_mid_step_is_noticed_within_a_second(
    way: str, count: int, seen: Seen
) -> None:
    for _ in range(count):
        with served_echo() as server, WAYS[way](server.address, {"seconds": 30.0}) as step:
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
@pytest.mark.parametrize("way", WAYS)
def test_row_15_a_server_killed_between_steps_is_noticed_and_closing_is_quick(way: str) -> None:
    with served_echo() as server, WAYS[way](server.address, {}) as step:
        step()
        server.signal(signal.SIGKILL)
        assert settles(lambda: not is_alive(server.pid))
        with pytest.raises(FAILED) as caught:
            step()
        check(caught.value, way, ConnectionLostError, server.address)


@pytest.mark.row(2, 15)
@pytest.mark.parametrize("way", ["make", "asyncio", "streams", "rows"])
@counts(1, 12)
def test_row_2_a_frozen_server_is_a_missed_deadline(way: str, count: int, seen: Seen) -> None:
    # On a busy machine a good answer may take longer than a second.
    deadline = 1.0 if is_strict() else 2.0
    for _ in range(count):
        with served_echo() as server:
            opened = WAYS[way](server.address, {}, request_timeout=deadline)
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
