"""Environments whose server is launched for them: their ports, threads, output and ends."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import BatchedEnvironment, LaunchError, SpecError, make, make_async
from dm_env_rpc_client.environment.server_location import launched
from dm_env_rpc_client.launch import Launch, from_process, from_python, standalone
from dm_env_rpc_client.launch.ports import Port
from dm_env_rpc_client.system import children
from tests.launch.processes import AT_PORT, ECHO, supervisors
from tests.support.programs import ROOT
from tests.support.scripted import settles
from tests.support.stopwatch import patience


@pytest.fixture(autouse=True)
def _all_end() -> Any:
    before = set(supervisors())
    yield
    assert settles(lambda: set(supervisors()) <= before, 20)


@pytest.mark.parametrize(
    "make",
    [make, lambda *given, **how: asyncio.run(make_async(*given, **how)), BatchedEnvironment],
    ids=["threads", "asyncio", "batch"],
)
def test_the_timeout_holds_for_a_server_that_is_launched(make: Any) -> None:
    with pytest.raises(LaunchError, match=r"did not answer at localhost:\d+ within 0.3 s"):
        make("process:sleep 100 {port}", timeout=0.3)


def test_settings_that_the_constructor_refuses_end_the_server() -> None:
    with pytest.raises(Exception, match="unexpected keyword argument"):
        make(ECHO, {"colour": "red"})


@pytest.mark.parametrize(("addresses", "count"), [(ECHO, 1), ([ECHO], 1), ([ECHO, ECHO], 2)])
def test_a_batch_has_one_server_or_one_for_each_in_a_list(addresses: Any, count: int) -> None:
    envs = BatchedEnvironment(addresses, 4)
    assert len(supervisors()) == count
    envs.reset()
    timestep = envs.step({"value": np.arange(4)})
    assert timestep.observation["value"].tolist() == [0, 1, 2, 3]
    envs.close()
    assert supervisors() == []


def test_a_batch_of_which_one_is_not_started() -> None:
    with pytest.raises(LaunchError, match="No module named 'no_such_module'"):
        BatchedEnvironment([ECHO, "python:no_such_module:Env"])


def test_an_address_for_other_clients() -> None:
    with launched(ECHO) as address, make(address) as env:
        assert env.reset().first()
    with launched("localhost:1") as address:
        assert address == "localhost:1"


def test_a_launch_of_the_users_own_has_no_other_owner() -> None:
    with from_process(AT_PORT) as launch:
        assert isinstance(launch, Launch)
        with make(launch.address) as env:
            env.reset()
        assert launch.is_running


IDENT = "tests.server.one_thread:Ident"


ONE_FILE = [sys.executable, standalone.FILE, IDENT, "--address", "localhost:{port}"]
THREADS: dict[str, tuple[Callable[[], Launch], bool]] = {
    "python": (lambda: from_python(IDENT), False),
    "python, main": (lambda: from_python(IDENT, thread="main"), True),
    "one file, main": (lambda: from_process([*ONE_FILE, "--thread", "main"]), True),
}


@pytest.mark.parametrize("way", THREADS)
def test_an_environment_is_made_called_and_closed_in_one_thread(way: str) -> None:
    start, is_main = THREADS[way]
    with start() as launch:
        with make(launch.address) as env:
            assert env.reset().observation["is_main"] == is_main
            assert env.step({"do": 0}).observation["is_main"] == is_main
        env = make(launch.address)
        env.reset()
    assert launch.exit_code == 0
    assert launch.logs().count("closed in its thread: True") == 2


def test_the_text_of_an_address() -> None:
    with make(f"python:{IDENT} --thread main") as env:
        assert env.reset().observation["is_main"]
    with pytest.raises(SpecError, match=r"--thread main is allowed after python:.*, got '--th"):
        make(f"python:{IDENT} --thread other")


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
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, *command], env=CLEAN, stdout=pipe, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert any("localhost:" in line for line in process.stdout)
            assert process.poll() is None
        finally:
            process.kill()


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


def bound() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_no_two_at_once() -> None:
    with concurrent.futures.ThreadPoolExecutor(8) as executor:
        ports = list(executor.map(lambda _: Port(is_held=False), range(500)))
    assert len({port.number for port in ports}) == 500
    for port in ports:
        port.close()


def test_others_that_ask_for_any_port_do_not_get_it() -> None:
    # So many that a port that is not held would be among them.
    ports = [Port() for _ in range(200)]
    held = {port.number for port in ports}
    assert held.isdisjoint({bound() for _ in range(20_000)})
    for port in ports:
        port.close()


def test_a_server_gets_the_port_that_is_held_for_it() -> None:
    port = Port()
    with socket.create_server(("127.0.0.1", port.number)) as server:
        assert not port.is_foreign(os.getppid())
        port.stop_holding()
        assert port.was_taken("")
        server.close()
        assert not port.was_taken("")
    port.close()


def test_logs_tell_that_it_was_taken() -> None:
    port = Port()
    port.stop_holding()
    for text in ("OSError: [Errno 98] Address already in use", "listen EADDRINUSE: :::1"):
        assert port.was_taken(text)
    assert not port.was_taken("no licence")
    port.close()


# The hosts file of such a machine, for the programs in the namespace alone.
_ENTER = """
set -e
mount --make-rprivate /
printf '::1 localhost\\n' > {hosts}
mount --bind {hosts} /etc/hosts
ip link set lo up
ip addr del 127.0.0.1/8 dev lo
ip addr show dev lo | grep -q 'inet6 ::1/128'
"""

_SERVE = (
    f"{shlex.quote(sys.executable)} -m dm_env_rpc_client serve catch --address localhost:{{port}}"
)
_CATCH = "dm_env_rpc_client.server:Catch"

CASES = {
    "serve": """
for served in ("http2", "grpc"):
    with serve(Catch, transport=served) as server:
        assert server.address.startswith("localhost:")
        for transport in ("http2", "grpc"):
            use(server.address, transport=transport)
""",
    "command": f"""
use("process:" + {_SERVE!r})
""",
    "python": f"""
use("python:{_CATCH}")
use("process:" + sys.executable + " -m dm_env_rpc_client.server {_CATCH} localhost:{{port}}")
""",
}

_PROGRAM = """
import sys
from dm_env_rpc_client import make
from dm_env_rpc_client.server import Catch, serve

def use(address, **options):
    with make(address, **options) as env:
        assert env.reset().first()
        assert env.step({{"paddle": 1}}).mid()

if __name__ == "__main__":
    {case}
"""


def _in_namespace(script: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    entered = _ENTER.format(hosts=shlex.quote(str(tmp_path / "hosts")))
    return subprocess.run(
        ["unshare", "--net", "--mount", "sh", "-c", f"{entered}\n{script}"],
        cwd=ROOT,
        env=children.variables({"PYTHONPATH": str(ROOT)}),
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(60),
    )


@pytest.fixture
def _namespace(tmp_path: Path) -> None:
    try:
        tried = _in_namespace("true", tmp_path)
    except FileNotFoundError:
        pytest.skip("there is no unshare(1)")
    if tried.returncode:
        pytest.skip(f"no network namespace: {tried.stderr.strip()}")


@pytest.mark.usefixtures("_namespace")
@pytest.mark.parametrize(
    "case",
    ["serve", "command", pytest.param("python", marks=pytest.mark.slow)],
)
def test_all_works_without_an_ipv4_loopback_address(case: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(case=CASES[case].strip().replace("\n", "\n    ")))
    python = shlex.join([sys.executable, str(program)])
    finished = _in_namespace(f"exec {python}", tmp_path)
    assert finished.returncode == 0, finished.stderr
