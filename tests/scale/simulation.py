"""Holds the calculation against reality: many environments on fake servers, and on real ones.

Of all turns, those count that were disturbed least, see `processes`: the calculation knows nothing
of other programs.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from dm_env_rpc_client import BatchedEnvironment
from tests.scale import model
from tests.scale.costs import actions, opened
from tests.scale.fakes import Fake, fake
from tests.scale.model import Costs
from tests.scale.processes import Process, Turn, Watch, quietest, served

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
_TURNS, _LEAST_TURNS = 10, 3
"""Quiet turns that are wanted, and how many there are without patience."""

_QUIET = 0.05
"""The share of a quiet turn that others may have taken."""


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
      disturbance: the share of the time that others took.
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


def simulate(
    payload: str,
    costs: Costs,
    patience: float,
    progress: Callable[[str], object],
    counts: Sequence[int] = COUNTS,
) -> Iterator[Outcome]:
    """Steps environments of a fake server, at each latency and in both modes.

    Args:
      payload: what is observed.
      costs: what a step of it costs.
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
                        yield _simulated(envs, server, payload, costs, latency, mode, patience)


def _simulated(
    envs: BatchedEnvironment,
    server: Fake,
    payload: str,
    costs: Costs,
    latency: float,
    mode: str,
    patience: float,
) -> Outcome:
    server.answer_after(latency)
    count = envs.num_envs
    if mode == WAITS_FOR_ALL:
        calculated = model.stepped(costs, count, latency, costs.fake)
        measured, disturbance = _measured(lambda: _step(envs), server, patience)
    else:
        calculated = model.turn(costs, count, latency, costs.fake)
        envs.send(actions(count))
        measured, disturbance = _measured(lambda: _take_turns(envs), server, patience)
        envs.reset()  # Drops the Steps that are under way.
    return Outcome(payload, mode, count, latency, calculated, measured, disturbance)


def serve(
    payload: str, costs: Costs, patience: float, progress: Callable[[str], object]
) -> Iterator[Outcome]:
    """Steps the environments `SERVED` of a real server, and waits for all.

    Args:
      payload: what is observed.
      costs: what a step of it costs.
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
                calculated = model.stepped(costs, count, latency, costs.serve + work)
                measured, disturbance = _measured(lambda: _step(envs), server, patience)
            yield Outcome(payload, does, count, seconds, calculated, measured, disturbance)


def _step(envs: BatchedEnvironment) -> int:
    envs.step(actions(envs.num_envs))
    return envs.num_envs


def _take_turns(envs: BatchedEnvironment) -> int:
    _, arrived = envs.recv()
    envs.send(actions(len(arrived)), arrived)
    return len(arrived)


def _measured(advance: Callable[[], int], server: Process, patience: float) -> tuple[float, float]:
    """Returns the median rate of the quietest turns, and how much they were disturbed.

    Args:
      advance: steps, and returns how many steps those were.
      server: who answers.
      patience: seconds for which quiet turns are looked for.
    """

    def rate() -> float:
        begin = time.perf_counter()
        steps = 0
        while True:
            steps += advance()
            seconds = time.perf_counter() - begin
            if seconds >= _TURN_SECONDS:
                return steps / seconds

    watch = Watch(server)
    rate()
    found: list[Turn] = []
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline or len(found) < _LEAST_TURNS:
        found.append(watch.turn(rate))
        if sum(turn.disturbance <= _QUIET for turn in found) == _TURNS:
            break
    quiet = quietest(found, _TURNS)
    return (
        statistics.median(turn.found for turn in quiet),
        statistics.fmean(turn.disturbance for turn in quiet),
    )
