from __future__ import annotations

import math

import pytest

from dm_env_rpc_client.system import deadline
from dm_env_rpc_client.system.deadline import Deadline


class Clock:
    """Stands in for the module `time`."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    replaced = Clock()
    monkeypatch.setattr(deadline, "time", replaced)
    return replaced


def test_what_remains_shrinks_to_nothing(clock: Clock) -> None:
    soon = Deadline.after(2.0)
    assert (soon.time, soon.remaining, soon.has_passed) == (102.0, 2.0, False)
    clock.now = 101.5
    assert (soon.remaining, soon.has_passed) == (0.5, False)
    clock.now = 102.0
    assert (soon.remaining, soon.has_passed) == (0.0, True)
    clock.now = 200.0
    assert (soon.remaining, soon.has_passed) == (0.0, True)
    for seconds in (0.0, -1.0):
        assert Deadline.after(seconds).has_passed


def test_none_is_a_deadline_that_never_passes(clock: Clock) -> None:
    never = Deadline.after(None)
    clock.now = 1e12
    assert (never.time, never.remaining, never.has_passed) == (math.inf, None, False)


def test_the_earliest_of_several(clock: Clock) -> None:
    soon, later, never = Deadline.after(1.0), Deadline.after(2.0), Deadline.after(None)
    assert min(never, later, soon) == soon
    assert min(never, later) is later


def test_the_clock_is_the_monotonic_one() -> None:
    remaining = Deadline.after(60.0).remaining
    assert remaining is not None
    assert 0.0 < remaining <= 60.0
