"""The processes of a cluster."""

from __future__ import annotations

from tests.launch.processes import children_of


def descendants_of(pid: int) -> set[int]:
    """The processes that a process has started, and those that they have."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        children = children_of(waiting.pop())
        found.update(children)
        waiting.extend(children)
    return found
