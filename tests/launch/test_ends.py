"""A launched server that dies says why, in the error of the step that notices it."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import time
from typing import Any

import pytest

from dm_env_rpc_client import (
    BatchedEnvironment,
    ConnectionLostError,
    EnvironmentsFailedError,
    make,
    make_async,
)
from dm_env_rpc_client.launch import from_python, launched
from dm_env_rpc_client.testing import FaultProxy
from dm_env_rpc_client.transports.endpoint import Transport
from tests.launch.processes import kill
from tests.support.environments import Echo
from tests.support.scripted import settles
from tests.support.stopwatch import patience

MORTAL = "python:tests.launch.test_ends:Mortal"

ENDS = {
    "os.kill(os.getpid(), 11)": (-11, "was ended by signal 11 (SIGSEGV)"),
    "os._exit(3)": (3, "ended with exit code 3"),
    "os.kill(os.getpid(), 9)": (-9, "was ended by signal 9 (SIGKILL)"),
    "[print(f'line {i}') for i in range(10_000)]; os.abort()": (
        -6, "was ended by signal 6 (SIGABRT)",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _processes_may_end_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine, a process may need a while between closing its sockets and its end.
    monkeypatch.setattr(launched, "_END_SECONDS", patience(launched._END_SECONDS))


class Mortal(Echo):
    """Prints its last words, and runs `end` in the first step."""

    def __init__(self, end: str = ""):
        super().__init__()
        self._end = end

    def step(self, action: Any) -> Any:
        print("no licence\x1b[2J")
        exec(self._end, {"os": os})
        time.sleep(60)  # A signal may be delivered to another thread.


def check(error: ConnectionLostError, end: str) -> None:
    code, said = ENDS[end]
    text = str(error)
    assert f"the server {said}: " in text
    assert "Its last lines:\n" in text
    assert "dm_env_rpc_client.server" in text
    assert text.count("Its last lines") == 1
    assert "\x1b" not in text
    if "10_000" in end:
        assert text.endswith("line 9998\nline 9999")
        assert "line 9900\n" not in text
    else:
        assert text.endswith("no licence\\x1b[2J")
    assert error.server_end is not None
    assert error.server_end.exit_code == code
    assert str(pickle.loads(pickle.dumps(error))) == str(copy.copy(error)) == text


@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("end", ENDS)
def test_a_step(end: str, transport: Transport) -> None:
    with make(MORTAL, {"end": end}, transport=transport) as env:
        env.reset()
        with pytest.raises(ConnectionLostError) as caught:
            env.step({"value": 1})
        check(caught.value, end)
        # So do the steps after it.
        with pytest.raises(ConnectionLostError) as later:
            env.step({"value": 1})
        check(later.value, end)
        assert env.server is not None
    assert env.server.exit_code == ENDS[end][0]
    assert "no licence" in env.server.logs() or "line 9999" in env.server.logs()


def test_futures_coroutines_and_environments_of_a_batch() -> None:
    end = "os._exit(3)"
    with make(MORTAL, {"end": end}) as env:
        env.reset()
        error = env.submit_step({"value": 1}).exception()
        assert isinstance(error, ConnectionLostError)
        check(error, end)

    async def run() -> None:
        async with await make_async(MORTAL, {"end": end}) as env:
            await env.reset()
            with pytest.raises(ConnectionLostError) as caught:
                await env.step({"value": 1})
            check(caught.value, end)

    asyncio.run(run())
    with BatchedEnvironment([MORTAL, MORTAL], create_world_settings={"end": end}) as batch:
        batch.reset()
        with pytest.raises(EnvironmentsFailedError, match="ended with exit code 3") as failed:
            batch.step({"value": [1, 1]})
        for each in failed.value.failures.values():
            assert isinstance(each, ConnectionLostError)
            check(each, end)


def test_a_server_that_was_launched_by_hand_and_noticed_before_a_step_is_sent() -> None:
    with from_python("tests.launch.test_ends:Mortal") as launch, make(launch.address) as env:
        assert env.server is None
        env.reset()
        kill(launch)
        assert settles(env.connection.has_unread)
        with pytest.raises(ConnectionLostError, match=r"by signal 9 \(SIGKILL\)") as caught:
            env.step({"value": 1})
        assert caught.value.server_end is not None


def test_a_connection_that_is_lost_while_the_server_runs_has_no_such_words() -> None:
    with from_python("tests.launch.test_ends:Mortal") as launch, FaultProxy(launch.address) as way:
        with make(way.address) as env:
            env.reset()
            way.reset()
            with pytest.raises(ConnectionLostError) as caught:
                env.step({"value": 1})
            assert env.restarts == 0
        assert caught.value.server_end is None
        assert launch.is_running
