"""Worker processes that end, are killed, stopped or replaced."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DmEnvRpcError,
    connect,
    create_world,
    destroy_world,
    make,
)
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.health_check import check_health
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.server import hosted
from tests.server.hosted import Where
from tests.server.worker_processes import (
    START_SECONDS,
    are_complete,
    have_ended,
    pid_of,
    process_with,
    processes_of,
    worker_with,
)
from tests.support.scripted import freeze, settles
from tests.support.stopwatch import Stopwatch, patience, time_limit


@pytest.mark.parametrize("processes", [1, 2])
def test_what_killed_workers_have_counted_is_told(processes: int) -> None:
    with serve(hosted.make, processes=processes) as server:
        steps = 0
        for replaced, count in enumerate((1_000, 10, 10)):
            assert settles(lambda: are_complete(server), START_SECONDS)
            with make(server.address) as env:
                pid = pid_of(env)
                for _ in range(count):
                    env.step({"do": 0})
                with pytest.raises(DmEnvRpcError, match="told to"):
                    env.step({"do": hosted.RAISE})
                os.kill(pid, signal.SIGKILL)
                future = env.step_async({"do": 0})
                assert isinstance(future.exception(), ConnectionLostError)
            steps += 1 + count + 1
            errors = 2 * (replaced + 1)
            assert settles(lambda: server.stats().errors == errors)  # noqa: B023
            stats = server.stats()
            # One that was counted may have no answer.
            assert 0 <= stats.steps - steps <= replaced + 1
            assert stats.agents == 0
            done = (stats.all_streams, stats.requests["create_world"], stats.requests["join_world"])
            assert done == (replaced + 1,) * 3
        told = [error for error in server.errors if str(error) == "OwnError: told to"]
        ended = [error for error in server.errors if isinstance(error, ChildProcessError)]
        assert (len(told), len(ended)) == (3, 3)


def test_stopping_lets_steps_end_and_ends_the_processes(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/socket"
    server = serve("tests.server.hosted:make", address, processes=1)
    pids = processes_of(server)
    with make(address) as env:
        assert [pid_of(env)] == pids
        future = env.step_async({"do": hosted.SLEEP})
        assert settles(lambda: server.stats().steps == 2)
        with time_limit(10):
            server.stop(2.0)
        assert future.result().mid()
    assert have_ended(pids)
    assert not (tmp_path / "socket").exists()
    assert server.wait(0.0)
    assert server.stats().steps == 2
    server.stop()


def test_a_request_that_may_have_ended_a_worker_is_not_given_to_another() -> None:
    with serve(hosted.EndsAtOnce, processes=2) as server, connect(server.address) as connection:
        with pytest.raises(ConnectionLostError, match="answering the request has ended") as caught:
            create_world(connection)
        assert caught.value.code == "UNAVAILABLE"
        assert settles(lambda: len(server.errors) == 1)
        assert "was ended by SIGKILL" in str(server.errors[0])


def test_what_an_environment_has_forked_keeps_no_client_waiting(tmp_path: Path) -> None:
    path = tmp_path / "child"
    with (
        serve(functools.partial(hosted.ForksInC, str(path)), processes=1) as server,
        make(server.address) as env,
    ):
        os.kill(pid_of(env), signal.SIGKILL)
        try:
            with time_limit(5), pytest.raises(ConnectionLostError, match="world has ended"):
                env.step({"do": 0})
        finally:
            os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.mark.row(52)
@counts(1, 10)
def test_a_worker_that_is_stopped_by_a_signal_is_replaced(count: int, seen: Seen) -> None:
    stopwatch = Stopwatch()
    slowest_error = slowest_other = 0.0
    with serve(Where, processes=2) as server:
        for _ in range(count):
            assert settles(lambda: are_complete(server), START_SECONDS)
            with make(server.address) as env, make(server.address) as going_on:
                stopped = pid_of(env)
                assert pid_of(going_on) != stopped
                before = len(server.errors)
                freeze(stopped)
                begin = time.monotonic()
                future = env.step_async({"do": 0})
                while not future.done():
                    began = time.monotonic()
                    with make(server.address) as other:
                        assert pid_of(other) != stopped
                    slowest_other = max(slowest_other, time.monotonic() - began)
                    assert going_on.step({"do": 0}).mid()
                    time.sleep(0.05)  # A machine with two cores has other things to do, too.
                slowest_error = max(slowest_error, time.monotonic() - begin)
                with pytest.raises(ConnectionLostError, match="stream's world has ended"):
                    future.result()
            assert settles(lambda: len(server.errors) > before)  # noqa: B023  # runs now
            text = str(server.errors[-1])
            assert f"{stopped} was stopped by a signal for 10 s and was killed, its" in text
            assert text.endswith("worlds are lost; it is replaced")
    seen(stopped_workers=count, error_after_s=slowest_error, other_client_s=slowest_other)
    # The first of the looks is not waited for.
    assert 9.75 <= slowest_error < 20 + stopwatch.allowance
    assert slowest_other < 1.0 + stopwatch.allowance


@pytest.mark.row(52)
def test_a_worker_that_is_being_killed_gets_no_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(Where, processes=2) as server:
        for worker in (worker_with(server, pid) for pid in processes_of(server)):
            # A signal takes effect some time after it is sent: here, after the worlds are created.
            with monkeypatch.context() as patch:
                patch.setattr(worker._process, "kill", lambda: None)
                worker.kill("was stopped by a signal for 10 s")
                for _ in range(3):
                    with make(server.address) as env:
                        assert pid_of(env) != worker.pid
            os.kill(worker.pid, signal.SIGKILL)
            assert settles(lambda: len(set(processes_of(server)) - {worker.pid}) == 2)  # noqa: B023
            assert settles(lambda: are_complete(server), START_SECONDS)


@pytest.mark.row(52)
@pytest.mark.parametrize("settings", [{}, {"num_envs": 2}], ids=["worlds", "batches"])
def test_stopping_lets_a_stopped_worker_close_its_worlds(
    settings: dict[str, int], tmp_path: Path
) -> None:
    server = serve(functools.partial(hosted.Closing, str(tmp_path)), processes=2)
    with make(server.address, settings) as env, make(server.address, settings) as other:
        env.reset()
        other.reset()
        pids = processes_of(server)
        freeze(pids[0])
        with time_limit(4.0):
            server.stop(2.0)
    assert have_ended(pids)
    assert hosted.closed(tmp_path) == sorted(pids * settings.get("num_envs", 1))


@pytest.mark.row(52)
def test_a_worker_that_is_stopped_again_and_again_is_killed_after_the_grace() -> None:
    server = serve(hosted.StopsItself, processes=1)
    (pid,) = processes_of(server)
    with connect(server.address) as connection:
        create_world(connection)
    with time_limit(4.0):
        server.stop(1.0)
    assert have_ended([pid])
    assert "did not stop in time and was killed, not all of its worlds" in str(server.errors[-1])


def test_a_worker_that_holds_the_gil_is_not_killed_and_gets_no_more_streams(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    held = tmp_path / "held"
    monkeypatch.setenv(hosted.HELD, str(held))
    monkeypatch.setattr("dm_env_rpc_client.server.processes.worker_pool._STOPPED_SECONDS", 0.5)
    with serve(Where, processes=2) as server, contextlib.ExitStack() as stack:
        env = stack.enter_context(make(server.address))
        # So that the one that computes has the fewest worlds.
        more = stack.enter_context(connect(server.address))
        busy = pid_of(env)
        for name in [create_world(more) for _ in range(3)]:
            if process_with(server, name) == busy:
                destroy_world(more, name)
        future = env.step_async({"do": hosted.HOLD})
        worker = worker_with(server, busy)
        # Otherwise a busy machine may make the world first.
        assert settles(held.exists)
        waiting = stack.enter_context(connect(server.address))
        create = threading.Thread(target=create_world, args=(waiting,), daemon=True)
        create.start()
        assert settles(lambda: worker.is_behind, 10)
        with make(server.address) as other:
            assert pid_of(other) != busy
        assert check_health(Endpoint(server.address), "", patience(10.0)).status == "SERVING"
        assert not future.done()
        assert future.result(30).mid()
        create.join(30)
        assert server.world_count == 4
        assert server.errors == []
        assert settles(lambda: not worker.is_behind)


def test_only_the_thread_that_supervises_a_worker_touches_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # `close` in one thread and `is_alive` in another is a ValueError, or an end that nobody sees.
    touched: set[tuple[str, str]] = set()

    def told(name: str) -> Callable[..., Any]:
        whole = getattr(BaseProcess, name)

        def method(self: BaseProcess, *arguments: Any) -> Any:
            if self.name.startswith("dm_env_rpc worker"):
                touched.add((name, threading.current_thread().name))
            return whole(self, *arguments)

        return method

    names = ("is_alive", "join", "kill", "terminate", "close")
    for name in names:
        monkeypatch.setattr(BaseProcess, name, told(name))
    with serve(hosted.make, processes=1) as server:
        (replaced,) = pids = processes_of(server)
        os.kill(replaced, signal.SIGKILL)
        assert settles(lambda: replaced not in processes_of(server), START_SECONDS)
        with make(server.address) as env:
            pids.append(pid_of(env))
        assert server.stats().all_streams == 1
        assert [type(error) for error in server.errors] == [ChildProcessError]
    server.stop()
    assert have_ended(pids)
    assert touched >= {(name, "dm_env_rpc supervises worker 0") for name in ("is_alive", "close")}
    assert {thread for _, thread in touched} == {"dm_env_rpc supervises worker 0"}


@pytest.mark.parametrize("settings", [{}, {"num_envs": 4}], ids=["stream", "rows"])
def test_the_workers_of_a_server_that_is_killed_close_their_environments_and_end(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    program = (
        "import multiprocessing, sys\n"
        "from dm_env_rpc_client.server import serve\n"
        "from tests.server.hosted import Closing\n"
        "server = serve(Closing, processes=2)\n"
        "pids = [child.pid for child in multiprocessing.active_children()]\n"
        "print(server.address, *pids, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address, *texts = process.stdout.readline().split()
        pids = [int(text) for text in texts]
        assert len(pids) == 2
        with make(address, {"folder": str(tmp_path), **settings}) as env:
            env.reset()
            count = len(list(tmp_path.glob("*.open")))
            assert count == settings.get("num_envs", 1)
            process.kill()
            assert settles(lambda: have_ended(pids), 15)
            with pytest.raises(ConnectionLostError):
                env.reset()
    assert len(hosted.closed(tmp_path)) == count
