"""A server in a process starts, tells what is wrong, and ends with the one that started it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from dm_env_rpc_client import LaunchError, SpecError, make
from dm_env_rpc_client.launch import (
    LOG_BYTES,
    Launch,
    from_docker,
    from_process,
    from_python,
    processes,
)
from dm_env_rpc_client.launch.ports import Port, doing
from dm_env_rpc_client.system import children
from tests.launch.processes import AT_PORT, ROOT, command_of, is_alive, server_of
from tests.support.ports import HeldPort
from tests.support.scripted import descriptor_count, settles
from tests.support.stopwatch import Stopwatch, patience, time_limit


def answers(launch: Launch) -> bool:
    with make(launch.address, {"length": 2}) as env:
        env.reset()
        return bool(env.step({"value": 7}).observation["value"] == 7)


def running(program: str, then: str = "") -> list[str]:
    imports = "import os, socket, subprocess, sys, time\n"
    return [sys.executable, "-c", imports + textwrap.dedent(program) + then, "{port}"]


SERVER = f"{AT_PORT[:-1]!r} + ['localhost:' + sys.argv[1]]"
IT_SERVES = f"\nos.execv(sys.executable, {SERVER})"


@pytest.mark.parametrize("place", ["localhost:{port}", "unix:{socket}"])
def test_it_serves_and_stops(place: str) -> None:
    with from_process([*AT_PORT[:-1], place]) as launch:
        assert answers(launch)
        assert "serving tests.support.environments:Echo at" in launch.logs()
        pids = [launch.pid, server_of(launch)]
        assert all(map(is_alive, pids))
    assert not any(map(is_alive, pids))
    assert not launch.is_running
    assert "serving" in launch.logs()
    with pytest.raises(ConnectionError):
        make(launch.address, timeout=0.2)
    launch.close()
    if place == "unix:{socket}":
        assert not Path(launch.address.removeprefix("unix:")).parent.exists()


def test_variables_and_the_folder(tmp_path: Path) -> None:
    program = "print(os.environ['GIVEN'], os.environ['HOME'], os.getcwd())"
    with pytest.raises(LaunchError) as caught:
        from_process(running(program), env={"GIVEN": "at {port}"}, cwd=tmp_path)
    assert f"{os.environ['HOME']} {tmp_path}" in caught.value.logs
    assert caught.value.logs.split()[1].isdigit()


def test_one_that_ends_is_told_with_its_command_and_its_last_lines() -> None:
    text = r"ended with exit code 7: .*\n.*\nIts last lines:\nno licence"
    with pytest.raises(LaunchError, match=text) as caught:
        from_process(running("print('no licence'); sys.exit(7)"))
    assert caught.value.exit_code == 7
    assert sys.executable in caught.value.command
    with pytest.raises(LaunchError, match="signal 9") as killed:
        from_process(running("os.kill(os.getpid(), 9)"))
    assert killed.value.exit_code == -9


def test_a_port_that_accepts_is_not_a_server_that_answers() -> None:
    program = """
        server = socket.create_server(("localhost", int(sys.argv[1])))
        while True:
            server.accept()
            print("accepted", flush=True)
    """
    timeout = patience(1.5)  # It has to start in this time, too.
    within = re.escape(f"within {timeout:g} s")
    with (
        time_limit(15 + timeout),
        pytest.raises(LaunchError, match=rf"did not answer at \S+:\d+ {within} ") as caught,
    ):
        from_process(running(program), timeout=timeout)
    assert caught.value.exit_code is None
    assert "accepted" in caught.value.logs
    does = r"; its processes: \d+ 'python\S*' \w[\w ]*, \d+\.\d s of processor time\)$"
    assert re.search(does, caught.value.reason)


@pytest.mark.parametrize(
    ("program", "does"),
    [("kill -STOP $$", "is stopped by a signal"), ("exec sleep 100", "sleeps"),
     ("while :; do :; done", "computes")],
)  # fmt: skip
def test_what_a_server_does_that_does_not_answer(program: str, does: str) -> None:
    supervisor = children.start_supervised(["sh", "-c", program])
    try:
        # "sh", or what it has become.
        text = rf"\d+ '(sh|dash|sleep)' {does}, \d+\.\d s of processor time"
        assert settles(lambda: bool(re.fullmatch(text, doing(supervisor.pid))))
    finally:
        children.end(supervisor, 20)
    assert doing(supervisor.pid) == ""


def test_a_command_that_does_not_exist_is_told() -> None:
    with pytest.raises(LaunchError, match="cannot start no-such-command: No such file"):
        from_process(["no-such-command", "{port}"])


STARTS: list[Callable[[str], object]] = [
    lambda text: from_process(["server", text, "{port}"]),
    lambda text: from_process(["{port}"], cwd=text),
    lambda text: from_process(["server"], address=text),
    lambda text: from_process(["{port}"], env={"TOKEN": text}),
    lambda text: from_process(["{port}"], env={text: "a"}),
    lambda text: from_python(f"a{text}:b"),
    lambda text: from_python("a:b", python=text),
    lambda text: from_python(f"a{text}:b", python=sys.executable),
    from_docker,
    lambda text: from_docker("image", [text]),
    lambda text: from_docker("image", target=text),
    lambda text: from_docker("image", python=text),
    lambda text: from_docker("image", env={"TOKEN": text}),
    lambda text: make(f"docker:image {text}"),
]
NUL, SURROGATE = "s3cr\0et", "s3cr\ud800et"
NO_PROGRAM = "cannot be passed to a program: .*"
NO_NAME = "the name of a variable in env"


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        *((functools.partial(start, NUL), NO_PROGRAM + "NUL") for start in STARTS),
        *(
            (functools.partial(start, SURROGATE), NO_PROGRAM + "UnicodeEncodeError")
            for start in STARTS
        ),
        *(
            (functools.partial(start, env={name: "s3cr"}), NO_NAME)
            for name in ("", "=", "A=B")
            for start in (
                functools.partial(from_process, ["{port}"]),
                functools.partial(from_python, "a:b"),
                functools.partial(from_docker, "image"),
            )
        ),
        *(
            (functools.partial(from_python, name), "MODULE:NAME")
            for name in ("", "module", ":Name", "__main__:Env")
        ),
    ],
)
def test_what_cannot_be_started_is_told_before_anything_is(
    start: Callable[[], object], reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(SpecError, match=reason) as caught:
        start()
    assert not list(tmp_path.iterdir())
    if "TOKEN" in str(caught.value) or reason == NO_NAME:  # Values of variables are secret.
        assert "s3cr" not in "".join(traceback.format_exception(caught.value))


def test_a_fixed_address() -> None:
    with (
        HeldPort() as port,
        from_process([*AT_PORT[:-1], port.address], address=port.address) as launch,
    ):
        assert launch.address == port.address
        assert answers(launch)


def test_a_port_that_somebody_took_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("localhost", 0)) as other:
        chosen = choose_first(monkeypatch, other.getsockname()[1])
        with from_process(AT_PORT) as launch:
            assert launch.address == f"localhost:{chosen[1]}"
            assert answers(launch)


def test_another_server_that_answers_is_not_taken_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = f"""
        subprocess.run({SERVER})
        time.sleep(300)  # Until it is ended.
    """
    with from_process(AT_PORT) as other:
        chosen = choose_first(monkeypatch, int(other.address.partition(":")[2]))
        with from_process(running(program), cwd=ROOT) as launch:
            assert launch.address == f"localhost:{chosen[1]}"
            assert answers(launch)


def choose_first(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Has a port chosen that is taken, and then others; returns the list of those chosen."""
    chosen: list[int] = []

    def choose(is_held: bool = True) -> Port:
        port = Port(is_held)
        if not chosen:
            port.number = number
        chosen.append(port.number)
        return port

    monkeypatch.setattr(processes, "Port", choose)
    return chosen


def test_one_that_nobody_closes_ends_with_a_warning() -> None:
    descriptors = descriptor_count()
    held = [from_process(AT_PORT)]
    pid = server_of(held[0])

    def forget() -> None:
        held.clear()
        gc.collect()

    with pytest.warns(ResourceWarning, match="was not closed"):
        forget()
    assert settles(lambda: not is_alive(pid), 20)
    assert settles(lambda: descriptor_count() <= descriptors)


def test_ctrl_c_while_it_starts_leaves_nothing(tmp_path: Path) -> None:
    told = tmp_path / "told"

    def interrupt() -> None:
        if settles(lambda: told.exists() and bool(told.read_text()), 30):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        from_process(["sh", "-c", 'echo $$ > "$0"; exec sleep 217', str(told), "{port}"])
    thread.join()
    assert not is_alive(int(told.read_text()))
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
    assert [pid for pid in pids if os.fsencode(told) in command_of(pid)] == []


def test_logs_are_the_end_of_an_output_that_does_not_fill_the_disk() -> None:
    size = 8 << 20
    program = f"""
        for _ in range({size >> 16}):
            os.write(1, b"x" * (1 << 16))
        os.write(1, b"the end")
    """
    with from_process(running(program, IT_SERVES), cwd=ROOT) as launch:
        logs = launch.logs()
        assert len(logs) == LOG_BYTES
        assert "xthe end" in logs
        output = launch._output.fileno()
        if can_have_holes():
            assert settles(lambda: os.fstat(output).st_blocks * 512 <= 2 << 20, 20)
        assert os.fstat(output).st_size > size


def can_have_holes() -> bool:
    with tempfile.TemporaryFile() as file:
        file.truncate(1 << 20)
        return os.fstat(file.fileno()).st_blocks == 0


WRAPPER = """#!/bin/sh
{lines}
"""


def wrapper(folder: Path, lines: str) -> Path:
    """A script in the place of an interpreter, such as those of environment managers."""
    path = folder / "python"
    path.write_text(WRAPPER.format(lines=lines))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    "lines",
    [
        "echo waits; sleep 100 & echo $! > {pid}; wait",
        "trap '' TERM; echo waits; sleep 100 & echo $! > {pid}; wait; wait",
        "sleep 100 & echo $! > {pid}; echo waits; exec sleep 100",
    ],
)
def test_a_wrapper_that_hangs_ends_in_time_with_all_that_it_has_started(
    tmp_path: Path, lines: str
) -> None:
    python = wrapper(tmp_path, lines.format(pid=tmp_path / "pid"))
    stopwatch = Stopwatch()
    with pytest.raises(LaunchError, match="did not say within 1 s which Python") as caught:
        from_python("dm_env_rpc_client.server:Catch", python=python, timeout=1.0)
    assert stopwatch.net < 3
    assert "waits" in str(caught.value)
    assert settles(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_a_wrapper_may_say_something_and_leave_something(tmp_path: Path) -> None:
    lines = f"echo activated >&2; sleep 100 & echo $! >> {tmp_path / 'pids'}; exec {sys.executable}"
    python = wrapper(tmp_path, f'{lines} "$@"')
    with from_python("dm_env_rpc_client.server:Catch", python=python, timeout=60.0) as launch:
        assert launch.is_running
    for pid in (tmp_path / "pids").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def test_the_timeout_is_for_the_interpreter_and_the_server_together(tmp_path: Path) -> None:
    lines = f'case "$1" in -c) exec {sys.executable} "$@";; esac; exec sleep 100'
    python = wrapper(tmp_path, lines)
    stopwatch = Stopwatch()
    with pytest.raises(LaunchError, match=r"did not (answer|say)"):
        from_python("dm_env_rpc_client.server:Catch", python=python, timeout=1.5)
    assert stopwatch.net < 5
