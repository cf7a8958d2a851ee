"""The processes that a supervisor has started, as /proc tells; none where there is no /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_STATES = {
    "R": "computes",
    "S": "sleeps",
    "D": "waits for a device",
    "T": "is stopped by a signal",
    "t": "is held by a debugger",
    "Z": "has ended",
}
"""What proc_pid_stat(5) calls them; others are rare."""

_SHOWN = 5


class Process(NamedTuple):
    """What /proc/PID/stat tells of a process.

    Attributes:
      pid: its id.
      name: of its program, cut off by the system.
      state: a letter.
      parent: the id of its parent.
      session: the id of its session.
      seconds: of processor time that it has used.
    """

    pid: int
    name: str
    state: str
    parent: int
    session: int
    seconds: float


def descendants(root: int) -> list[Process]:
    """Returns a process, those below it, and those in the sessions of these."""
    there = list(_read())
    found = {root}
    while more := {each.pid for each in there if each.parent in found} - found:
        found |= more
    sessions = {each.session for each in there if each.pid in found - {root}}
    return [each for each in there if each.pid in found or each.session in sessions]


def doing(supervisor: int) -> str:
    """Says what the processes of a supervised command do, which has a session of its own."""
    own = [each for each in descendants(supervisor) if each.session != supervisor]
    shown = [
        f"{each.pid} {each.name!r} {_STATES.get(each.state, each.state)}, "
        f"{each.seconds:.1f} s of processor time"
        for each in own[:_SHOWN]
    ]
    if len(own) > _SHOWN:
        shown.append(f"and {len(own) - _SHOWN} more")
    return "; ".join(shown)


def processes() -> list[int]:
    """Returns the ids of all processes."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def _read() -> Iterator[Process]:
    ticks = os.sysconf("SC_CLK_TCK")
    for pid in processes():
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
            before, _, after = text.rpartition(")")
            fields = after.split()
            name = before.partition("(")[2]
            seconds = (int(fields[11]) + int(fields[12])) / ticks
            yield Process(pid, name, fields[0], int(fields[1]), int(fields[3]), seconds)
