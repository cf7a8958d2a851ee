"""Row 51: SIGTERM to all processes of a server, or of a program with one, while clients step.

Terminals, `docker stop` and shells send signals to a process group; systemd and Slurm send them to
every process, also to those in other groups.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import connect, create_world, make
from dm_env_rpc_client.bridges.gym_socket import GymSocketEnvironment
from tests.bridges.env_c_api.compiling import compile_library
from tests.cli.commands import COMMAND, ROOT
from tests.launch.processes import is_alive
from tests.launch.test_ways import marked
from tests.reliability.recording import Seen
from tests.server import hosted
from tests.support.scripted import settles

TRANSPORTS = ["http2"]

CLIENTS = 4
CLOSE_SECONDS = 0.3
"""How long each environment takes to close, so that a second signal comes meanwhile."""

BATCH = 3
END_SECONDS = 60.0

_SERVE = [*COMMAND, "serve", "tests.server.hosted:Closing", "--no-try"]
_CREATE = ["--create", "folder={folder}", "--create", f"seconds={CLOSE_SECONDS}"]
_AT = [*_CREATE, "--address", "localhost:0", "--json"]

_PROGRAM = """
import functools, sys, time
from tests.server import hosted
if __name__ == "__main__":
    closing = functools.partial(hosted.Closing, {folder!r}, {seconds})
    {serve}
    print('{{"address": "' + server.address + '"}}', flush=True)
    {then}
"""
_WORKERS = "from dm_env_rpc_client.server import serve; server = serve(closing, processes=2)"
_SESSIONS = (
    "from dm_env_rpc_client.bridges.gym_socket import serve; "
    "server = serve({{'Closing': closing}}, 'localhost:0', processes=True)"
)
_LAUNCHED = (
    "from dm_env_rpc_client.launch import from_python; "
    "server = from_python('tests.server.hosted:Closing')"
)


def _play(env: Any, action: Any) -> None:
    with contextlib.suppress(ConnectionError):
        env.reset()
        while True:
            env.step(action)


class Started:
    """A program in a process group of its own, and all that it has started.

    Args:
      argv: the program and its arguments.
      **variables: of its environment.
    """

    def __init__(self, *argv: str, **variables: str):
        self._mark = uuid.uuid4().hex
        self.process = subprocess.Popen(
            argv,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **variables, "PYTHONPATH": ROOT, "STARTED_BY": self._mark},
        )

    def address(self) -> str:
        """Returns what it prints first."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()
        return line.split('"')[3]

    def pids(self) -> list[int]:
        """Returns the processes that run, whatever group they are in."""
        return list(filter(is_alive, marked(self._mark)))

    def signal_group(self, number: signal.Signals) -> None:
        """Sends a signal to its group."""
        os.killpg(self.process.pid, number)

    def signal_all(self, number: signal.Signals) -> None:
        """Sends a signal to every process."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def end(self) -> None:
        """Kills what is left."""
        self.signal_all(signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start() -> Iterator[Callable[..., Started]]:
    """Starts programs, and kills what is left of them after the test."""
    with contextlib.ExitStack() as stack:

        def started(*argv: str, **variables: str) -> Started:
            one = Started(*argv, **variables)
            stack.callback(one.end)
            return one

        yield started


def terminate(started: Started, reached: str, envs: list[Any], action: Any, code: int) -> float:
    """Sends SIGTERM while clients step; returns the seconds until nothing is left."""
    threads = [threading.Thread(target=_play, args=(env, action)) for env in envs]
    for thread in threads:
        thread.start()
    time.sleep(0.2)  # All of them step.
    begin = time.monotonic()
    (started.signal_group if reached == "group" else started.signal_all)(signal.SIGTERM)
    _, errors = started.process.communicate(timeout=END_SECONDS)
    assert started.process.returncode == code, errors
    assert settles(lambda: not started.pids(), END_SECONDS), started.pids()
    seconds = time.monotonic() - begin
    for env, thread in zip(envs, threads, strict=True):
        thread.join(END_SECONDS)
        env.close()
    return seconds


def _program(serve: str, then: str, folder: str) -> list[str]:
    text = _PROGRAM.format(folder=folder, seconds=CLOSE_SECONDS, serve=serve, then=then)
    path = Path(folder).with_suffix(".py")  # Workers import it.
    path.write_text(text.replace("{{", "{").replace("}}", "}"))
    return [sys.executable, str(path)]


def _join(address: str, folder: str, **settings: Any) -> Any:
    return make(address, {"folder": folder, "seconds": CLOSE_SECONDS, **settings})


KINDS: dict[str, tuple[Callable[[str], list[str]], Callable[[str, str], Any], Any, int]] = {
    # What is started, what steps it, its action, and the exit code.
    "command": (lambda folder: [*_SERVE, *_AT], lambda at, _: make(at), {"do": 0}, 0),
    "workers": (
        lambda folder: [*_SERVE, *_AT, "--processes", "2"], lambda at, _: make(at), {"do": 0}, 0,
    ),
    "batches": (
        lambda folder: [*_SERVE, *_AT, "--processes", "2"],
        lambda at, _: make(at, {"num_envs": BATCH}), {"do": np.zeros(BATCH, np.int32)}, 0,
    ),
    "gym-socket": (
        lambda folder: [*_SERVE, *_AT, "--protocol", "gym-socket", "--isolate"],
        lambda at, _: GymSocketEnvironment(at, "Closing"), np.int64(0), 0,
    ),
    "c-library": (
        lambda folder: [
            *COMMAND, "serve", "--no-try", "--address", "localhost:0", "--json", "--c-library",
            f"{compile_library('complete', '1.4')}:complete_connect",
        ],
        lambda at, _: make(at, {"length": 10**6}),
        {"turn": {"horizontal": 0}, "jump": 0, "throttle": 0.0, "say": ""}, 0,
    ),
    "program-with-workers": (
        lambda folder: _program(_WORKERS, "server.wait()", folder),
        lambda at, _: make(at), {"do": 0}, -signal.SIGTERM,
    ),
    "program-with-batches": (
        lambda folder: _program(_WORKERS, "server.wait()", folder),
        lambda at, _: make(at, {"num_envs": BATCH}), {"do": np.zeros(BATCH, np.int32)},
        -signal.SIGTERM,
    ),
    "program-with-sessions": (
        lambda folder: _program(_SESSIONS, "server.wait()", folder),
        lambda at, _: GymSocketEnvironment(at, "Closing"), np.int64(0), -signal.SIGTERM,
    ),
    "program-with-launched": (
        lambda folder: _program(_LAUNCHED, "time.sleep(300)", folder),  # Until it is ended.
        _join, {"do": 0}, -signal.SIGTERM,
    ),
}  # fmt: skip


@pytest.mark.row(51)
@pytest.mark.timeout(180)
@pytest.mark.parametrize("reached", ["group", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_environments_are_closed_and_nothing_is_left(
    kind: str, reached: str, tmp_path: Path, start: Callable[..., Started], seen: Seen
) -> None:
    argv, join, action, code = KINDS[kind]
    folder = tmp_path / "folder"
    folder.mkdir()
    filled = [part.replace("{folder}", str(folder)) for part in argv(str(folder))]
    started = start(*filled, COMPLETE_RELEASED=str(folder))
    address = started.address()
    envs = [join(address, str(folder)) for _ in range(CLIENTS)]
    seen(ended_after_s=terminate(started, reached, envs, action, code))
    assert len(hosted.closed(folder)) == CLIENTS * (BATCH if "batches" in kind else 1)


@pytest.mark.row(51)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize(
    ("environment", "settings", "options", "said"),
    [
        ("Unclosable", {}, [], "RuntimeError: cannot be closed"),
        ("Unclosable", {}, ["--processes", "2"], "RuntimeError: cannot be closed"),
        ("Unclosable", {"num_envs": 2}, ["--processes", "2"], "RuntimeError: cannot be closed"),
        ("Unclosable", {}, ["--protocol", "gym-socket", "--isolate"], "exit code 1"),
        ("StopsItself", {}, ["--processes", "1"], "did not stop in time and was killed"),
        ("StopsItself", {"num_envs": 2}, ["--processes", "1"], "did not stop in time"),
    ],
)
def test_the_exit_code_tells_that_an_environment_was_not_closed(
    environment: str, settings: dict[str, Any], options: list[str], said: str,
    number: signal.Signals, code: int, start: Callable[..., Started],
) -> None:  # fmt: skip
    served = [f"tests.server.hosted:{environment}", "--no-try", "--address", "localhost:0"]
    started = start(*COMMAND, "serve", *served, "--json", *options)
    address = started.address()
    with contextlib.ExitStack() as stack:
        if "gym-socket" in options:
            stack.enter_context(GymSocketEnvironment(address, environment))
        else:
            create_world(stack.enter_context(connect(address)), settings)
        started.signal_group(number)
        _, errors = started.process.communicate(timeout=END_SECONDS)
    assert started.process.returncode == code
    assert said in errors
    assert "not all environments were closed" in errors
    assert settles(lambda: not started.pids(), END_SECONDS)


def test_what_a_worker_starts_and_forks_can_be_terminated() -> None:
    import dm_env_rpc_client.server as server_room

    with server_room.serve(hosted.Terminating, processes=1) as server, make(server.address) as env:
        assert env.reset().observation["pid"] == -signal.SIGTERM
        assert server.errors == []
