"""What tests of launched servers ask the operating system, and the servers that they launch."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dm_env_rpc_client.launch import Launch, from_python
from tests.support import programs
from tests.support.scripted import settles

ROOT = programs.ROOT
ECHO = "python:tests.support.environments:Echo"

AT_PORT = [
    sys.executable, "-m", "dm_env_rpc_client.server", "tests.support.environments:Echo",
    "localhost:{port}",
]  # fmt: skip


def is_alive(pid: int) -> bool:
    try:
        # The state comes after the name, which is in parentheses; Z waits to be reaped.
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]
    except (FileNotFoundError, ProcessLookupError):
        return False


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def children_of(pid: int) -> list[int]:
    found = []
    for each in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if each.isdigit() and parent_of(int(each)) == pid:
                found.append(int(each))
    return found


def command_of(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def servers_of(supervisor: int) -> list[int]:
    """The children of a supervisor but its guard, which is a fork of it."""
    own = command_of(supervisor)
    return [pid for pid in children_of(supervisor) if command_of(pid) != own]


def server_of(launch: Launch) -> int:
    """The process id of the server itself."""
    (pid,) = servers_of(launch.pid)
    return pid


def kill(launch: Launch) -> None:
    """Kills the server, and waits until its end was noticed."""
    with contextlib.suppress(ProcessLookupError, ValueError):
        os.kill(server_of(launch), signal.SIGKILL)
    assert settles(lambda: not launch.is_running, 20)


def supervisors(program: bytes = b"system/children.py") -> list[int]:
    """The processes of this one that watch over launched servers."""
    return [pid for pid in children_of(os.getpid()) if program in command_of(pid) and is_alive(pid)]


class Launcher:
    """Launches servers, and has them for the test to kill.

    Args:
      *references: of the environments, one after the other, the last for all that follow.
      **options: of `from_python`.
    """

    def __init__(self, *references: str, **options: Any) -> None:
        self._references = references or ("tests.support.environments:Echo",)
        self._options = options
        self.launches: list[Launch] = []

    def __call__(self) -> Launch:
        reference = self._references[min(len(self.launches), len(self._references) - 1)]
        self.launches.append(from_python(reference, **self._options))
        return self.launches[-1]

    def kill(self) -> None:
        kill(self.launches[-1])

    def all_ended(self) -> bool:
        return not any(launch.is_running for launch in self.launches)
