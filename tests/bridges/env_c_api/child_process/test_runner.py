"""The child process: its answers, its end, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dm_env_rpc_client.bridges.env_c_api.child_process import pipe
from dm_env_rpc_client.bridges.env_c_api.child_process import runner as child
from dm_env_rpc_client.bridges.env_c_api.child_process import runner as process_runner
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.child_process.runner import ProcessRunner
from dm_env_rpc_client.bridges.env_c_api.library import Opening
from dm_env_rpc_client.bridges.env_c_api.runner import Actions
from dm_env_rpc_client.errors import ConnectionLostError, ProtocolError
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.children import Parent
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits
from tests.bridges.env_c_api.compiling import compile_library
from tests.launch.processes import is_alive
from tests.support.programs import run_python
from tests.support.scripted import descriptor_count, freeze, settles
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


@pytest.fixture
def answering(pipes: tuple[ChildPipe, ChildPipe]) -> Iterator[ChildPipe]:
    """The parent's end of a pipe whose other end is answered, by a thread of this process."""
    here, there = pipes
    thread = threading.Thread(target=child.answer_calls, args=(there,))
    thread.start()
    yield here
    os.dup2(os.open(os.devnull, os.O_WRONLY), here._writer)
    thread.join(10)
    assert not thread.is_alive()


def test_the_start_of_the_child_takes_nothing_from_the_time_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = "import time; time.sleep(2.5); "  # So slow is the machine.
    monkeypatch.setattr(process_runner, "_PROGRAM", slow + process_runner._PROGRAM)
    runner = ProcessRunner(opening(), 2.0)
    assert runner.description.observations
    runner.close()


def ask(here: ChildPipe, message: Any) -> Any:
    here.send(message, 5.0)
    return here.receive(5.0)


def test_a_message_beyond_the_limits_is_an_error(
    answering: ChildPipe, runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "_MORE_BYTES", 250)
    small = opening(limits=Limits(message_bytes=1), observations=[])
    assert "result" in ask(answering, child.encode_opening(small))
    assert ask(answering, ["unknown"])["error"][0] == "DmEnvRpcClientError"
    name, (text,) = ask(answering, ["list_property", "calls"])["error"]
    assert name == "ProtocolError"
    assert "at most 252" in text
    runner._pipe.limits = small.limits
    with pytest.raises(ProtocolError, match="at most 252"):
        runner.write_property("speed", "1" * 300)


def test_main_answers_calls_and_leaves_signals_to_the_parent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[bool] = []
    monkeypatch.setattr(children, "leave_signals_to_parent", lambda: left.append(True))
    monkeypatch.setattr(child, "ORPHAN_SECONDS", 0.0)
    ended = threading.Event()
    monkeypatch.setattr(os, "_exit", lambda code: ended.set())
    their_reader, writer = os.pipe()
    reader, their_writer = os.pipe()
    os.close(writer)
    child.main(Parent(os.getpid(), their_reader), their_reader, their_writer)
    assert left
    assert ended.wait(10), "an orphan ends itself"
    for descriptor in (reader, their_reader, their_writer):
        os.close(descriptor)


def test_a_runner_ends_its_child_and_leaves_no_descriptor() -> None:
    before = descriptor_count()
    runner = ProcessRunner(opening(), 60.0)
    runner.start(0, 0)
    runner.close()
    runner.close()
    assert runner._process.returncode == 0
    assert descriptor_count() == before


def test_a_forgotten_runner_ends_its_child() -> None:
    runner = ProcessRunner(opening(), 60.0)
    pid = runner._process.pid
    del runner
    assert settles(lambda: not is_alive(pid))


def test_a_runner_whose_library_does_not_open_ends_its_child() -> None:
    before = descriptor_count()
    with pytest.raises(ProtocolError, match="leaves act_text, advance null"):
        ProcessRunner(opening(library=compile_library("complete", "2.2")), 60.0)
    assert descriptor_count() == before


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (signal.SIGKILL, "SIGKILL"),
        (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}"),  # It has no name.
    ],
)
def test_a_child_killed_from_outside_is_a_lost_connection(
    runner: ProcessRunner, number: int, text: str
) -> None:
    runner.start(0, 0)
    os.kill(runner._process.pid, number)
    with pytest.raises(ConnectionLostError, match=f"died in advance: killed by {text}"):
        runner.advance(Actions(None, None, None), 1)


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


@pytest.mark.parametrize("answer", [None, [], {}, {"result": 1, "error": 2}, {"other": 1}, "x"])
def test_an_invalid_answer_ends_the_child(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(ChildPipe, "receive", lambda pipe, timeout=None: answer)
    with pytest.raises(ProtocolError, match="sent an invalid answer"):
        runner.read_property("speed")
    assert runner._process.returncode is not None


def test_a_child_that_does_not_come_to_an_end_is_killed(
    runner: ProcessRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_runner, "CLOSE_SECONDS", 0.3)
    freeze(runner._process.pid)
    begin = Stopwatch()
    runner.close()
    assert begin.within(5.0)
    assert runner._process.returncode == -signal.SIGKILL


def test_a_child_that_cannot_be_started_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = descriptor_count()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        ProcessRunner(opening(), 60.0)
    assert descriptor_count() == before


PROGRAM = """
import os, signal, sys
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
envs = [EnvCApiEnvironment(sys.argv[1], 'complete_connect', isolated=isolated)
        for isolated in (False, True)]
assert all(env.reset().first() for env in envs)
print(envs[1]._runner._process.pid, flush=True)
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_child_ends_with_its_parent_without_a_close(end: str) -> None:
    code = -signal.SIGKILL if end else 0
    library = compile_library("complete", "1.4")
    process = run_python("-W", "error", "-c", PROGRAM + end, library, code=code)
    assert process.stderr == ""
    assert settles(lambda: not is_alive(int(process.stdout)))
