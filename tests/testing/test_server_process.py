"""A server in a process starts, and ends with the process that started it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dm_env_rpc_client import make
from dm_env_rpc_client.testing import ServerProcess, ServerProcessError
from tests.scripted import settles, time_limit

SERVE = f"{sys.executable} -m dm_env_rpc_client.cli serve catch --address localhost:{{port}}"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_serves_and_stops() -> None:
    server = ServerProcess(SERVE)
    try:
        with make(server.address) as env:
            assert env.reset().first()
        assert "serving catch" in server.output
    finally:
        with time_limit(10):
            server.stop()
    with pytest.raises(ConnectionError):
        make(server.address, timeout=0.2)
    server.stop()


def test_one_that_ends_is_told_with_its_output() -> None:
    program = "import sys; print('no licence'); sys.exit(7)"
    with pytest.raises(ServerProcessError, match=r"exit code 7.*\n.*no licence"):
        ServerProcess(f'{sys.executable} -c "{program}"')


def test_one_that_does_not_listen_is_told() -> None:
    with time_limit(15), pytest.raises(ServerProcessError, match=r"did not listen.*within 0.2 s"):
        ServerProcess("sleep 60", timeout=0.2)


def test_a_command_that_does_not_exist_is_told() -> None:
    with pytest.raises(ServerProcessError, match="exit code 1"):
        ServerProcess("no-such-command-at-all")


GRANDCHILD = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
with open(sys.argv[1], "w") as pids:
    pids.write(f"{child.pid} ")
time.sleep(300)
"""


def test_a_killed_parent_takes_the_whole_group_along(tmp_path: Path) -> None:
    pids, program = tmp_path / "pids", tmp_path / "server.py"
    program.write_text(GRANDCHILD)
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent(
                """
                import sys
                from dm_env_rpc_client.testing import ServerProcess
                ServerProcess(sys.argv[1], timeout=60)
                """
            ),
            f"{sys.executable} {program} {pids}",
        ]
    )
    try:
        assert settles(lambda: pids.exists() and pids.read_text().endswith(" "), 20)
        sleeper = int(pids.read_text())
        assert is_alive(sleeper)
    finally:
        parent.kill()
        parent.wait(10)
    assert settles(lambda: not is_alive(sleeper), 10)
