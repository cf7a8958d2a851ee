"""Projects that `dm-env-rpc init` makes are built, tested, checked and stepped."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing

from dm_env_rpc_client import extras, version
from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.cli.init import init
from tests.launch.standalone.interpreters import OLDEST, interpreter
from tests.support.groups import skip
from tests.support.programs import run_python

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
