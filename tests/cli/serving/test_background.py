"""A server in the background of a shell: what stops it, and what the first tutorial has one do."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client import connect, make
from tests.cli.commands import COMMAND
from tests.snippets import snippets
from tests.support.ports import HeldPort
from tests.support.programs import ROOT
from tests.support.stopwatch import patience

SERVE = shlex.join([*COMMAND, "serve", "catch", "--address", "localhost:0"])


@contextlib.contextmanager
def in_a_shell(script: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Runs a script without job control; all that it has started ends with the block."""
    pipe = subprocess.PIPE
    scripts = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        ["sh", "-c", script], cwd=folder, stdout=pipe, stderr=pipe, text=True,
        start_new_session=True, env=variables,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("command", ["serve", "replay"])
def test_what_a_script_starts_in_the_background_is_stopped_by_sigterm(
    command: str, tmp_path: Path
) -> None:
    line = SERVE
    if command == "replay":
        recording = tmp_path / "run.mcap"
        with make("python:dm_env_rpc_client.server:Catch", record=str(recording)) as env:
            env.reset()
        line = shlex.join([*COMMAND, "replay", str(recording), "--address", "localhost:0"])
    script = f'{line} &\necho $!\nwait $!\necho "ended with $?"'
    with in_a_shell(script, tmp_path) as shell:
        assert shell.stdout is not None
        assert shell.stderr is not None
        number = int(shell.stdout.readline())
        said = shell.stderr.readline()
        assert said.rstrip().endswith("; SIGTERM stops")
        address = re.findall(r"localhost:\d+", said)[0]
        os.kill(number, signal.SIGINT)
        with connect(address):  # It serves on.
            pass
        os.kill(number, signal.SIGTERM)
        out, errors = shell.communicate(timeout=patience(30))
    code = "0" if command == "serve" else "143"
    assert (out, "Traceback" in errors) == (f"ended with {code}\n", False), errors


def test_the_shell_of_the_first_server_runs_as_a_script(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorials" / "first-server.md").read_text()
    (tmp_path / "thermostat.py").write_text(snippets(page)[0])
    script = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)[-1]
    assert script.splitlines()[0].endswith(" &")
    with HeldPort() as port:
        script = script.replace("localhost:50051", port.address)
        first, rest = script.split(" &\n")
        script = f"set -e\n{first} --address {port.address} &\n{rest}wait $!\n"
        with in_a_shell(script, tmp_path) as shell:
            out, errors = shell.communicate(timeout=patience(100))
    assert shell.returncode == 0, (out, errors)
    assert "temperature" in out  # inspect
    assert "5 episodes, 250 steps" in out  # run
    assert " 0 failed" in out  # check
    assert "stopping" in errors
