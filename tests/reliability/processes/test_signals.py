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
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    connect,
    make,
)
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.launch.processes import is_alive
from tests.reliability.echoing import Echoing, echoing
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict
from tests.support.programs import ROOT, run_python
from tests.support.scripted import (
    SignalledServer,
    descriptor_count,
    extension,
    served_echo,
    settles,
    thread_count,
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


INTERRUPTING = """
import random, signal, sys
from dm_env_rpc_client import ConnectionLostError
from tests.support.both_transports import obey
from tests.support.scripted import extension

obey()

class Interrupt(BaseException):
    pass

def interrupt(number, frame):
    raise Interrupt

address, rounds = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(0)
"""

INTERRUPTED = (
    INTERRUPTING
    + """
from dm_env_rpc_client import connect

interrupted = stale = dead = number = 0
connection = connect(address)
while interrupted < rounds:
    try:
        # And again: Python ignores an interrupt that comes in a callback of a weak reference.
        signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.002 + 1e-5, 1.0)
        while True:
            number += 1
            # A loop in a `try` ends in no condition: see tests/system/test_locks.py.
            stale += connection.send(extension(number)) != extension(number)
    except Interrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    number += 1
    try:
        stale += connection.send(extension(number), timeout=5) != extension(number)
    except ConnectionLostError:
        dead += 1
        connection.close()
        connection = connect(address)
connection.close()
print(interrupted, stale, dead)
"""
)


def check_interrupted(program: str, address: str, count: int, seen: Seen) -> None:
    """Runs a program that is interrupted so often, and counts what it has seen."""
    finished = run_python("-c", program, address, count, timeout=500)
    interrupted, stale, dead = map(int, finished.stdout.split())
    seen(interrupts=interrupted, stale_answers=stale, unusable_connections=dead)
    assert (interrupted, stale) == (count, 0)
    assert dead > count / 2


@pytest.mark.row(6)
@counts(60, 1_000)
def test_row_6_interrupts_at_random_points_leave_no_stale_answer(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    check_interrupted(INTERRUPTED, echo_server.address, count, seen)


INTERRUPTED_TOGETHER = (
    INTERRUPTING
    + """
from dm_env_rpc_client.client.connection_group import ConnectionGroup

interrupted = stale = dead = number = 0
connections = []
while interrupted < rounds:
    if not connections:
        group = ConnectionGroup(address)
        connections = [group.open() for _ in range(4)]
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.random() * 0.003 + 1e-5, 2.0)
        while True:
            pending = []
            with group.together():
                for connection in connections:
                    for _ in range(2):
                        number += 1
                        request = extension(number)
                        pending.append((connection, request, connection.start(request)))
            for connection, request, started in pending:
                stale += connection.wait(started) != request
    except Interrupt:
        interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    usable = []
    for connection in connections:
        number += 1
        try:
            stale += connection.send(extension(number), timeout=5) != extension(number)
            usable.append(connection)
        except ConnectionLostError:
            dead += 1
    if len(usable) < len(connections):
        for connection in connections:
            connection.close()
        connections = []
print(interrupted, stale, dead)
"""
)


@pytest.mark.row(6)
@counts(60, 1_000)
def test_row_6_interrupts_leave_no_stale_answer_to_others_on_the_same_socket(
    count: int, seen: Seen
) -> None:
    with echoing("serve") as server:
        check_interrupted(INTERRUPTED_TOGETHER, server.address, count, seen)


@pytest.mark.row(13)
@counts(100, 2_000)
def test_row_13_opens_and_closes_leave_nothing_behind(
    echo_server: Echoing, count: int, seen: Seen
) -> None:
    def open_and_close() -> None:
        with connect(echo_server.address) as connection:
            connection.send(extension(1))
            connection.submit(extension(2)).result()

    open_and_close()
    assert settles(lambda: echo_server.open_streams == 0)
    threads, descriptors = thread_count(), descriptor_count()
    for _ in range(count):
        open_and_close()
    assert settles(lambda: echo_server.open_streams == 0, 1.0)
    assert settles(lambda: thread_count() <= threads + 2)
    assert settles(lambda: descriptor_count() <= descriptors)
    seen(
        connections=count,
        threads_more=float(max(0, thread_count() - threads)),
        descriptors_more=float(max(0, descriptor_count() - descriptors)),
    )


def test_connections_that_are_forgotten_are_ended(echo_server: Echoing) -> None:
    connection = connect(echo_server.address)
    connection.send(extension(1))
    connection.submit(extension(1)).result()
    assert echo_server.open_streams == 1
    del connection
    assert settles(lambda: echo_server.open_streams == 0)


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
def test_row_15_close_in_every_state_is_quick_and_raises_nothing(
    echo_server: Echoing, seen: Seen
) -> None:
    unused = connect(echo_server.address)
    used = connect(echo_server.address)
    used.send(extension(1))
    in_flight = connect(echo_server.address)
    in_flight.submit(extension(1))
    for connection in (unused, used, in_flight):
        began = time.monotonic()
        with time_limit(2):
            connection.close()
            connection.close()
        seen(closes=2, close_s=time.monotonic() - began)


@pytest.mark.row(15)
def test_row_15_close_on_a_stream_that_the_server_does_not_end() -> None:
    release = threading.Event()

    def stubborn(requests: Iterator[Request], context: grpc.ServicerContext) -> Iterator[Response]:
        yield Response(extension=next(requests).extension)
        release.wait(20)

    with ScriptedServer(stubborn) as server:
        connection = connect(server.address)
        connection.send(extension(1))
        with time_limit(2):
            connection.close()
        release.set()


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
