from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from dm_env_rpc_client.system import waiting
from dm_env_rpc_client.system.waiting import Deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_what_remains_shrinks_to_nothing(clock: SimpleNamespace) -> None:
    soon = Deadline.after(2.0)
    assert (soon.time, soon.remaining, soon.has_passed) == (102.0, 2.0, False)
    for now, remaining, has_passed in ((101.5, 0.5, False), (102, 0.0, True), (200, 0.0, True)):
        clock.now = now
        assert (soon.remaining, soon.has_passed) == (remaining, has_passed)
    for seconds in (0.0, -1.0):
        assert Deadline.after(seconds).has_passed


def test_none_is_a_deadline_that_never_passes(clock: SimpleNamespace) -> None:
    never = Deadline.after(None)
    clock.now = 1e12
    assert (never.time, never.remaining, never.has_passed) == (math.inf, None, False)


def test_the_earliest_of_several(clock: SimpleNamespace) -> None:
    soon, later, never = Deadline.after(1.0), Deadline.after(2.0), Deadline.after(None)
    assert min(never, later, soon) == soon
    assert min(never, later) is later


def test_the_clock_is_the_monotonic_one() -> None:
    remaining = Deadline.after(60.0).remaining
    assert remaining is not None
    assert 0.0 < remaining <= 60.0
