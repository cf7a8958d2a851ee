"""Rows 16 and 32: a fork with requests pending. The child gets errors, the parent its answers."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import Request, Response, ScriptedServer
from tests.reliability.fork_scenarios import SCENARIOS
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts
from tests.scripted import number_of, settles

pytestmark = pytest.mark.row(16, 32)

DELAYED = range(10)
"""Numbers of requests that the server answers later, so that they are pending at the fork."""

MODULE = "tests.reliability.fork_scenarios"


@pytest.fixture
def slow_server() -> Iterator[ScriptedServer]:
    """Echoes, some requests later."""

    def script(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        for request in requests:
            if number_of(request.extension) in DELAYED:
                time.sleep(0.3)
            yield Response(extension=request.extension)

    with ScriptedServer(script) as server:
        yield server


@counts(2, 20)
@pytest.mark.parametrize("name", SCENARIOS)
def test_row_32_the_child_is_refused_and_the_parent_is_right(
    slow_server: ScriptedServer, name: str, transport: str, count: int, seen: Seen
) -> None:
    if transport == "grpc" and "loop" in name:
        pytest.skip("grpc.aio wakes its loop by a socket, which the child's loop reads as well")
    finished = subprocess.run(
        [sys.executable, "-m", MODULE, name, slow_server.address, str(count)],
        capture_output=True,
        text=True,
        timeout=90 if count < 10 else 900,
        check=False,
    )
    assert finished.stdout == "right\n", finished.stderr
    assert finished.returncode == 0, finished.stderr
    seen(forks=count)


def test_row_32_the_server_sees_the_parent_leave_while_the_child_lives(
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
