"""`stop` has a limit in every state of the workers, and says what it waits for."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import connect, create_world, make
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.server.processes import worker_pool
from tests.server import hosted
from tests.server.hosted import Where
from tests.server.worker_processes import START_SECONDS, have_ended, pid_of, processes_of
from tests.support.environments import Echo
from tests.support.scripted import freeze, settles
from tests.support.stopwatch import time_limit


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_STOP_SECONDS", 0.5)
    monkeypatch.setattr(worker_pool, "_END_SECONDS", 0.5)


def test_a_worker_that_is_starting_is_not_waited_for(tmp_path: Path) -> None:
    server = serve(hosted.SlowToLoad(str(tmp_path)), processes=1)
    (tmp_path / "slow").touch()
    (former,) = processes_of(server)
    os.kill(former, signal.SIGKILL)
    assert settles(lambda: any(tmp_path.glob("*.loads")), START_SECONDS)
    pids = processes_of(server)
    assert pids != [former]
    with time_limit(5.0):
        assert server.stop(0.0)
    assert have_ended(pids)


def test_a_worker_whose_start_is_stuck_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, short_limits: None
) -> None:
    server = serve(Where, processes=1)
    is_begun, goes_on = threading.Event(), threading.Event()

    def start(*_: Any) -> None:
        is_begun.set()  # As one that a signal has stopped before it has read what is sent to it.
        assert goes_on.wait(60)
        raise OSError("it was not started")

    monkeypatch.setattr(worker_pool, "WorkerProcess", start)
    os.kill(processes_of(server)[0], signal.SIGKILL)
    assert is_begun.wait(START_SECONDS)
    try:
        with time_limit(5.0):
            server.stop(0.0)
    finally:
        goes_on.set()


def test_a_worker_that_is_stopped_within_a_message_is_killed(short_limits: None) -> None:
    server = serve(hosted.StopsInAMessage, processes=1)
    pids = processes_of(server)
    with connect(server.address) as connection:
        create_world(connection)
    with time_limit(5.0):
        assert not server.stop(0.0)
    assert settles(lambda: have_ended(pids))


@pytest.mark.parametrize("how", ["killed", "stopped", "in an endless step"])
def test_a_worker_in_another_state_is_ended(how: str, short_limits: None) -> None:
    server = serve(hosted.Endless, processes=2)
    pids = processes_of(server)
    with make(server.address) as env:
        pid = pid_of(env)
        step = env.step_async({"do": 0}) if how == "in an endless step" else None
        if how == "killed":
            os.kill(pid, signal.SIGKILL)
        if how == "stopped":
            freeze(pid)
        with time_limit(8.0):
            server.stop(0.0)
        assert step is None or step.exception() is not None
    assert have_ended(pids)
    assert have_ended(processes_of(server))


def waits_for(caplog: pytest.LogCaptureFixture, server: Server, go_on: Callable[[], None]) -> str:
    """Stops a server; returns what it said that it waits for. Then this goes on."""
    texts: list[str] = []

    def look() -> None:
        assert settles(lambda: any("still waits" in text for text in caplog.messages), 20.0)
        texts.extend(text for text in caplog.messages if "still waits" in text)
        go_on()

    thread = threading.Thread(target=look)
    with caplog.at_level(logging.WARNING):
        thread.start()
        server.stop(0.0)
    thread.join()
    (text,) = texts
    beginning = f"the server at {server.address} still waits for "
    assert text.startswith(beginning)
    return text.removeprefix(beginning)


def test_an_environment_that_closes_slowly_is_named(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()

    class SlowToClose(Echo):
        def close(self) -> None:
            assert goes_on.wait(60)

    server = serve(SlowToClose)
    with connect(server.address) as connection:
        name = create_world(connection)
    assert waits_for(caplog, server, goes_on.set) == (
        f"world {name!r} to close; it may be in a step"
    )


@pytest.mark.parametrize("processes", [None, 1])
def test_open_streams_are_counted(processes: int | None) -> None:
    with serve(Where, processes=processes) as server, connect(server.address) as connection:
        create_world(connection)
        assert server._serving.awaited().startswith("1 streams to end")


def test_a_stopped_worker_is_named(caplog: pytest.LogCaptureFixture) -> None:
    server = serve(hosted.StopsItself, processes=1)
    (pid,) = processes_of(server)
    with connect(server.address) as connection:
        create_world(connection)
    # A stop of the test: the server itself kills it at once, since the grace is over.
    worker = next(iter(server._serving._workers.values()))  # type: ignore[union-attr]
    kill = worker._process.kill
    worker._process.kill = lambda: None  # type: ignore[method-assign]
    text = waits_for(caplog, server, kill)
    assert text == f"worker process {pid}, which a signal has stopped"
