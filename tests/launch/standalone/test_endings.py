"""The server in one file as a command, in other interpreters, and in projects that `init` makes."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.testing

from dm_env_rpc_client import (
    LaunchError,
    SpecError,
    extras,
    make,
    version,
)
from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.cli.init import init
from dm_env_rpc_client.launch import from_docker, from_process, from_python
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from tests.launch.docker_daemon import IMAGE, Daemon
from tests.launch.standalone.interpreters import FILE, HERE, NEWEST, OLDEST, interpreter
from tests.support.groups import skip
from tests.support.programs import run_python

SLOW = """
import time
import numpy as np
from dm_env_rpc_server import Array, TimeStep

class Slow:
    def observation_spec(self):
        return {"x": Array((), np.int64, "x")}

    action_spec = observation_spec

    def reset(self):
        return TimeStep(0, None, None, {"x": 1})

    def step(self, action):
        time.sleep(action["x"])  # It is in a step for so long.
        return TimeStep(1, 0.0, 1.0, {"x": 1})

    def close(self):
        print("closing", flush=True)
        time.sleep(0.5)  # Closing takes time.
        print("closed", flush=True)
"""


@contextlib.contextmanager
def started(python: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    (folder / "slow.py").write_text(SLOW)
    shutil.copy(FILE, folder)
    command = [interpreter(python), FILE.name, "slow:Slow", "--address", "localhost:0", *options]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("is_joined", [True, False])
@pytest.mark.parametrize("signals", [1, 2, 5])
@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_signals_lose_no_close(version: str, signals: int, is_joined: bool, tmp_path: Path) -> None:
    """One may come to the group of the process, others from what has launched it."""
    with started(version, tmp_path) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1]
        env = make(address)
        env.reset()
        if not is_joined:
            env.connection.close()
        process.terminate()
        assert process.stdout.readline() == "closing\n"
        for _ in range(signals - 1):
            process.terminate()
        assert process.stdout.read() == "closed\n"
        assert process.wait(20) == 0


def test_a_close_that_does_not_end_is_told_by_the_exit_code(tmp_path: Path) -> None:
    with started(NEWEST, tmp_path) as process:
        assert process.stdout is not None
        with make(process.stdout.readline().split()[-1]) as env:
            env.reset()
            env.step_async({"x": 60})
            process.terminate()
            process.communicate(timeout=20)
            assert process.returncode == 143


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("--token-file empty", 2, "token"),
        ("--token-file blank", 2, "token"),
        ("--token-file words", 2, "token"),
        ("--address localhost:99999", 2, "'localhost:99999'"),
        ("--address 0.0.0.0:0", 2, "token"),
        ("--address {taken}", 1, r"\[Errno \d+\] cannot listen on {taken}: \w+"),
        ("--address unix:missing/server", 1, r"\[Errno \d+\] cannot listen on unix:missing/server"),
        ("--thread other", 2, "'other'"),
    ],
)
def test_what_cannot_be_served_is_told_in_the_last_line(
    version: str, options: str, code: int, said: str, tmp_path: Path
) -> None:
    for name, contents in {"empty": "", "blank": " \t\n", "words": "two words\n"}.items():
        (tmp_path / name).write_text(contents)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"localhost:{other.getsockname()[1]}"
        words = options.format(taken=taken).split()
        with started(version, tmp_path, *words) as process:
            out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == ("", code)
    assert re.search(said.format(taken=taken), err.splitlines()[-1])


WORD = "a token must consist of printable ASCII characters"
TOKENS = ("", " ", "a b", "a\n", "\u00e9")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        *(({"token": token}, WORD) for token in TOKENS),
        ({"thread": "other"}, "invalid thread 'other'; expected 'main'"),
    ],
)
def test_options_that_cannot_be_are_refused(option: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        dm_env_rpc_server.serve(object, **option)


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


# The compiler takes 26 s for what protoc generates.
CPP = [pytest.mark.compiler, pytest.mark.slow, pytest.mark.timeout(600)]
KINDS = ["python", "standalone", pytest.param("cpp", marks=CPP)]


def commands(readme: Path) -> list[str]:
    """The commands of a README that need neither the network nor an end by hand."""
    (block,) = re.findall(r"```sh\n(.*?)```", readme.read_text(), re.DOTALL)
    skipped = ("pip ", "docker ", "dm-env-rpc serve ", "python3 dm_env_rpc_server", "build/server ")
    return [line for line in block.splitlines() if not line.startswith(skipped)]


def run(kind: str, folder: Path, variables: dict[str, str]) -> None:
    run_python("-m", "dm_env_rpc_client", "init", folder, "--kind", kind)
    readme = folder / "README.md"
    assert len(readme.read_text().splitlines()) <= 20
    found = commands(readme)
    assert [line.split()[0] for line in found if "dm-env-rpc" in line] == ["dm-env-rpc"] * 2
    scripts = Path(sys.executable).parent
    # The options of this run of pytest are not those of the project's.
    own = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    for line in found:
        done = subprocess.run(
            line, shell=True, cwd=folder, capture_output=True, text=True, check=False,
            env={**own, "PATH": f"{scripts}:{os.environ['PATH']}", **variables},
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stdout[-3000:], done.stderr[-3000:])
        if " check " in line:
            assert " 0 failed" in done.stdout


@pytest.mark.parametrize("kind", KINDS)
def test_a_project_is_built_tested_checked_and_stepped(kind: str, tmp_path: Path) -> None:
    variables = {}
    if kind == "cpp":
        tools = ["cmake", "protoc", "grpc_cpp_plugin", "pkg-config"]
        absent = [tool for tool in tools if shutil.which(tool) is None]
        if absent:
            skip("cpp peer", f"not installed: {', '.join(absent)}")
    if kind == "standalone":
        python = interpreter(OLDEST)
        variables["SIMULATOR_PYTHON"] = python
        # `python3` of the README is that of the simulator.
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin/python3").write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n')
        (tmp_path / "bin/python3").chmod(0o755)
        scripts = Path(sys.executable).parent
        variables["PATH"] = f"{tmp_path}/bin:{scripts}:{os.environ['PATH']}"
    run(kind, tmp_path / "project", variables)


@pytest.mark.parametrize("published", [False, True])
def test_a_project_installs_the_package_from_where_it_is(
    published: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(version, "PUBLISHED", published)
    made = typer.testing.CliRunner().invoke(app, ["init", str(tmp_path / "it")])
    assert made.exit_code == 0, made.output
    lines = (tmp_path / "it/README.md").read_text().splitlines()
    install, *wheel = (shlex.split(line)[1:] for line in lines if line.startswith("pip "))
    image = (tmp_path / "it/Dockerfile").read_text()
    assert "@" not in image
    if published:
        assert (install, wheel) == (["install", "dm-env-rpc-client[cli]", "pytest"], [])
        assert '\nRUN pip install --no-cache-dir "dm-env-rpc-client[cli]"\n' in image
        assert ".whl" not in image
        return
    assert install == [*shlex.split(extras.install_command("cli"))[1:], "pytest"]
    found = extras.origin()
    assert found is not None
    assert wheel == [["wheel", "--no-deps", "--wheel-dir", ".", found.what]]
    assert "\nCOPY dm_env_rpc_client-*.whl /tmp/\n" in image
    (command,) = re.findall(r"^RUN pip install --no-cache-dir (.*)$", image, re.MULTILINE)
    # As a shell reads it, beside the file.
    (tmp_path / "dm_env_rpc_client-0-py3-none-any.whl").touch()
    command = command.replace("/tmp/", f"{tmp_path}/")
    said = subprocess.run(
        ["sh", "-c", f"echo {command}"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"{tmp_path}/dm_env_rpc_client-0-py3-none-any.whl[cli]\n"


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    made = run_python("-m", "dm_env_rpc_client", "init", tmp_path, code=2)
    assert "not an empty folder" in made.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert init.__doc__
