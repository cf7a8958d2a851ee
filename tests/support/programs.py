"""Programs in processes of their own, and what those have open."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from dm_env_rpc_client.system import children
from tests.support.stopwatch import patience

ROOT = Path(__file__).parents[2]
"""The folder of the project."""


def run_python(
    *arguments: object,
    code: int = 0,
    timeout: float = 100.0,
    environment: dict[str, str] | None = None,
    folder: Path = ROOT,
) -> subprocess.CompletedProcess[str]:
    """Runs this Python, and returns what it printed.

    Args:
      *arguments: of the interpreter.
      code: which it has to end with.
      timeout: in seconds, on a machine that is not busy.
      environment: variables beside those of the test.
      folder: in which it runs.
    """
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=folder,
        env=children.variables(environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=patience(timeout),
    )
    assert finished.returncode == code, finished.stderr
    return finished


def open_links(pid: int) -> list[str]:
    """The files and sockets that a process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It was closed meanwhile.
            found.append(os.readlink(link))
    return found


def processor_seconds(pid: int) -> float:
    """The time for which all threads of a process had a processor."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # As proc(5) counts.
