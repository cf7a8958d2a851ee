"""Holds the calculation against reality: many environments on fake servers, and on real ones.

The calculation knows nothing of other programs, and the processor is not always as fast as it was
when the costs were measured, see `processes`. So a step of a few environments is timed before and
after each turn, and the costs are taken times that. Of all turns, those count in which this changed
least and processes waited least for a processor.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dm_env_rpc_client import BatchedEnvironment
from tests.scale import model
from tests.scale.costs import Gauge, actions, opened
from tests.scale.fakes import Fake, fake
from tests.scale.model import Costs
from tests.scale.processes import Process, Watch, served

__all__ = [
    "ANY",
    "COUNTS",
    "LATENCIES",
    "SERVED",
    "WAITS_FOR_ALL",
    "Outcome",
    "serve",
    "simulate",
]

LATENCIES = (0.001, 0.005, 0.020)
COUNTS = (16, 64, 256, 1000)
WAITS_FOR_ALL, ANY = "step", "send and recv"
COMPUTES, WAITS = "computes", "waits"

SERVED = (
    (COMPUTES, 16, 0.0),
    (COMPUTES, 16, 0.001),
    (COMPUTES, 16, 0.020),
    (WAITS, 64, 0.020),
)
"""What environments of a real server do in a step, how many they are, and for how many seconds."""

_TURN_SECONDS = 0.03
_UNTIL_STEADY, _STEADY = 4, 4
"""Times the latency, while answers are under way between turns."""

_TURNS, _LEAST_TURNS = 10, 3
"""Quiet turns that are wanted, and how many there are without patience."""

_QUIET = 0.05
"""The disturbance of a quiet turn."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What some environments reached.

    Attributes:
      payload: what is observed.
      mode: how they were stepped: `WAITS_FOR_ALL` or `ANY`; of real servers, what the environments
        did, `COMPUTES` or `WAITS`.
      environments: the number of environments.
      seconds: after which a fake server answers, or for which the environment computes or waits.
      calculated: steps per second, from costs that were measured before.
      measured: steps per second.
      disturbance: the share of the time for which processes waited for a processor, or by which the
        processor's speed changed, whichever is more.
    """

    payload: str
    mode: str
    environments: int
    seconds: float
    calculated: float
    measured: float
    disturbance: float

    @property
    def error(self) -> float:
        """By which part of the calculation the measurement is beyond it."""
        return self.measured / self.calculated - 1


class _Turn(NamedTuple):
    disturbance: float
    rate: float
    of_calculated: float


def simulate(
    payload: str,
    costs: Costs,
    gauge: Gauge,
    patience: float,
    progress: Callable[[str], object],
    counts: Sequence[int] = COUNTS,
) -> Iterator[Outcome]:
    """Steps environments of a fake server, at each latency and in both modes.

    Args:
      payload: what is observed.
      costs: what a step of it costs.
      gauge: has the reference of when they were measured.
      patience: seconds for which quiet turns are looked for in each case.
      progress: is told what is being measured.
      counts: the numbers of environments.

    Yields:
      What each number of environments reached.
    """
    with fake(payload) as server:
        for count in counts:
            server.answer_after(0.0)
            progress(f"{payload}: {count} environments are opened")
            with opened(server.address, count, payload) as envs:
                for latency in LATENCIES:
                    for mode in (WAITS_FOR_ALL, ANY):
                        progress(f"{payload}: {count} environments, {latency * 1000:g} ms, {mode}")
                        yield _simulated(
                            envs, server, payload, costs, gauge, latency, mode, patience
                        )


def _simulated(
    envs: BatchedEnvironment,
    server: Fake,
    payload: str,
    costs: Costs,
    gauge: Gauge,
    latency: float,
    mode: str,
    patience: float,
) -> Outcome:
    server.answer_after(latency)
    count = envs.num_envs
    if mode == WAITS_FOR_ALL:
        expected = functools.partial(model.stepped, count=count, latency=latency, serve=costs.fake)
        advance = functools.partial(_step, envs)
        found = _measured(advance, expected, costs, gauge, server, patience)
    else:
        expected = functools.partial(model.turn, count=count, latency=latency, serve=costs.fake)
        envs.send(actions(count))
        advance = functools.partial(_take_turns, envs)
        found = _measured(advance, expected, costs, gauge, server, patience, latency)
        envs.reset()  # Drops the Steps that are under way.
    return Outcome(payload, mode, count, latency, *found)


def serve(
    payload: str, costs: Costs, gauge: Gauge, patience: float, progress: Callable[[str], object]
) -> Iterator[Outcome]:
    """Steps the environments `SERVED` of a real server, and waits for all.

    Args:
      payload: what is observed.
      costs: what a step of it costs.
      gauge: has the reference of when they were measured.
      patience: seconds for which quiet turns are looked for in each case.
      progress: is told what is being measured.

    Yields:
      What they reached, with one client process and one server process.
    """
    with served() as server:
        for does, count, seconds in SERVED:
            progress(f"{payload}: {count} real environments, each {does} for {seconds * 1000:g} ms")
            waits = does == WAITS
            work, latency = (0.0, seconds) if waits else (seconds, 0.0)
            with opened(server.address, count, payload, seconds=seconds, waits=waits) as envs:
                expected = functools.partial(
                    model.stepped, count=count, latency=latency, serve=costs.serve + work
                )
                advance = functools.partial(_step, envs)
                found = _measured(advance, expected, costs, gauge, server, patience)
            yield Outcome(payload, does, count, seconds, *found)


def _step(envs: BatchedEnvironment) -> int:
    envs.step(actions(envs.num_envs))
    return envs.num_envs


def _take_turns(envs: BatchedEnvironment) -> int:
    _, arrived = envs.recv()
    envs.send(actions(len(arrived)), arrived)
    return len(arrived)


def _measured(
    advance: Callable[[], int],
    expected: Callable[[Costs], float],
    costs: Costs,
    gauge: Gauge,
    server: Process,
    patience: float,
    latency: float = 0.0,
) -> tuple[float, float, float]:
    """Returns the rate of the quietest turns, calculated and measured, and their disturbance.

    Args:
      advance: steps, and returns how many steps those were.
      expected: calculates the rate.
      costs: of a step.
      gauge: has the reference of when they were measured.
      server: who answers.
      patience: seconds for which quiet turns are looked for.
      latency: of answers that are under way between two turns. They all arrive there, which takes
        some time to be forgotten.
    """
    found: list[_Turn] = []

    def advance_steadily() -> float:
        steady = time.perf_counter() + _UNTIL_STEADY * latency
        while time.perf_counter() < steady:
            advance()
        begin = time.perf_counter()
        steps = 0
        while True:
            steps += advance()
            seconds = time.perf_counter() - begin
            if seconds >= _TURN_SECONDS + _STEADY * latency:
                return steps / seconds

    watch = Watch(server)
    advance_steadily()
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline or len(found) < _LEAST_TURNS:
        before = gauge.seconds()
        turn = watch.turn(advance_steadily)
        after = gauge.seconds()
        times = gauge.compared(before, after)
        change = 1 - min(before, after) / max(before, after)
        found.append(
            _Turn(max(turn.waited, change), turn.found, turn.found / expected(costs.slowed(times)))
        )
        if sum(each.disturbance <= _QUIET for each in found) == _TURNS:
            break
    quiet = sorted(found)[:_TURNS]
    measured = statistics.median(turn.rate for turn in quiet)
    return (
        measured / statistics.median(turn.of_calculated for turn in quiet),
        measured,
        statistics.fmean(turn.disturbance for turn in quiet),
    )
