"""Environments that the server in one file serves, in a process of this Python."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

from tests.support.programs import ROOT

_FILE = ROOT / "dm_env_rpc_client" / "launch" / "standalone" / "dm_env_rpc_server.py"


@contextlib.contextmanager
def one_file(factory: str) -> Iterator[str]:
    """Yields the address at which a factory, MODULE:NAME of this checkout, is served."""
    with subprocess.Popen(
        [sys.executable, str(_FILE), factory, "--address", "localhost:0"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, "the server ended before it served"
            yield line.split()[-1]
            assert process.poll() is None, "the server ended"
        finally:
            process.terminate()
