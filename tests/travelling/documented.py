"""What the guides say is different, and faults that are known.

A sentence is in `docs/`, word by word. `in_process.py` and `timed_in_process.py` apply those about
every environment; `DIFFERENT` has those about some cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.travelling.told import Call, Failed, Lost, Tale

__all__ = ["DIFFERENT", "EVERYWHERE", "KNOWN", "Different", "expected_in"]

EVERYWHERE: Mapping[str, Sequence[str]] = {
    "how-to/gymnasium.md": [
        "observed elements of a Discrete are `int`, where some environments have NumPy's integers",
        "a Dict that is observed has the order of its space, as in Gymnasium's own vector "
        "environments, and not the order in which the environment filled it",
        "rewards are `float`",
        "anything else as its `repr`",
    ],
    "how-to/batches.md": [
        "A row refuses the values that an environment of its own refuses, with the same text: "
        "nothing is wrapped, parsed, broadcast or cut off. What rounds is float64 in place of "
        "float32.",
        "The TimeStep that `reset` of an environment returns is FIRST",
    ],
}
"""By guide."""


class Different(NamedTuple):
    """Cells that are different as a guide says."""

    guide: str
    sentence: str
    ways: Sequence[str]
    habits: Sequence[str]
    changed: Callable[[list[Tale], Sequence[Call]], list[Tale]]
    """What is expected in place of the tales."""


DIFFERENT: Sequence[Different] = []

KNOWN: Mapping[tuple[str, str], str] = {}
"""Faults, by way and habit: these cells have to fail."""


def expected_in(way: str, habit: str, tales: list[Tale], calls: Sequence[Call]) -> list[Tale]:
    """Returns what is expected in a cell."""
    for each in DIFFERENT:
        if way in each.ways and habit in each.habits:
            tales = each.changed(tales, calls)
    return tales
