"""Runs a command until its own standard input ends, and leaves nothing of it behind.

A program of its own, which imports nothing but the standard library: whoever started it
may be killed at any time, which closes its standard input, and it then ends the command
with everything that the command has started in its process group.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

_GRACE_SECONDS = 5.0
"""How long the command may take to end by itself."""


def main(command: list[str]) -> int:
    """Runs the command and returns its exit code."""
    # Signals meant for a terminal's foreground job are for whoever started this program.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    threading.Thread(target=_end_with_input, args=(process,), daemon=True).start()
    try:
        return process.wait()
    finally:
        _signal_group(process, signal.SIGKILL)


def _end_with_input(process: subprocess.Popen[bytes]) -> None:
    # Not through `sys.stdin`, whose lock this thread would hold when the program ends.
    while os.read(sys.stdin.fileno(), 1024):
        pass
    _signal_group(process, signal.SIGTERM)
    try:
        process.wait(_GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
