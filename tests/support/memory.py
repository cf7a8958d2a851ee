"""How much memory a process takes, as proc(5) counts it."""

from __future__ import annotations

from pathlib import Path


def watch(pid: int | str = "self") -> int:
    """Begins to look for the peak of a process, and returns what it takes now, in bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return _bytes(pid, "VmRSS")


def peak(pid: int | str = "self") -> int:
    """The most that a process took since `watch`, or since it began, in bytes."""
    return _bytes(pid, "VmHWM")


def _bytes(pid: int | str, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) * 1024
