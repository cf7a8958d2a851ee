"""Environments in another interpreter, launched from here with one line."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from dm_env_rpc_client import (
    LaunchError,
    SpecError,
    make,
)
from dm_env_rpc_client.launch import from_docker, from_process, from_python
from tests.launch.docker_daemon import IMAGE, Daemon
from tests.launch.standalone.interpreters import FILE, HERE, NEWEST, OLDEST, interpreter
from tests.support.programs import run_python

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")


@pytest.fixture(params=[OLDEST, NEWEST])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.chdir(HERE)
    return interpreter(request.param)


def test_a_copy_has_a_server_in_the_same_interpreter(python: str) -> None:
    with make("python:hosted:Catch", python=python) as env:
        copies = [copy.deepcopy(env), pickle.loads(pickle.dumps(env))]
        for copied in copies:
            with copied:
                assert copied.reset().first()
                assert copied.server is not None
                assert env.server is not None
                assert copied.server.command.split()[0] == env.server.command.split()[0]


def test_an_error_says_what_is_missing_and_in_which_python(python: str, tmp_path: Path) -> None:
    version = OLDEST if OLDEST in python else NEWEST
    with pytest.raises(LaunchError, match=rf"cannot import nowhere:Env in Python {version}\."):
        from_python("nowhere:Env", python=python)
    bare = tmp_path / "bare"
    subprocess.run([python, "-m", "venv", "--without-pip", bare], check=True)
    with pytest.raises(LaunchError, match=rf"Python {version}\.\d+ at .* has no NumPy"):
        from_python("hosted:Catch", python=bare / "bin/python")
    with pytest.raises(LaunchError, match="cannot be started"):
        from_python("hosted:Catch", python=tmp_path / "nothing")
    with pytest.raises(LaunchError, match="is not a Python interpreter"):
        from_python("hosted:Catch", python="/bin/true")


def test_only_an_environment_of_python_has_an_interpreter() -> None:
    with pytest.raises(SpecError, match="works only with python:MODULE:NAME"):
        make("localhost:50051", python=sys.executable)


def test_where_this_package_is_installed_its_server_is_used() -> None:
    with from_python("dm_env_rpc_client.server:Catch", python=sys.executable) as server:
        assert "-m dm_env_rpc_client.server" in server.command


def test_a_container_gets_the_file(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    python = interpreter(NEWEST)
    monkeypatch.chdir(HERE)
    variables = {"PYTHONPATH": str(HERE)}
    with from_docker(IMAGE, target="hosted:Catch", python=python, env=variables) as server:
        assert (daemon.folder / FILE.name).read_bytes() == FILE.read_bytes()
        with make(server.address) as env:
            assert env.reset().first()


def test_the_command_serves_with_another_interpreter(python: str) -> None:
    command = [sys.executable, "-m", "dm_env_rpc_client", "serve", "hosted:Catch"]
    with from_process([*command, "--python", python, "--address", "unix:{socket}"]) as server:
        with make(server.address) as env:
            assert env.reset().first()
        assert "serving hosted:Catch at unix:" in server.logs()


def test_the_command_prints_the_file() -> None:
    printed = run_python("-m", "dm_env_rpc_client", "standalone")
    assert printed.stdout.encode() == FILE.read_bytes()
