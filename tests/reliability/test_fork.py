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
from tests.scripted import settles

pytestmark = pytest.mark.row(16, 32)

DELAYED = range(10)
"""Numbers of requests that the server answers later, so that they are pending at the fork."""

MODULE = "tests.reliability.fork_scenarios"


@pytest.fixture
def slow_server() -> Iterator[ScriptedServer]:
    """Echoes, some requests later."""

    def script(requests: Iterator[Request], context: Any) -> Iterator[Response]:
        for request in requests:
            if int(request.extension.value or b"0") in DELAYED:
                time.sleep(0.3)
            yield Response(extension=request.extension)

    with ScriptedServer(script) as server:
        yield server


@counts(2, 20)
@pytest.mark.parametrize("what", ["child", "coroutines", "started", "futures"])
def test_row_32_the_child_is_refused_and_the_parent_is_right(
    slow_server: ScriptedServer, what: str, transport: str, count: int, seen: Seen
) -> None:
    names = [name for name in SCENARIOS if name.endswith(what)]
    if transport == "grpc":
        # grpc.aio wakes its loop by a socket, which the child's loop reads as well.
        names = [name for name in names if "loop" not in name]
    finished = subprocess.run(
        [sys.executable, "-m", MODULE, slow_server.address, str(count), *names],
        capture_output=True,
        text=True,
        timeout=110 if count < 10 else 1800,
        check=False,
    )
    assert finished.stderr == ""
    assert finished.stdout.splitlines() == [f"right: {name}" for name in names]
    assert finished.returncode == 0
    seen(forks=count * len(names))


def test_row_32_the_server_sees_the_parent_leave_while_the_child_lives(
    echo_environment_server: Server, transport: str
) -> None:
    if transport == "grpc":
        pytest.skip("grpcio keeps its sockets to itself, in forked children too")
    process = subprocess.Popen(
        [sys.executable, "-m", MODULE, echo_environment_server.address, "1", "leaves"],
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
