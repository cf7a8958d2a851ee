"""An attacker in a process of its own, and an honest client that measures its steps beside it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from multiprocessing.connection import Connection as Pipe
from typing import Any, NamedTuple

import pytest

from tests.reliability.hostile.served import Honest, Served, percentile
from tests.reliability.recording import Seen
from tests.support import forks

SLACK = 16 << 20
"""Bytes that a server may take more."""

SCALES = [
    pytest.param(20, id="twentieth"),
    pytest.param(1, id="whole", marks=[pytest.mark.soak, pytest.mark.timeout(900)]),
]
"""What the counts of attacks are divided by."""

_COUNT = 100_000
_QUIET_STEPS = 400
_ROUNDS = 5


class Outcome(NamedTuple):
    """How a connection of an attacker ended."""

    goaway: int | None
    reset: int | None


Attack = Callable[[Any, int], list[Outcome]]
"""Attacks: takes where the server is, and a count."""


def honest_steps(where: Any, count: int) -> list[Outcome]:
    """No attack, but as much work for the machine."""
    with Honest(where) as honest:
        for _ in range(count // 50):
            honest.step()
    return []


class Measured(NamedTuple):
    """The 99th percentile of an honest client's steps, in seconds."""

    quiet: float

    neighbour: float
    """Beside another honest client."""

    loud: float
    """Beside an attack."""

    def excess(self) -> float:
        """How much longer the steps take beside an attack than they may.

        Three programs share two processors, so one that plays on the same server is the measure.
        """
        return self.loud - 2 * max(self.quiet, self.neighbour) - 0.001

    def is_fair(self, scale: int) -> bool:
        """Whether that is little. On a machine with other work a short run says not much."""
        if scale == 1:
            return self.excess() <= 0
        return self.loud <= 20 * max(self.quiet, self.neighbour) + 0.31


class Comparison:
    """Compares the steps of an honest client beside attacks with those it takes without.

    Args:
      server: what is attacked.
      program: the attacker.
      honest: the client.
      where: the server, as attacks and `Honest` take it.
      scale: one of `SCALES`.
    """

    def __init__(
        self, server: Served, program: _Attacker, honest: Honest, where: Any, scale: int
    ) -> None:
        self._server = server
        self._program = program
        self._honest = honest
        self._where = where
        self._scale = scale
        with self._apart():
            self._neighbour, _ = self._during(honest_steps)

    def beside(self, attack: Attack, seen: Seen) -> tuple[list[Outcome], list[str]]:
        """Attacks.

        Returns:
          How the attacker's connections ended, and a text for each bound that was broken.
        """
        scale = self._scale
        before = self._server.watch_memory()
        outcomes: list[Outcome] = []
        measured: list[Measured] = []
        # What one look at the 99th percentile says against a server may be of the machine: of
        # five, the middle one counts.
        with self._apart():
            while not measured or (len(measured) < _ROUNDS and not measured[0].is_fair(scale)):
                found, ended = self._measure(attack)
                measured.append(found)
                outcomes += ended
        grown = self._server.peak() - before
        middle = sorted(measured, key=Measured.excess)[len(measured) // 2]
        quiet, neighbour, loud = middle
        said = (
            f"p99 {quiet * 1e3:.2f} ms alone, {neighbour * 1e3:.2f} ms "
            f"beside an honest client, {loud * 1e3:.2f} ms beside the attack, the middle of "
            f"{len(measured)}; memory +{grown / (1 << 20):.1f} MiB; {len(outcomes)} connections"
        )
        print(said)
        seen(
            attacks=1,
            attacking_connections=len(outcomes),
            memory_mib=grown / (1 << 20),
            p99_beside_an_attack_ms=loud * 1e3,
            p99_beside_another_client_ms=neighbour * 1e3,
        )
        return outcomes, [said] if grown > SLACK or not middle.is_fair(scale) else []

    def _measure(self, attack: Attack) -> tuple[Measured, list[Outcome]]:
        quiet = self._honest.p99(_QUIET_STEPS)
        if self._scale == 1:
            self._neighbour, _ = self._during(honest_steps)
        loud, ended = self._during(attack)
        quiet = max(quiet, self._honest.p99(_QUIET_STEPS))
        return Measured(quiet, self._neighbour, loud), ended

    @contextlib.contextmanager
    def _apart(self) -> Iterator[None]:
        """Gives the server a processor of its own, where durations are measured.

        The honest client and the attacker share the other one, where the attacker runs while the
        client has nothing to do. Otherwise the system lets the client wait behind the server while
        the attacker computes on the other one: 1.2 to 2 ms beside empty DATA, 0.12 with this.
        """
        every = sorted(os.sched_getaffinity(0))
        if self._scale > 1 or len(every) < 2:
            yield
            return
        self._server.run_on(every[:1])
        self._program.run_on(every[1:2])
        os.sched_setaffinity(0, every[1:2])
        try:
            yield
        finally:
            os.sched_setaffinity(0, every)
            self._program.run_on(every)
            self._server.run_on(every)

    def _during(self, attack: Attack) -> tuple[float, list[Outcome]]:
        """The honest client's p99 while another one does something."""
        during: list[float] = []
        outcomes: list[Outcome] = []
        while not during or (self._scale == 1 and len(during) < 1_000):
            self._program.begin(attack, self._where, _COUNT // self._scale)
            while not self._program.is_done():
                during.append(self._honest.step())
            outcomes += self._program.outcomes()
        return percentile(during), outcomes


def pause(scale: int) -> float:
    """Returns how long an honest client waits between two steps, in seconds."""
    return 0.0005 if scale == 1 else 0.0


def _attack(told: Pipe, is_measured: bool) -> None:
    """Attacks when told to, and tells what came of it."""
    if is_measured:
        # An attacker has a computer of its own. What it takes of the processors is not measured.
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    told.send("ready")
    while True:
        try:
            attack, where, count = told.recv()
        except EOFError:
            return
        told.send(attack(where, count))


class _Attacker:
    """A process that attacks.

    Args:
      is_measured: whether durations beside it are measured.
    """

    def __init__(self, is_measured: bool) -> None:
        self._told, heard = forks.context.Pipe()
        self._process = forks.context.Process(target=_attack, args=(heard, is_measured))
        self._process.start()
        heard.close()
        assert self._told.recv() == "ready"

    def begin(self, attack: Attack, where: Any, count: int) -> None:
        self._told.send((attack, where, count))

    def run_on(self, processors: Collection[int]) -> None:
        assert self._process.pid is not None
        os.sched_setaffinity(self._process.pid, processors)

    def is_done(self) -> bool:
        return self._told.poll()

    def outcomes(self) -> list[Outcome]:
        outcomes: list[Outcome] = self._told.recv()
        return outcomes

    def end(self) -> None:
        self._told.close()
        forks.end(self._process)


@contextlib.contextmanager
def attacker(scale: int) -> Iterator[_Attacker]:
    """Runs a process that attacks."""
    program = _Attacker(scale == 1)
    try:
        yield program
    finally:
        program.end()
