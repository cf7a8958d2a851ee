"""Processes that have the package imported: forks of one that imports it once.

Importing takes longer than what most tests want of another process.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

__all__ = ["context", "end", "run_command"]

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.preloaded"])

_COMMAND_SECONDS = 60
_starting = threading.Lock()


def end(process: BaseProcess) -> None:
    """Kills a process, if it still runs, and leaves nothing of it."""
    process.kill()
    process.join()
    process.close()


def _begin(arguments: list[str], folder: str, stdout: str, stderr: str) -> None:
    from dm_env_rpc_client.cli.entry import main

    os.chdir(folder)
    for path, flags, number in (
        (os.devnull, os.O_RDONLY, 0),
        (stdout, os.O_WRONLY, 1),
        (stderr, os.O_WRONLY, 2),
    ):
        descriptor = os.open(path, flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering=1, encoding="utf-8", closefd=False)
        for number, mode in enumerate("rww")
    )
    # As in a Python that begins with `-m`.
    sys.path.insert(0, folder)
    sys.argv = ["dm-env-rpc", *arguments]
    main()


def run_command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `dm-env-rpc` in a process of its own, with no input, and returns how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("stdout", "stderr")]
        for path in paths:
            path.touch()
        process = context.Process(
            target=_begin, args=(list(arguments), str(cwd or Path.cwd()), *map(str, paths))
        )
        # Each start of a process looks at the ends of all others, and an end can be read only once.
        with _starting:
            process.start()
        try:
            if not connection.wait([process.sentinel], _COMMAND_SECONDS):
                raise subprocess.TimeoutExpired(list(arguments), _COMMAND_SECONDS)
        finally:
            with _starting:
                code = process.exitcode
                end(process)
        assert code is not None
        stdout, stderr = (path.read_text(errors="surrogateescape") for path in paths)
    return subprocess.CompletedProcess(list(arguments), code, stdout, stderr)
