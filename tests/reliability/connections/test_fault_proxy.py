"""Row 25: episodes over a bad network, compared with a model of what they have to be.

Each world has a number, and its observations tell the world, the step and the action that they
belong to, so a TimeStep of another request shows. The server's diary tells what it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    make,
    make_async,
)
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.testing import FaultProxy
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts, is_strict
from tests.support.loops import Blocking
from tests.support.scripted import settles
from tests.support.stopwatch import Stopwatch
from tests.travelling.environments.of_dm_env import Timed

pytestmark = pytest.mark.row(25)

LENGTH = 40
DEADLINE = 1.0 if is_strict() else 2.0
CLOSE_SECONDS = 2.0
PATIENCE = DEADLINE if is_strict() else 60.0
"""The deadline of calls that nothing is done to. What misses one is the machine, if it is busy."""

LATE_SECONDS = 0.2
"""How long after its deadline a call may end."""

DAMAGES = ("corrupt to_server", "corrupt to_client")
HARMLESS = ("nothing", "pause")
FAULTS = (*HARMLESS, *DAMAGES, "reset", "blackhole", "half_close to_server", "half_close to_client")


def observed(number: int, step: int, action: int) -> int:
    """What world `number` shows after that action in that step."""
    return (number << 40) + (step << 20) + action


DIARY: dict[int, list[int]] = {}
"""The actions that each world of this process was asked for."""

SCRIPT: list[Any] = [(dm_env.StepType.FIRST, None, None)]
SCRIPT += [(dm_env.StepType.MID, float(step), 1.0) for step in range(1, LENGTH)]
SCRIPT += [(dm_env.StepType.LAST, float(LENGTH), 0.0)]
SPEC = {"value": specs.Array((), np.int64, "value")}


def diary(number: int) -> Timed:
    """An environment that writes down the actions that it is asked for."""
    entry = DIARY.setdefault(number, [])

    def observe(env: Timed) -> dict[str, np.int64]:
        value = int(env.action["value"]) if env.steps else 0
        if env.steps:
            entry.append(value)
        return {"value": np.int64(observed(number, env.steps, value))}

    return Timed(0, SCRIPT, SPEC, observe, SPEC)


class Coroutines(Blocking):
    """An environment for coroutines, used from a thread as the other one is."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *arguments: Any, **options: Any):
        super().__init__(loop, loop.run_until_complete(make_async(*arguments, **options)))
        self._tasks: list[asyncio.Task[Any]] = []

    def step_async(self, action: Any) -> Any:
        task = self._loop.create_task(self._object.step(action))
        self._tasks.append(task)
        return SimpleNamespace(result=lambda: self._loop.run_until_complete(task))

    def close(self) -> None:
        self._loop.run_until_complete(self._end())

    async def _end(self) -> None:
        try:
            await self._object.close()
        finally:
            # Takes the outcomes that nobody asked for after an earlier step had failed.
            await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclasses.dataclass
class Tally:
    """What all episodes saw."""

    right: int = 0
    wrong: list[str] = dataclasses.field(default_factory=list)
    whole: int = 0
    lost: int = 0
    late: int = 0
    other_errors: int = 0
    latest: float = 0.0

    @contextlib.contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        stopwatch = Stopwatch()
        try:
            yield
        finally:
            self.latest = max(self.latest, stopwatch.net - seconds)


@dataclasses.dataclass
class Episode:
    """One world, from `make` to `close`, with a fault at a random moment."""

    number: int
    fault: str
    chance: random.Random
    tally: Tally
    make: Callable[..., Any]

    sent: list[int] = dataclasses.field(default_factory=list)
    answered: int = 0

    @property
    def deadline(self) -> float:
        return PATIENCE if self.fault in HARMLESS else DEADLINE

    def run(self, address: str) -> None:
        with FaultProxy(
            address,
            latency=self.chance.choice([0.0, 0.0, 0.003]),
            jitter=self.chance.choice([0.0, 0.0, 0.003]),
            slice_bytes=self.chance.choice([None, 1, 1, 7]),
            bandwidth=self.chance.choice([None, None, 200_000]),
            seed=self.number,
        ) as proxy:
            timer = threading.Timer(self.chance.uniform(0.0, 0.03), self._begin_fault, (proxy,))
            timer.start()
            try:
                self._go_through(proxy.address)
                self.tally.whole += 1
            except DeadlineExceededError:
                self.tally.late += 1
                self._allow(self.fault not in HARMLESS)
            except ConnectionLostError:
                self.tally.lost += 1
                self._allow(self.fault not in HARMLESS)
            except DmEnvRpcClientError:
                self.tally.other_errors += 1
                self._allow(self.fault in DAMAGES)
            finally:
                timer.join()
        if self.fault != "corrupt to_server":
            done = DIARY.get(self.number, [])
            self._expect(done == self.sent[: len(done)], f"the server did {done}, not {self.sent}")
            self._expect(len(done) >= self.answered, f"{self.answered} answers, {len(done)} steps")

    def _allow(self, condition: bool) -> None:
        if not condition:
            raise  # noqa: PLE0704  # The error that is handled is no consequence of the fault.

    def _begin_fault(self, proxy: FaultProxy) -> None:
        name, _, direction = self.fault.partition(" ")
        bound: Any = getattr(proxy, name, None)
        if name == "corrupt":
            bound(direction, self.chance.randint(1, 4), self.chance.randint(0, 500))
        elif name == "pause":
            proxy.blackhole()
            time.sleep(0.1)  # How long nothing passes.
            proxy.resume()
        elif name != "nothing":
            bound(*([direction] if direction else []))

    def _go_through(self, address: str) -> None:
        with self.tally.limit(3 * self.deadline):  # It connects, creates and joins.
            env = self.make(
                address,
                {"number": self.number},
                timeout=self.deadline,
                request_timeout=self.deadline,
            )
        try:
            self._compare(self._timed(env.reset), 0, 0)
            step = 0
            while step < LENGTH:
                ahead = min(self.chance.choice([1, 1, 3, 8]), LENGTH - step)
                actions = [self.chance.randrange(1 << 20) for _ in range(ahead)]
                self.sent += actions
                if ahead == 1:
                    timesteps = [self._timed(env.step, {"value": actions[0]})]
                else:
                    futures = [env.step_async({"value": action}) for action in actions]
                    timesteps = [self._timed(future.result) for future in futures]
                for timestep, action in zip(timesteps, actions, strict=True):
                    step += 1
                    self._compare(timestep, step, action)
            self._compare(self._timed(env.reset), 0, 0)
        finally:
            with self.tally.limit(CLOSE_SECONDS):
                env.close()

    def _timed(self, call: Callable[..., Any], *arguments: Any) -> Any:
        with self.tally.limit(self.deadline):
            return call(*arguments)

    def _compare(self, timestep: dm_env.TimeStep, step: int, action: int) -> None:
        self.answered += step > 0
        if self.fault in DAMAGES:
            return  # Without TLS nobody can tell a value, or a name, from another valid one.
        expected = observed(self.number, step, action)
        kind = {0: dm_env.StepType.FIRST, LENGTH: dm_env.StepType.LAST}.get(
            step, dm_env.StepType.MID
        )
        is_right = (
            timestep.step_type is kind
            and timestep.observation["value"] == expected
            and timestep.reward == (step or None)
        )
        self._expect(is_right, f"step {step} with action {action}: {timestep}")

    def _expect(self, condition: bool, text: str) -> None:
        if condition:
            self.tally.right += 1
        else:
            self.tally.wrong.append(f"world {self.number}, {self.fault}: {text}")


@pytest.fixture(params=["threads", "coroutines"])
def open_environment(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """What makes an environment; the ones for coroutines share a loop, as grpc.aio wants it."""
    if request.param == "threads":
        yield make
        return
    loop = asyncio.new_event_loop()
    yield functools.partial(Coroutines, loop)
    loop.close()


@counts(len(FAULTS), 500)
def test_episodes_over_a_bad_network_are_right_or_end_in_time(
    open_environment: Callable[..., Any], count: int, seen: Seen, transport: str
) -> None:
    tally = Tally()
    DIARY.clear()
    with serve(diary, max_worlds=2_000) as server:
        for number in range(count):
            chance = random.Random(f"{transport} {number}")
            # Each fault in turn, so that a short run has all of them.
            fault = FAULTS[number % len(FAULTS)]
            Episode(number, fault, chance, tally, open_environment).run(server.address)
        assert settles(lambda: server.agent_count == 0, 10)
    seen(
        episodes=count,
        whole_episodes=tally.whole,
        right_comparisons=tally.right,
        wrong_comparisons=len(tally.wrong),
        lost_connections=tally.lost,
        missed_deadlines=tally.late,
        other_errors=tally.other_errors,
        end_after_the_deadline_s=max(0.0, tally.latest),
    )
    assert tally.wrong == []
    assert tally.latest < LATE_SECONDS
    assert tally.whole >= count / 4
    # An episode may end before its fault: of a few, one is felt, be it as another error.
    assert tally.lost + tally.late + tally.other_errors > 0
    if count > len(FAULTS):
        assert tally.lost + tally.late > 0
