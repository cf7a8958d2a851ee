"""Rows 16 and 32: a fork with requests pending. The child gets errors, the parent its answers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dm_env_rpc_client.server import Server
from tests.reliability.echoing import Echoing, echoing
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.support.programs import run_python
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch

PENDING = range(10)
"""Numbers of requests that the server answers later, so that they are pending at the fork."""

AT_ONCE_SECONDS = 0.5
"""A refusal takes a millisecond, if the processor is free."""

MODULE = "tests.reliability.processes.fork_scenarios"
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
    with echoing("serve", delays=lambda number: 0.05 if number in PENDING else 0.0) as server:
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
    arguments = ("same_loop", slow_server.address, count)
    finished = run_python("-m", MODULE, *arguments, timeout=1800)
    assert finished.stderr == ""
    seen(forks=count)


@pytest.mark.row(16)
def test_row_16_the_server_sees_the_parent_leave_while_the_child_lives(
    echo_environment_server: Server, transport: str
) -> None:
    if transport == "grpc":
        pytest.skip("grpcio keeps its sockets to itself, in forked children too")
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, "leaves", echo_environment_server.address, "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "left\n"
        assert settles(lambda: echo_environment_server.agent_count == 0, 20)
        process.stdin.write("\n")
        process.stdin.flush()
    assert process.returncode == 0
