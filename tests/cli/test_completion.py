"""Completion in a real bash, with the script that the command prints."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND, ROOT
from tests.support.stopwatch import patience

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def run(*command: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ROOT, **variables},
        timeout=patience(60),
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has `dm-env-rpc` in it, as an installation puts it into the path, and its script for bash."""
    folder = tmp_path_factory.mktemp("bin")
    command = folder / "dm-env-rpc"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    (folder / "script").write_text(
        run(command, PATH=path_with(folder), _DM_ENV_RPC_COMPLETE="source_bash").stdout
    )
    return folder


def path_with(folder: Path) -> str:
    return f"{folder}:{os.environ['PATH']}"


def completed(folder: Path, line: str) -> list[str]:
    """What bash offers where somebody presses tab at the end of a line."""
    script = """
    source "$2"
    COMP_LINE=$1 COMP_POINT=${#1}
    read -ra COMP_WORDS <<< "${1//:/ : }"
    [[ $1 == *" " ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    $(complete -p dm-env-rpc | sed 's/.*-F \\([^ ]*\\).*/\\1/') dm-env-rpc
    printf '%s\\n' "${COMPREPLY[@]}"
    """
    finished = run("bash", "-c", script, "bash", line, folder / "script", PATH=path_with(folder))
    assert (finished.returncode, finished.stderr) == (0, "")
    return finished.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("dm-env-rpc ", {"run", "serve", "inspect", "check", "properties", "play"}),
        ("dm-env-rpc in", {"inspect"}),
        ("dm-env-rpc properties ", {"list", "get", "set"}),
        ("dm-env-rpc run --po", {"--policy"}),
        ("dm-env-rpc run localhost:50051 --ep", {"--episodes"}),
        ("dm-env-rpc run --policy ", {"random", "constant"}),
        ("dm-env-rpc check localhost:50051 --policy c", {"constant"}),
        ("dm-env-rpc serve c", {"catch"}),
        ("dm-env-rpc serve catch --protocol ", {"dm-env-rpc", "gym-socket"}),
        ("dm-env-rpc properties list localhost:50051 --interface l", {"legacy"}),
        # What cannot be completed.
        ("dm-env-rpc fly ", set()),
        ("dm-env-rpc run --nothing ", set()),
        ("dm-env-rpc run --episodes x --", set()),
        ("dm-env-rpc run 'localhost", set()),
        ("dm-env-rpc -- -- --", set()),
        ("dm-env-rpc properties list \\", set()),
        ("dm-env-rpc run localhost:1 extra more --se", set()),
        ("dm-env-rpc serve nowhere:make --cr", set()),
    ],
)
def test_bash_completes_or_is_silent(folder: Path, line: str, expected: set[str]) -> None:
    found = completed(folder, line)
    assert expected <= set(found)
    assert not any("Error" in word for word in found)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_there_is_a_script_for_each_shell(shell: str) -> None:
    finished = run(*COMMAND, _DM_ENV_RPC_COMPLETE=f"source_{shell}")
    assert finished.returncode == 0
    assert f"complete_{shell}" in finished.stdout


def test_installing_touches_the_home_it_is_given(tmp_path: Path) -> None:
    # The shell is the parent process.
    script = f"{shlex.join(COMMAND)} --install-completion; exit $?"
    finished = run("bash", "-c", script, HOME=str(tmp_path))
    assert finished.returncode == 0, finished.stderr
    assert "completion installed in" in finished.stdout
    assert "dm-env-rpc" in (tmp_path / ".bashrc").read_text()


def test_it_is_quick_for_it_imports_nothing_heavy() -> None:
    """NumPy and grpc take most of the time that a command takes to start."""
    finished = run(
        sys.executable, "-X", "importtime", *COMMAND[1:],
        _DM_ENV_RPC_COMPLETE="complete_bash", COMP_WORDS="dm-env-rpc run --po", COMP_CWORD="2",
    )  # fmt: skip
    assert finished.stdout.split() == ["--policy"]
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines()}
    assert "dm_env_rpc_client.cli.stepping.run" in imported
    assert {"numpy", "grpc", "dm_env", "tree"} & imported == set()
