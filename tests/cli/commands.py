"""The command in processes of its own, how they end, and what may listen at an address."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer.testing

from dm_env_rpc_client.cli.app import app
from dm_env_rpc_client.system import children
from tests.support import programs, scripted
from tests.support.stopwatch import patience

listening = scripted.listening
COMMAND = [sys.executable, "-m", "dm_env_rpc_client"]
ROOT = str(programs.ROOT)


def command(
    *arguments: str,
    environment: dict[str, str | None] | None = None,
    redirection: str = "",
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a command, with a redirection of the shell, and returns how it ended."""
    variables = {**children.variables({"PYTHONPATH": ROOT}), **(environment or {})}
    kept = {name: value for name, value in variables.items() if value is not None}
    options.setdefault("stdout", subprocess.PIPE)
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *COMMAND, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="surrogateescape",
        env=kept,
        timeout=patience(60),
        check=False,
        **options,
    )


def invoke(
    *arguments: str, code: int = 0, environment: dict[str, str] | None = None
) -> typer.testing.Result:
    """Runs a command in this process, which ends with a code and without a traceback."""
    result = typer.testing.CliRunner().invoke(app, arguments, env=environment)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result


def is_one_line_with(finished: subprocess.CompletedProcess[str], code: int, *said: str) -> None:
    """Asserts that a command ended as it should when something is wrong."""
    everything = (finished.stdout or "") + finished.stderr
    assert "Traceback" not in everything
    assert finished.returncode == code, everything
    lines = finished.stderr.strip().splitlines()
    if lines[0].startswith("warning: no connection to "):
        del lines[0]  # It has tried for more than a second.
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("error: ")
    for part in said:
        assert part in lines[0]
    assert not finished.stdout


class Peers(NamedTuple):
    """What may listen at an address. Each is a place to put in `{...}` of an argument."""

    catch: str
    broken: str
    http: str
    silent: str
    hangs_up: str
    dead: str


@contextlib.contextmanager
def served(*arguments: str, **options: Any) -> Iterator[str]:
    """Runs `serve --json` and yields the address; it ends properly when it is told to."""
    try:
        process = started("serve", "--json", *arguments, **options)
        yield address_of(process)
        ended(process)
    finally:
        end_started()


_started: list[subprocess.Popen[str]] = []


def started(
    *arguments: str, environment: dict[str, str] | None = None, **options: Any
) -> subprocess.Popen[str]:
    """Starts a command, which `end_started` ends with the test."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=children.variables({"PYTHONPATH": ROOT, **(environment or {})}),
        **options,
    )
    _started.append(process)
    return process


def address_of(process: subprocess.Popen[str]) -> str:
    """Returns the address that a server says first: on stdout as JSON, on stderr otherwise."""
    stream = process.stdout if "--json" in process.args else process.stderr  # type: ignore[operator]
    assert stream is not None
    line = stream.readline()
    found = re.findall(r"[\w.]+:\d+", line)
    assert found, (line, process.communicate(timeout=patience(10)))
    return str(found[-1])


def ended(process: subprocess.Popen[str], number: int = signal.SIGTERM, code: int = 0) -> str:
    """Sends a signal to a command, and returns what it then prints, once it has ended in order."""
    process.send_signal(number)
    said = "".join(process.communicate(timeout=patience(30)))
    assert (process.returncode, "Traceback" in said) == (code, False), said
    return said


def end_started() -> None:
    """Kills what a test that failed has left running."""
    while _started:
        process = _started.pop()
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=patience(30))
