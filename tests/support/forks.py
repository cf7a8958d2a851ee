"""Processes that have the package imported: forks of one that imports it once.

Importing takes longer than what most tests want of another process.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from dm_env_rpc_client.system import children

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["tests.support.preloaded"])

COMMAND_SECONDS = 60
_starting = threading.Lock()


def end(process: BaseProcess) -> None:
    """Kills a process, if it still runs, and leaves nothing of it."""
    if process.is_alive():  # Who waits for it is the fork server: its id may be another's by now.
        process.kill()
    process.join()
    process.close()


@contextlib.contextmanager
def child(
    target: Callable[..., object], *arguments: Any
) -> Iterator[tuple[int, connection.Connection]]:
    """Runs a function in a process of its own, which is killed after the block.

    Args:
      target: the function; its last argument is an end of a pipe.
      *arguments: those before it.

    Yields:
      The id of the process, and the other end of the pipe.
    """
    told, heard = context.Pipe()
    process = context.Process(target=target, args=(*arguments, heard), daemon=True)
    process.start()
    heard.close()
    try:
        assert process.pid is not None
        yield process.pid, told
    finally:
        end(process)
        told.close()


def _begin(
    arguments: list[str], folder: str, environment: dict[str, str], streams: list[str]
) -> None:
    # What is read or found out while the command is imported is its own.
    os.environ.clear()
    os.environ.update(environment)
    # Not those of the room `client`, which others have imported.
    for name in [name for name in sys.modules if f"{name}.".startswith("dm_env_rpc_client.cli.")]:
        del sys.modules[name]
    os.setsid()  # A terminal that is opened next is its own.
    os.chdir(folder)
    for number, (path, flags) in enumerate(
        zip(streams, (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY), strict=True)
    ):
        descriptor = os.open(path, flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering=1, encoding="utf-8", closefd=False)
        for number, mode in enumerate("rww")
    )
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    # As in a Python that begins with `-m`.
    sys.path.insert(0, folder)
    sys.argv = ["dm-env-rpc", *arguments]
    importlib.import_module("dm_env_rpc_client.cli.entry").main()


@contextlib.contextmanager
def running_command(
    *arguments: str, cwd: Path | None, environment: dict[str, str], streams: list[str]
) -> Iterator[BaseProcess]:
    """Starts `dm-env-rpc` in a process of its own, which has ended when the block has.

    Args:
      *arguments: of the command.
      cwd: its folder; None for the current one.
      environment: all its variables.
      streams: the files that are its standard streams; a terminal becomes its own.
    """
    process = context.Process(
        target=_begin,
        args=(list(arguments), str(cwd or Path.cwd()), environment, streams),
    )
    # Each start of a process looks at the ends of all others, and an end can be read only once.
    with _starting:
        process.start()
    try:
        yield process
    finally:
        with _starting:
            end(process)


def exit_code(process: BaseProcess) -> int:
    """The exit code of a process that has ended."""
    with _starting:
        code = process.exitcode
    assert code is not None
    return code


def run_command(
    *arguments: str, cwd: Path | None = None, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `dm-env-rpc` in a process of its own, with no input, and returns how it ended.

    Args:
      *arguments: of the command.
      cwd: its folder; None for the current one.
      environment: variables beside those of the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("stdout", "stderr")]
        for path in paths:
            path.touch()
        with running_command(
            *arguments,
            cwd=cwd,
            environment=children.variables(environment or {}),
            streams=[os.devnull, *map(str, paths)],
        ) as process:
            if not connection.wait([process.sentinel], COMMAND_SECONDS):
                raise subprocess.TimeoutExpired(list(arguments), COMMAND_SECONDS)
            code = exit_code(process)
        stdout, stderr = (path.read_text(errors="surrogateescape") for path in paths)
    return subprocess.CompletedProcess(list(arguments), code, stdout, stderr)
