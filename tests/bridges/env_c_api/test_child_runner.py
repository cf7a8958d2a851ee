"""The child process: its answers, its end, and what it leaves behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client.bridges.env_c_api.child_process import runner as process_runner
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.child_process.runner import ProcessRunner
from dm_env_rpc_client.bridges.env_c_api.library import Opening
from dm_env_rpc_client.errors import ConnectionLostError, ProtocolError
from dm_env_rpc_client.tensors.memory_limits import DEFAULT
from tests.bridges.env_c_api.compiling import compile_library
from tests.support.scripted import descriptor_count, freeze
from tests.support.stopwatch import Stopwatch


def opening(**kwargs: Any) -> Opening:
    path = compile_library("complete", "1.4")
    complete = Opening(path, "complete_connect", "1.4", None, {}, None, {}, 3, DEFAULT)
    return complete._replace(**kwargs)


@pytest.fixture
def runner() -> Iterator[ProcessRunner]:
    opened = ProcessRunner(opening(), 60.0)
    yield opened
    opened.close()


def test_the_start_of_the_child_takes_nothing_from_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = "import time; time.sleep(2.5); "  # So slow is the machine.
    monkeypatch.setattr(process_runner, "_PROGRAM", slow + process_runner._PROGRAM)
    runner = ProcessRunner(opening(), 2.0)
    assert runner.description.observations
    runner.close()


def test_a_runner_whose_library_does_not_open_ends_its_child() -> None:
    before = descriptor_count()
    with pytest.raises(ProtocolError, match="leaves act_text, advance null"):
        ProcessRunner(opening(library=compile_library("complete", "2.2")), 60.0)
    assert descriptor_count() == before


def test_an_interrupted_call_is_the_last_one(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = ChildPipe.receive

    def interrupted(pipe: ChildPipe, timeout: float | None = None) -> Any:
        real(pipe, timeout)
        raise KeyboardInterrupt

    monkeypatch.setattr(ChildPipe, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.read_property("speed")
    monkeypatch.undo()
    with pytest.raises(ConnectionLostError, match="has ended"):
        runner.read_property("speed")


def test_a_child_that_does_not_come_to_an_end_is_killed(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_runner, "CLOSE_SECONDS", 0.3)
    freeze(runner._process.pid)
    begin = Stopwatch()
    runner.close()
    assert begin.within(5.0)
    assert runner._process.returncode == -signal.SIGKILL
