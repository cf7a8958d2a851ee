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


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    made = run_python("-m", "dm_env_rpc_client", "init", tmp_path, code=2)
    assert "not an empty folder" in made.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert init.__doc__
