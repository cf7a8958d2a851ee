"""Rows 1 to 4, 6, 13 and 15: processes that are killed or frozen, signals, what is left."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from typing import Any

import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    connect,
    make,
)
from dm_env_rpc_client.server import Server
from tests.launch.processes import is_alive
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict
from tests.support.programs import ROOT, run_python
from tests.support.scripted import (
    SignalledServer,
    extension,
    served_echo,
    settles,
)
from tests.support.stopwatch import Stopwatch, ends_within, time_limit


def kill_in_mid_step() -> float:
    """Kills a server that is stepping; returns the seconds until the client knows."""
    with served_echo() as server, make(server.address, {"seconds": 30.0}) as env:
        env.reset()
        killed = []

        def kill() -> None:
            server.signal(signal.SIGKILL)
            killed.append(time.monotonic())

        timer = threading.Timer(0.02, kill)
        timer.start()
        with pytest.raises(ConnectionLostError, match=server.address):
            env.step({"value": 1})
        noticed = time.monotonic()
        timer.join()
        return noticed - killed[0]


@pytest.mark.row(1)
@counts(10, 200)
def test_row_1_a_server_killed_in_mid_step_is_noticed_within_a_second(
    count: int, seen: Seen
) -> None:
    stopwatch = Stopwatch()
    seconds = [kill_in_mid_step() for _ in range(count)]
    seen(kills=count, noticed_after_s=max(seconds))
    assert max(seconds) < 1.0 + stopwatch.allowance


@pytest.mark.row(2)
@counts(1, 50)
def test_row_2_a_frozen_server_is_a_missed_deadline(count: int, seen: Seen) -> None:
    # On a busy machine a good answer may take longer than a second.
    deadline = 1.0 if is_strict() else 2.0
    late, net = [], []
    for _ in range(count):
        with served_echo() as server:
            env = make(server.address, request_timeout=deadline)
            env.reset()
            server.signal(signal.SIGSTOP)
            started = Stopwatch()
            with pytest.raises(DeadlineExceededError):
                env.step({"value": 1})
            late.append(started.seconds - deadline)
            net.append(started.net - deadline)
            with pytest.raises(ConnectionLostError):
                env.step({"value": 1})
            with time_limit(2):
                env.close()
    seen(frozen_servers=count, error_after_the_deadline_s=max(late))
    assert max(net) < 0.2


@pytest.mark.parametrize("how", ["used", "poisoned", "stepped"])
def test_what_is_forgotten_is_freed(echo_environment_server: Server, how: str) -> None:
    def use() -> weakref.ref[Any]:
        env = make(echo_environment_server.address)
        connection = env._connection
        assert connection is not None
        if how == "stepped":
            env.reset()
            env.step_async({"value": 1}).result(20)
        if how == "poisoned":
            connection._poison(KeyboardInterrupt())
            with pytest.raises(ConnectionLostError):
                env.reset()
        return weakref.ref(connection)

    forgotten = use()
    assert settles(lambda: gc.collect() >= 0 and forgotten() is None)
    assert settles(lambda: echo_environment_server.agent_count == 0)


@pytest.mark.row(15)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_row_15_closing_an_environment_on_a_dead_server(how: signal.Signals) -> None:
    with served_echo() as server:
        env = make(server.address)
        env.reset()
        server.signal(how)
        assert settles(lambda: how is signal.SIGSTOP or not is_alive(server.pid))
        with time_limit(2.2):
            env.close()
            env.close()


@pytest.mark.row(15)
def test_row_15_the_bodys_own_error_survives_the_close() -> None:
    def body(server: SignalledServer) -> None:
        with make(server.address) as env:
            env.reset()
            server.signal(signal.SIGKILL)
            raise ZeroDivisionError

    with served_echo() as server, pytest.raises(ZeroDivisionError):
        body(server)


@pytest.mark.row(15)
@pytest.mark.parametrize(
    "body",
    [
        "connection = connect(address)",
        "connection = connect(address); connection.send(LEAVE)",
        "connection = connect(address); connection.submit(LEAVE)",
        "env = make(address); env.reset()",
        "env = make(address); env.reset(); env.step_async({'value': 1})",
        "env = make(address); env.reset(); raise SystemExit(0)",
        "server = serve(Echo); env = make(server.address); env.reset()",
    ],
)
def test_row_15_a_process_that_forgets_to_close_exits(
    echo_environment_server: Server, body: str
) -> None:
    program = textwrap.dedent(
        f"""
        import sys
        from dm_env_rpc_client import connect, make
        from dm_env_rpc_client.server import serve
        from tests.support.both_transports import obey
        from tests.support.environments import Echo
        from dm_env_rpc_client import dm_env_rpc_pb2
        obey()
        LEAVE = dm_env_rpc_pb2.LeaveWorldRequest()
        address = sys.argv[1]
        try:
            {body}
        finally:
            print("it only has to exit", flush=True)
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, echo_environment_server.address],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "it only has to exit\n"
            with ends_within(5, process):
                pass
            _, said = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0
    assert "Traceback" not in said
    assert settles(lambda: echo_environment_server.agent_count == 0)


@pytest.mark.row(15)
@pytest.mark.parametrize("end", ["", "both_transports.connection.close()"])
def test_row_15_a_thread_of_grpcio_that_is_stopped_in_a_lock_does_not_hinder_the_exit(
    echo_environment_server: Server, transport: str, end: str
) -> None:
    if transport != "grpc":
        pytest.skip("this transport has no threads of grpcio")
    # The interpreter stops daemon threads wherever they are. Those of grpcio take this lock after
    # the end of the call, too, and the call takes it when it is freed.
    program = textwrap.dedent(
        f"""
        import atexit, sys, threading
        is_ended, is_held = threading.Event(), threading.Event()

        def hold():
            is_ended.wait()
            with condition:
                is_held.set()
                threading.Event().wait()

        @atexit.register  # The first to be registered is the last to be called.
        def stop_in_lock():
            answers.join()  # Its thread ends with the stream, and referred to the call.
            is_ended.set()
            is_held.wait()

        from dm_env_rpc_client import connect
        from tests.support import both_transports
        both_transports.obey()
        # Of another module: the globals of this one live as long as the thread that is stopped.
        both_transports.connection = connect(sys.argv[1])
        stream = both_transports.connection._stream
        answers, condition = stream._pump, stream._call._state.condition
        del stream
        threading.Thread(target=hold, daemon=True).start()
        {end}
        """
    )
    finished = run_python("-c", program, echo_environment_server.address, timeout=20)
    assert finished.stderr == ""


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
