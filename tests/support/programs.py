"""Programs in a Python of their own, and what processes have open."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["open_links", "run_python"]


def run_python(
    program: str,
    *arguments: str,
    code: int = 0,
    flags: Sequence[str] = (),
    as_script: Path | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Runs a program, which ends with a code, and returns what it printed.

    Args:
      program: its text.
      *arguments: of the program.
      code: with which it ends.
      flags: of Python.
      as_script: a file to which it is written, and which is run; None to pass the text.
      **options: of the process.
    """
    read = ["-c", program]
    if as_script is not None:
        as_script.write_text(program)
        read = [str(as_script)]
    command = [sys.executable, *flags, *read, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert ended.returncode == code, ended.stderr
    return ended


def open_links(pid: int) -> list[str]:
    """The files and sockets that a process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It was closed meanwhile.
            found.append(os.readlink(link))
    return found
