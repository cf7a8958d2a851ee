"""The child process: its answers, its end, and what it leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import pytest

from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment
from dm_env_rpc_client.bridges.env_c_api.child_process import child, pipe
from dm_env_rpc_client.bridges.env_c_api.child_process import runner as process_runner
from dm_env_rpc_client.bridges.env_c_api.child_process.pipe import ChildPipe
from dm_env_rpc_client.bridges.env_c_api.child_process.runner import ProcessRunner
from dm_env_rpc_client.bridges.env_c_api.runner import Actions
from dm_env_rpc_client.errors import ConnectionLostError, ProtocolError
from dm_env_rpc_client.system import children
from dm_env_rpc_client.system.children import Parent
from dm_env_rpc_client.tensors.limits import Limits
from tests.bridges.env_c_api.compiling import compile_library
from tests.launch.processes import is_alive
from tests.scripted import descriptor_count, freeze, settles
from tests.stopwatch import Stopwatch


def open_runner(**kwargs: Any) -> ProcessRunner:
    arguments: dict[str, Any] = {
        "version": "1.4",
        "settings": {},
        "launch_params": None,
        "observations": None,
        "shapes": {},
        "start_attempts": 3,
        "request_timeout": 60.0,
    }
    path = compile_library("complete", "1.4")
    return ProcessRunner(path, "complete_connect", **(arguments | kwargs))


def test_calls_are_answered_until_the_pipe_is_closed() -> None:
    """The loop of the child, in a thread of this process."""
    their_reader, writer = os.pipe()
    reader, their_writer = os.pipe()
    there, here = ChildPipe(their_reader, their_writer), ChildPipe(reader, writer)
    thread = threading.Thread(target=child.answer_calls, args=(there,))
    thread.start()

    def ask(message: Any) -> Any:
        here.send(message, 5.0)
        return here.receive(5.0)

    def call(*message: Any) -> Any:
        return ask(message)

    path = compile_library("complete", "1.4")
    connect = "complete_connect_with_params"
    opened = ask(child.encode_opening(path, connect, "1.4", ["title"], {}, None, {}, 1))
    assert opened["result"][0] == "complete"
    assert call("start", 0, 0)["result"][0] == "RUNNING"
    assert call("advance", Actions([1, 1], [0.5], ["ab"]), 2)["result"][1] == 26.5
    assert call("write_property", "speed", "3") == {"result": None}
    assert call("read_property", "speed") == {"result": "3"}
    assert ["speed", 3] in call("list_property", "")["result"]
    assert call("read_property", "none")["error"][0] == "PropertyError"
    assert call("unknown")["error"][0] == "DmEnvRpcClientError"
    assert call("close") == {"result": None}
    here.close()
    thread.join(10)
    assert not thread.is_alive()
    there.close()


def test_an_answer_beyond_the_limits_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipe, "_MORE_BYTES", 100)
    small = Limits(message_bytes=100)
    runner = open_runner()
    runner._pipe._most_bytes = 300
    with pytest.raises(ProtocolError, match="at most 300"):
        runner.write_property("speed", "1" * 400)
    runner.close()
    their_reader, writer = os.pipe()
    reader, their_writer = os.pipe()
    there, here = ChildPipe(their_reader, their_writer, small), ChildPipe(reader, writer)
    thread = threading.Thread(target=child.answer_calls, args=(there,))
    thread.start()
    path = compile_library("complete", "1.4")
    here.send(child.encode_opening(path, "complete_connect", "1.4", None, {}, None, {}, 1), 5.0)
    assert here.receive(5.0)["error"][0] == "ProtocolError"
    here.close()
    thread.join(10)
    there.close()


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
    gone = Parent(os.getpid(), their_reader)
    child.main(gone, their_reader, their_writer, Limits())
    assert left
    assert ended.wait(10), "an orphan ends itself"
    for descriptor in (reader, their_reader, their_writer):
        os.close(descriptor)


def test_a_runner_ends_its_child_and_leaves_no_descriptor() -> None:
    before = descriptor_count()
    runner = open_runner()
    pid = runner._process.pid
    runner.start(0, 0)
    runner.close()
    runner.close()
    assert not is_alive(pid)
    assert runner._process.returncode == 0
    assert descriptor_count() == before


def test_a_forgotten_runner_ends_its_child() -> None:
    runner = open_runner()
    pid = runner._process.pid
    del runner
    assert settles(lambda: not is_alive(pid))


def test_a_runner_whose_library_does_not_open_ends_its_child() -> None:
    before = descriptor_count()
    with pytest.raises(ProtocolError, match="leaves act_text, advance null"):
        ProcessRunner(
            compile_library("complete", "2.2"),
            "complete_connect",
            version="1.4",
            settings={},
            launch_params=None,
            observations=None,
            shapes={},
            start_attempts=1,
            request_timeout=60.0,
        )
    assert descriptor_count() == before


def test_a_child_killed_from_outside_is_a_lost_connection() -> None:
    runner = open_runner()
    runner.start(0, 0)
    os.kill(runner._process.pid, signal.SIGKILL)
    with pytest.raises(ConnectionLostError, match="killed by SIGKILL"):
        runner.advance(Actions(None, None, None), 1)
    runner.close()


def test_a_signal_without_a_name_is_told_by_its_number() -> None:
    runner = open_runner()
    os.kill(runner._process.pid, signal.SIGRTMIN + 1)
    with pytest.raises(ConnectionLostError, match=f"killed by signal {signal.SIGRTMIN + 1}"):
        runner.read_property("speed")
    runner.close()


def test_an_interrupted_call_is_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = open_runner()
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
    runner.close()


@pytest.mark.parametrize("answer", [None, [], {}, {"result": 1, "error": 2}, {"other": 1}, "x"])
def test_an_invalid_answer_ends_the_child(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    runner = open_runner()
    monkeypatch.setattr(ChildPipe, "receive", lambda pipe, timeout=None: answer)
    with pytest.raises(ProtocolError, match="sent an invalid answer"):
        runner.read_property("speed")
    monkeypatch.undo()
    assert runner._process.returncode is not None


def test_a_child_that_does_not_come_to_an_end_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_runner, "CLOSE_SECONDS", 0.3)
    runner = open_runner()
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
        open_runner()
    assert descriptor_count() == before


def test_a_child_whose_parent_is_killed_ends_too() -> None:
    library = compile_library("complete", "1.4")
    program = (
        "import os, signal, sys\n"
        "from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment\n"
        "env = EnvCApiEnvironment(sys.argv[1], 'complete_connect', isolated=True)\n"
        "print(env._runner._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run(
        [sys.executable, "-c", program, library],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert process.returncode == -signal.SIGKILL
    pid = int(process.stdout)
    assert settles(lambda: not is_alive(pid))


def test_an_interpreter_exits_without_a_close() -> None:
    library = compile_library("complete", "1.4")
    program = (
        "import sys\n"
        "from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment\n"
        "envs = [EnvCApiEnvironment(sys.argv[1], 'complete_connect', isolated=isolated)\n"
        "        for isolated in (False, True)]\n"
        "print([env.reset().first() for env in envs])\n"
    )
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, library],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (process.returncode, process.stdout, process.stderr) == (0, "[True, True]\n", "")


def test_many_environments_live_side_by_side() -> None:
    path = compile_library("complete", "1.4")
    environments = [
        EnvCApiEnvironment(path, "complete_connect", isolated=True, episode_seeds=seed)
        for seed in range(4)
    ]
    seeds = [int(env.reset().observation["body"]["position"][1]) for env in environments]
    assert seeds == [0, 1, 2, 3]
    for env in environments:
        env.close()
