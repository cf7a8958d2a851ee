"""Contenders that take turns, and what their times come to.

The machine is noisy, and slow and fast by turns: no time means anything by itself. So all
contenders of a comparison run in one process's one run, in many short rounds in which each
has its turn, and they are compared by the medians over the rounds.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

Contender = Callable[[], float]
"""Takes its turn in one round, and returns the seconds of one operation in it."""


def timed(
    call: Callable[[], object],
    count: int,
    each: int = 1,
    clock: Callable[[], float] = time.perf_counter,
) -> Contender:
    """Returns a contender that calls `count` times in a round, after one call that warms up.

    Args:
      call: does `each` operations.
      count: how often.
      each: operations.
      clock: in seconds.
    """

    def turn() -> float:
        call()
        begin = clock()
        for _ in range(count):
            call()
        return (clock() - begin) / (count * each)

    return turn


@dataclasses.dataclass(frozen=True)
class Sample:
    """What was measured of an operation, such as its seconds, over the rounds."""

    median: float
    low: float
    """10th percentile."""

    high: float
    """90th percentile."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        low, median, high = np.percentile(values, [10, 50, 90])
        return cls(float(median), float(low), float(high))

    def scaled(self, factor: float) -> Sample:
        return Sample(self.median * factor, self.low * factor, self.high * factor)


def alternate(
    contenders: Mapping[str, Contender],
    rounds: int,
    progress: Callable[[int], object] = lambda done: None,
) -> dict[str, Sample]:
    """Has the contenders take turns, in a random order in each round.

    Args:
      contenders: by name.
      rounds: how many turns each has.
      progress: is told the number of rounds that are done.

    Returns:
      What was measured of each contender.
    """
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds):
        shuffle(order)
        for name in order:
            seconds[name].append(contenders[name]())
        progress(number + 1)
    return {name: Sample.of(taken) for name, taken in seconds.items()}
