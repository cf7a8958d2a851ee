"""A test gives up what it waits for after many looks, not after one that took long."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.scripted import settles, settles_async

LIMIT = 0.01


class Slow:
    """A condition whose first look takes longer than the limit, and tells what was before."""

    def __init__(self, true_from: int):
        self.looks = 0
        self._true_from = true_from

    def __call__(self) -> bool:
        self.looks += 1
        if self.looks == 1:
            time.sleep(20 * LIMIT)  # As if the machine had stood still.
        return self.looks >= self._true_from


def settled(condition: Slow, is_async: bool) -> bool:
    if is_async:
        return asyncio.run(settles_async(condition, LIMIT))
    return settles(condition, LIMIT)


@pytest.mark.parametrize("is_async", [False, True])
def test_one_look_that_took_long_is_not_the_last(is_async: bool) -> None:
    condition = Slow(true_from=3)
    assert settled(condition, is_async)
    assert condition.looks == 3


@pytest.mark.parametrize("is_async", [False, True])
def test_what_never_happens_is_given_up(is_async: bool) -> None:
    condition = Slow(true_from=1_000_000)
    assert not settled(condition, is_async)
    assert condition.looks < 1_000
