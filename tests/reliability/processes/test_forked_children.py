"""Rows 16, 32 and 62: forks. Children get errors, and parents their answers; all can be closed."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

import dm_env_rpc_client as d
from dm_env_rpc_client import Connection, SpecError, connect, make
from dm_env_rpc_client.adaptors.vector import BatchedEnvironment
from dm_env_rpc_client.launch import from_process, from_python
from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.system import children
from tests.launch.processes import is_alive
from tests.reliability.echoing import Echoing, echoing
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.both_transports import obey
from tests.support.programs import ROOT, run_python
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch, patience

PENDING = range(10)
"""Numbers of requests that the server answers later, so that they are pending at the fork."""

AT_ONCE_SECONDS = 0.5
"""A refusal takes a millisecond, if the processor is free."""

ROUNDS = "tests.reliability.processes.fork_rounds"


@pytest.fixture
def slow_server() -> Iterator[Echoing]:
    """Echoes, some requests later."""
    with echoing("serve", delays=lambda number: 0.3 if number in PENDING else 0.0) as server:
        yield server


@pytest.mark.row(32)
@counts(12, 200)
@pytest.mark.parametrize("kind", ["started", "futures", "callbacks", "coroutines"])
def test_row_32_forks_with_requests_pending(
    kind: str, transport: str, count: int, seen: Seen
) -> None:
    """With 0, 1 and 2; the child uses every method, misses a deadline, collects garbage, exits."""
    stopwatch = Stopwatch()
    with echoing("serve", delays=lambda number: 0.15 if number in PENDING else 0.0) as server:
        timeout = 90 if count < 100 else 900
        finished = run_python("-m", ROUNDS, kind, server.address, count, timeout=timeout)
    found = json.loads(finished.stdout)
    seen(
        forks=found["forks"],
        refusals_in_children=found["refusals"],
        slowest_refusal_s=found["slowest"],
        right_answers=found["right"],
        wrong_answers=found["wrong"],
        lost_answers=found["lost"],
    )
    assert found["forks"] == count
    assert found["refusals"] >= count
    assert found["slowest"] < AT_ONCE_SECONDS + stopwatch.allowance
    # Each round has those that were pending, and one more.
    assert found["right"] == sum(number % 3 + 1 for number in range(count))
    assert (found["wrong"], found["lost"]) == (0, 0), finished.stderr


@pytest.mark.row(16)
@counts(2, 50)
@pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="the parent's loop does not run in the child, says asyncio"
)
def test_row_16_a_child_on_the_parents_loop_is_refused_and_the_parent_is_right(
    slow_server: Echoing, transport: str, count: int, seen: Seen
) -> None:
    if transport == "grpc":
        pytest.skip("grpc.aio wakes its loop by a socket, which the child's loop reads as well")
    finished = run_python("-m", ROUNDS, "same loop", slow_server.address, count, timeout=1800)
    found = json.loads(finished.stdout)
    assert (found["refusals"], found["right"], found["wrong"]) == (count, 3 * count, 0)
    assert finished.stderr == ""
    seen(forks=count)


@pytest.mark.row(16)
def test_row_16_the_server_sees_the_parent_leave_while_the_child_lives(
    echo_environment_server: Server, transport: str
) -> None:
    if transport == "grpc":
        pytest.skip("grpcio keeps its sockets to itself, in forked children too")
    with make(echo_environment_server.address) as env, forked() as pipe:
        env.reset()
        pipe.recv()
        stream: Any = env.connection._stream
        # As a kill would: no LeaveWorld, no GOAWAY, no shutdown of the connection.
        stream._connection._socket.close()
        assert settles(lambda: echo_environment_server.agent_count == 0, 20)


SECONDS = 2.0


@contextlib.contextmanager
def forked(act: Callable[[], object] = lambda: None) -> Iterator[Any]:
    """A child that does something, says so, and lives until the end of the block.

    Yields:
      The end of a pipe on which it says what it has seen.
    """
    mine, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if not pid:
        try:
            theirs.send(act())
            signal.pause()
        except BaseException as error:
            theirs.send(repr(error))
        finally:
            os._exit(0)
    theirs.close()  # So that the end of a child that crashes is seen.
    try:
        yield mine
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        mine.close()


CATCH = "dm_env_rpc_client.server:Catch"


def _begun(env: Any) -> Any:
    env.reset()
    return env


OPENED: dict[str, Callable[[str], Any]] = {
    "make": lambda address: _begun(make(address)),
    "a batch": lambda address: _begun(BatchedEnvironment(address, 2)),
    "streams": lambda address: _begun(BatchedEnvironment(address, 2, num_batches=0)),
    "a connection": connect,
    "a recording": lambda address: _begun(
        make(address, record=Path(tempfile.mkdtemp()) / "run.mcap")
    ),
    "make of a launched server": lambda _: _begun(make(f"python:{CATCH}")),
    "a batch of launched servers": lambda _: _begun(BatchedEnvironment([f"python:{CATCH}"] * 2)),
    "from_python": lambda _: from_python(CATCH),
    "from_process": lambda _: from_process(
        [sys.executable, "-m", "dm_env_rpc_client.server", CATCH, "unix:{socket}"]
    ),
    "a server": lambda _: serve(Catch),
    "a server of processes": lambda _: serve(Catch, transport="http2", processes=1),
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve(Catch) as server:
        yield server.address


@pytest.mark.row(62)
@pytest.mark.parametrize("what", OPENED)
def test_close_takes_no_longer_while_a_forked_child_lives(
    what: str, address: str, seen: Seen
) -> None:
    opened = OPENED[what](address)
    with forked() as pipe:
        pipe.recv()
        stopwatch = Stopwatch()
        opened.stop() if hasattr(opened, "stop") else opened.close()
        seen(closes=1, close_s=stopwatch.seconds)
        assert stopwatch.net < SECONDS


@pytest.mark.row(62)
@counts(2, 50)
def test_a_launched_server_outlives_what_a_forked_child_does(count: int, seen: Seen) -> None:
    """It closes, forgets and collects the launch, and exits."""
    with from_python(CATCH) as launch:
        for _ in range(count):
            with forked(launch.close) as pipe:
                assert pipe.recv() is None
            assert launch.is_running
            with make(launch.address) as env:
                env.reset()
        seen(forks=count)


ORPHAN = f"""
import gc, os, signal, sys, time
from dm_env_rpc_client.launch import from_python
launch = from_python({CATCH!r})
if not os.fork():
    os.close(1)
    signal.pause()
print(launch.pid, flush=True)
{{end}}
"""


@pytest.mark.row(62)
@pytest.mark.parametrize(
    "end",
    ["del launch; gc.collect(); time.sleep(60)", "sys.exit()", "time.sleep(60)"],  # Until killed.
)
def test_a_server_whose_launch_nobody_closes_ends_all_the_same(end: str) -> None:
    """It is forgotten, its process exits, or is killed: a child has a copy of the lifeline."""
    program = ORPHAN.format(end=end)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=children.variables({}),
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            supervisor = int(process.stdout.readline())
            if end.startswith("time"):
                process.kill()
            assert settles(lambda: not is_alive(supervisor))
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _connect_in_child(address: str, transport: str, is_async: bool) -> str:
    obey(transport)
    began = time.monotonic()
    try:
        if is_async:

            async def step() -> None:
                async with await d.make_async(address, timeout=3) as env:
                    await env.reset()

            asyncio.run(step())
        else:
            with make(address, timeout=3) as env:
                env.reset()
                env.step({"paddle": 1})
    except SpecError as error:
        assert time.monotonic() - began < patience(SECONDS)
        return str(error)
    return "it works"


@pytest.mark.row(62)
@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])
@counts(2, 50)
def test_a_new_environment_in_the_child_works_or_is_refused_at_once(
    address: str, transport: str, is_async: bool, count: int, seen: Seen
) -> None:
    for _ in range(count):
        with (
            make(address) as env,
            forked(functools.partial(_connect_in_child, address, transport, is_async)) as pipe,
        ):
            env.reset()
            assert pipe.poll(20), "it hangs"
            said = pipe.recv()
            env.step({"paddle": 1})
        if transport == "grpc":
            assert "transport='http2'" in said
            assert "forked while grpcio was in use" in said
        else:
            assert said == "it works"
    seen(forks=count)


@pytest.mark.row(62)
@pytest.mark.parametrize("use", ["a server", "a channel"])
def test_whatever_uses_grpcio_is_noticed(address: str, transport: str, use: str) -> None:
    if transport != "grpc":
        pytest.skip("it is about grpcio")
    kept: list[grpc.Channel] = []
    with contextlib.ExitStack() as stack:
        if use == "a server":
            stack.enter_context(serve(Catch, transport="grpc"))
        else:
            channel = stack.enter_context(grpc.insecure_channel(address))
            stack.enter_context(Connection(channel))

        def in_child() -> list[str]:
            said = [_connect_in_child(address, transport, False)]
            # Kept: grpcio 1.85 crashes where such a channel is deleted.
            unusable = grpc.insecure_channel(address)
            kept.append(unusable)
            for act in (
                lambda: serve(Catch, transport="grpc"),
                lambda: Connection(unusable),
            ):
                try:
                    act()
                except SpecError as error:
                    said.append(str(error))
            return said

        with forked(in_child) as pipe:
            assert pipe.poll(20), "it hangs"
            said = pipe.recv()
        assert len(said) == 3
        assert all("forked while grpcio was in use" in each for each in said)
