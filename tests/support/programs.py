"""Programs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "run_python"]

ROOT = Path(__file__).parents[2]
"""The folder of the project."""


def run_python(
    *arguments: object,
    code: int = 0,
    timeout: float = 100.0,
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs this Python in the project's folder, and returns what it printed.

    Args:
      *arguments: of the interpreter.
      code: which it has to end with.
      timeout: in seconds.
      environment: variables beside those of the test.
    """
    finished = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
    assert finished.returncode == code, finished.stderr
    return finished
