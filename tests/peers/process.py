"""A program that stands by until it is told to end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

STOP_SECONDS = 10.0


class PeerProcess:
    """A running peer. It ends when its stdin does, so also when this process dies.

    Args:
      command: the program and its arguments.
    """

    def __init__(self, command: Sequence[str | Path]):
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, line: str) -> None:
        """Writes a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        """Reads a line from its stdout."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(
                f"{self._process.args!r} ended with exit code {self._process.wait(STOP_SECONDS)}"
            )
        return line.rstrip("\n")

    def kill(self) -> None:
        """Ends it at once, with nothing said to anybody."""
        self._process.kill()
        self._process.wait(STOP_SECONDS)

    def begin_to_stop(self) -> None:
        """Tells it to end, and does not wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()

    def stop(self) -> None:
        """Tells it to end and waits; ends it where it does not. A second time does nothing."""
        if not self._process.stdin or not self._process.stdout:
            raise AssertionError("both are pipes")
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # It has ended already.
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process.stdout.close()

    def __enter__(self) -> PeerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
