"""Sessions in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment, Server, serve
from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcError
from tests.bridges.gym_socket import hosted
from tests.launch.processes import is_alive
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch


@pytest.fixture
def server() -> Iterator[Server]:
    environments = {"Counter": hosted.Counter, "Broken": hosted.broken}
    with serve(environments, "localhost:0", processes=True) as server:
        yield server


def counter(server: Server, **options: Any) -> GymSocketEnvironment:
    return GymSocketEnvironment(server.address, "Counter", **options)


def pid_of(environment: GymSocketEnvironment) -> int:
    environment.reset()
    environment.step(0)
    return int(environment.info["pid"])


def is_gone(pid: int) -> bool:
    """Waits for a process to end."""
    return settles(lambda: not is_alive(pid))


def test_a_crash_harms_one_session_only(server: Server) -> None:
    with counter(server) as one, counter(server) as other:
        assert len({os.getpid(), pid_of(one), pid_of(other)}) == 3
        start = Stopwatch()
        with pytest.raises(ConnectionLostError):
            one.step(3)
        assert start.within(2.0)
        assert other.step(0).mid()
        assert settles(lambda: len(server.errors) == 1)
        assert "exit code 3" in str(server.errors[0])
    with counter(server) as another:
        assert another.reset().first()


def test_a_hanging_step_does_not_outlive_the_server(server: Server) -> None:
    with counter(server, request_timeout=30) as environment:
        pid = pid_of(environment)
        environment._connection._request_timeout = 0.2
        with pytest.raises(TimeoutError):
            environment.step(4)
        server.stop(0.2)
        assert is_gone(pid)


def test_an_environment_that_cannot_be_made(server: Server) -> None:
    with pytest.raises(DmEnvRpcError, match="RuntimeError: no display"):
        GymSocketEnvironment(server.address, "Broken")
