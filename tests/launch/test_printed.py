"""What servers print can be read at once, on machines where PYTHONUNBUFFERED is not set.

A Python program collects what it prints to a file or a pipe, 8 KiB at a time, unless it is told
otherwise, and a server prints little.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from dm_env_rpc_client.launch import from_docker, from_process, from_python, standalone
from tests.launch.docker_daemon import Daemon
from tests.support.stopwatch import patience

CLEAN = {"PATH": os.environ["PATH"]}
"""All variables of a process that was started with `env -i PATH=$PATH`."""

TALKS = """
import os, sys
print("unbuffered:", os.environ.get("PYTHONUNBUFFERED"))
from dm_env_rpc_client.server import Catch, serve
serve(Catch, "localhost:" + sys.argv[1]).wait()
"""


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    """A server of a user, which never flushes what it prints."""
    path = tmp_path / "talks.py"
    path.write_text(TALKS)
    return [sys.executable, str(path), "{port}"]


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "dm_env_rpc_client.server", "dm_env_rpc_client.server:Catch", "localhost:0"],
        [standalone.FILE, "dm_env_rpc_client.server:Catch", "--address", "localhost:0"],
        ["-m", "dm_env_rpc_client", "serve", "catch", "--address", "localhost:0"],
        ["-m", "dm_env_rpc_client", "serve", "catch", "--address", "localhost:0", "--json"],
    ],
    ids=lambda command: Path(command[0]).stem + " ".join(command[1:3]) + command[-1],
)
def test_a_pipe_gets_the_line_of_a_server_while_it_serves(command: list[str]) -> None:
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as said, open(writing, "wb") as out:
        process = subprocess.Popen([sys.executable, *command], env=CLEAN, stdout=out, stderr=out)
        try:
            out.close()
            text = b""
            while b"localhost:" not in text:
                assert select.select([said], [], [], patience(60.0))[0], text
                more = said.read(1 << 16)
                assert more, text
                text += more
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


@pytest.mark.usefixtures("clean")
def test_a_variable_of_the_user_stays(program: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with from_process(program) as launch:
        assert launch.logs() == "unbuffered: 1\n"
    with from_process(program, env={"PYTHONUNBUFFERED": ""}) as launch:
        assert launch.logs() == ""
    monkeypatch.setenv("PYTHONUNBUFFERED", "")
    with from_process(program) as launch:
        assert launch.logs() == ""
    with from_python("tests.support.environments:Echo", env={"PYTHONUNBUFFERED": "2"}) as launch:
        environ = Path(f"/proc/{launch.pid}/environ").read_bytes()
        assert b"PYTHONUNBUFFERED=2" in environ.split(b"\0")


def test_containers_are_told_as_well(daemon: Daemon) -> None:
    with from_docker("owner/echo"), from_docker("owner/echo", env={"PYTHONUNBUFFERED": "0"}):
        told = [each.variables for each in daemon.containers.values()]
        assert told == [{"PYTHONUNBUFFERED": "1"}, {"PYTHONUNBUFFERED": "0"}]
