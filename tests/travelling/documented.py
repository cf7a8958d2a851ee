"""What the guides say is different.

A sentence is in `docs/`, word by word. `in_process.py` and `timed_in_process.py` apply those about
every environment; `DIFFERENT` has those about some cells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.travelling.told import Call, Event, Failed, Tale

EVERYWHERE: Mapping[str, Sequence[str]] = {
    "how-to/gymnasium.md": [
        "observed Discrete values are `int`, even if the environment returns NumPy integers",
        "an observed Dict has the order of its space",
        "rewards are `float`",
        "anything else arrives as its `repr`",
        "arrives as the plain number or string",
    ],
    "how-to/batches.md": [
        "A row rejects the same values as a single environment, and the error message is the same",
        "No value is wrapped, parsed, broadcast or truncated",
        "The only rounding of values in a batch is from float64 to float32.",
        "The TimeStep from an environment's `reset` counts as FIRST",
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


def _until_a_reset(tales: list[Tale], calls: Sequence[Call]) -> list[Tale]:
    """After an end that was refused, each call but a reset is refused."""
    changed = []
    for tale in tales:
        told = list(tale)
        is_lost = False
        for place, call in enumerate(calls, 1):
            is_lost = call != "R" and (is_lost or (call == "r" and _has_failed(tale[place - 1])))
            if is_lost:
                told[place] = Failed("FAILED_PRECONDITION", "send a Reset to begin a new one")
        changed.append(told)
    return changed


def _taken_as_of_gym(tales: list[Tale], calls: Sequence[Call]) -> list[Tale]:
    """Old environments of gym return as many values: it is these that do not fit."""
    unfit = Failed("INTERNAL", "", ("violates its own specs", "'observation'"))
    return [[unfit if _has_failed(event) else event for event in tale] for tale in tales]


def _has_failed(event: Event) -> bool:
    return isinstance(event, Failed)


def _refused(code: str, *parts: str) -> Callable[[list[Tale], Sequence[Call]], list[Tale]]:
    """It is not opened."""
    return lambda tales, calls: [[Failed(code, "", parts)] for _ in tales]


DIFFERENT: Sequence[Different] = [
    Different(
        "how-to/batches.md",
        "A batch cannot contain variable-length arrays or multi-agent games.",
        ["make of a batch"],
        ["a Sequence", "a stacked Sequence"],
        _refused("INVALID_ARGUMENT", "is of variable length"),
    ),
    Different(
        "how-to/batches.md",
        "A batch cannot contain variable-length arrays or multi-agent games.",
        ["served VectorEnv"],
        ["a Sequence", "a stacked Sequence"],
        _refused("INTERNAL", "is of variable length"),
    ),
    Different(
        "how-to/batches.md",
        (
            "an environment with its own stream fails with FAILED_PRECONDITION at each step until "
            "a reset"
        ),
        [
            "streams",
            "streams, SAME_STEP",
            "infos by row, streams",
            "make",
            "make_async",
            "make, grpc",
        ],
        ["what follows an end that did not fit"],
        _until_a_reset,
    ),
    Different(
        "how-to/old-simulators.md",
        "environments from any version of gym or Gymnasium",
        ["one file, Remote-v0", "infos by row, one file"],
        ["returns four values", "returns an observation alone"],
        _taken_as_of_gym,
    ),
]

_UNLIKE = (
    "integers of 2**63",
    "deep",
    "3 beside None",
    "arrays of different length",
)

UNLIKE: Mapping[tuple[str, str], tuple[str, str]] = {
    **{
        (way, habit): (
            "how-to/gymnasium.md",
            (
                "step fails if an info cannot be stacked with those of other rows: for example, a "
                "number beside None, an array of another length, an integer of more than 64 bits "
                "or lists six levels deep"
            ),
        )
        for way, habits in {
            "batch": _UNLIKE,
            "batch, SAME_STEP": _UNLIKE,
            "batch, DISABLED": _UNLIKE,
            "batch, processes": _UNLIKE,
            "two batches": (*_UNLIKE[:3], "a dict beside None"),
            "served VectorEnv": ("deep",),
        }.items()
        for habit in habits
    },
    **{
        ("served VectorEnv", habit): ("how-to/batches.md", "numbers [N], [N, 1] or [1, N]")
        for habit in ("a reward in an array", "a reward in a list")
    },
    **{
        (way, "agents: a value that does not fit"): (
            "how-to/pettingzoo.md",
            (
                "`AgentsFailedError` reports the agent and the cause; all streams are closed and "
                "the world is destroyed."
            ),
        )
        for way in (
            "RemoteParallelEnv",
            "RemoteParallelEnv, grpc",
            "RemoteParallelEnv, processes",
        )
    },
}
"""Cells, by way and habit, that are unlike those in process, with the guide and its sentence.

They have to fail, so that one that no longer does leaves the list.
"""


def expected_in(way: str, habit: str, tales: list[Tale], calls: Sequence[Call]) -> list[Tale]:
    """Returns what is expected in a cell."""
    for each in DIFFERENT:
        if way in each.ways and habit in each.habits:
            tales = each.changed(tales, calls)
    return tales
