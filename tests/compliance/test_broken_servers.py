"""The suite notices what is broken, shared state too, and takes nothing else for it."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, Result, run, trial
from dm_env_rpc_client.server import Catch, Race, serve
from tests.compliance import breakage, playground
from tests.compliance.broken_servers import BROKEN
from tests.reliability.recording import Seen
from tests.support.stopwatch import patience
from tests.travelling.environments.of_dm_env import FIRST, LAST, MID, Step, Timed

SUBJECTS = (
    "a_step_changes_its_own_world_only",
    "worlds_are_independent",
    "rewards_and_discounts_are_numbers",
    "observations_without_bounds_are_numbers",
)
OPTIONS: dict[str, Any] = {"timeout": 60.0, "quiet_seconds": 0.05}

pytestmark = pytest.mark.row(30)


def results_of(address: str, options: Options) -> dict[str, Result]:
    checks = [check for check in CHECKS if check.name in SUBJECTS]
    return {result.name: result for result in run(address, options, checks)}


SPEC = {
    "seen": specs.Array((4,), np.float32, "seen"),
    "bits": specs.BoundedArray((64,), np.uint8, 0, 1, "bits"),
}
MOVE = {"move": specs.BoundedArray((), np.float32, -1.0, 1.0, "move")}


def script(length: int) -> list[Step]:
    """An episode whose rewards count its steps."""
    middle = ((MID, float(number), 1.0) for number in range(1, length))
    return [(FIRST, None, None), *middle, (LAST, float(length), 0.0)]


def shown(number: int) -> dict[str, Any]:
    return {"seen": np.full(4, number, np.float32), "bits": np.full(64, number % 2, np.uint8)}


def counted() -> Timed:
    """Nine steps that are counted."""
    return Timed(0, script(9), SPEC, lambda env: shown(env.steps), MOVE)


def limitless() -> Timed:
    """Has a wall at infinity."""
    wall = np.array([0, np.inf, -np.inf, 1], np.float32)
    return Timed(0, script(9), SPEC, lambda env: {**shown(env.steps), "seen": wall}, MOVE)


def drawn() -> Timed:
    """A world draws a coin when it is made, and shows nothing else."""
    coin = int(np.random.default_rng().integers(0, 2))
    endless: list[Step] = [(FIRST, None, None), (MID, 0.0, 1.0)]
    return Timed(0, endless, SPEC, lambda _: shown(coin), MOVE)


class Random(Timed):
    """Everything is random; with a seed, each world repeats itself."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = np.random.default_rng(seed)
        super().__init__(0, (), SPEC, self._drawn, MOVE)

    def reset(self) -> dm_env.TimeStep:
        rewards = self._random.random(self._random.geometric(0.2))
        middle = ((MID, reward, 1.0) for reward in rewards[1:])
        self._script = [(FIRST, None, None), *middle, (LAST, rewards[0], 0.0)]
        return super().reset()

    def _drawn(self, _: Any) -> dict[str, Any]:
        bits = self._random.integers(0, 2, 64).astype(np.uint8)
        return {"seen": self._random.random(4, np.float32), "bits": bits}


class RealTime(Timed):
    """Its steps wait for a tick, and show how many there were since the sequence began."""

    tick, length = 0.004, 40

    def __init__(self) -> None:
        super().__init__(0, script(self.length), SPEC, lambda env: shown(env.steps), MOVE)

    def reset(self) -> dm_env.TimeStep:
        self._began = time.monotonic()
        return super().reset()

    def ticks(self) -> int:
        return int((time.monotonic() - self._began) / self.tick)

    def step(self, action: Any) -> dm_env.TimeStep:
        due = self._began + (self.ticks() + 1) * self.tick
        time.sleep(max(0.0, due - time.monotonic()))  # A device that has its own clock.
        self.steps = min(self.ticks(), self.length) - 1
        return super().step(action)


PASSED, SKIPPED = Outcome.PASSED, Outcome.SKIPPED
EITHER = (PASSED, SKIPPED)

GOOD: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[Outcome, ...]]] = {
    "counted steps": (counted, {}, (PASSED,)),
    # In one of sixty runs the ends of all sequences agree by chance, which looks repeated.
    "unseeded": (Random, {}, EITHER),
    "a coin for each world": (drawn, {}, (SKIPPED,)),
    "seeded": (Random, {"create_settings": {"seed": 3}}, (PASSED,)),
    "in real time": (RealTime, {}, EITHER),
    "infinite values": (limitless, {}, (PASSED,)),
    "catch": (Catch, {}, EITHER),
    "race of three": (Race, {"create_settings": {"players": 3}, "companions": 2}, EITHER),
    "a batch": (counted, {"create_settings": {"num_envs": 3}}, (PASSED,)),
}
"""A server that is right, how it is used, and the outcomes that are right for it."""


@pytest.mark.parametrize("name", GOOD)
def test_a_good_server_is_no_finding(name: str, seen: Seen) -> None:
    factory, how, outcomes = GOOD[name]
    with serve(factory) as server:
        results = results_of(server.address, Options(**OPTIONS, **how))
        assert server.errors == []
    seen(
        runs_on_good_servers=1,
        checks=sum(result.outcome is not SKIPPED for result in results.values()),
        false_alarms=sum(result.is_finding for result in results.values()),
    )
    assert list(results) == list(dict.fromkeys(c.name for c in CHECKS if c.name in SUBJECTS))
    assert [str(result) for result in results.values() if result.is_finding] == []
    told = results["a_step_changes_its_own_world_only"]
    assert told.outcome in outcomes, str(told)
    if told.outcome is SKIPPED:
        assert "so state shared with another world cannot be detected" in told.reason


@pytest.fixture
def one_environment() -> Iterator[Any]:
    environment = counted()
    with serve(lambda: environment) as server:
        yield server


def test_a_factory_that_returns_one_environment_is_a_finding(one_environment: Any) -> None:
    results = results_of(one_environment.address, Options(**OPTIONS))
    result = results["a_step_changes_its_own_world_only"]
    assert result.outcome is Outcome.FAILED
    assert "world alone" in result.expected
    assert results["worlds_are_independent"].reason.startswith("worlds share their state")


class LastElement(Timed):
    """Of all that it shows, the last of many elements counts the steps of all worlds."""

    taken = np.zeros(90, np.uint8)

    def __init__(self) -> None:
        spec = {"seen": specs.Array((90,), np.uint8, "seen")}
        super().__init__(0, script(9), spec, lambda _: {"seen": self.taken.copy()}, MOVE)

    def reset(self) -> dm_env.TimeStep:
        self.taken[-1] = 0
        return super().reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        self.taken[-1] += 1
        return super().step(action)


def test_every_element_of_an_observation_is_compared() -> None:
    checks = [check for check in CHECKS if check.name == SUBJECTS[0]]
    with serve(LastElement) as server:
        (result,) = run(server.address, Options(**OPTIONS), checks)
    assert result.outcome is Outcome.FAILED
    assert result.received.startswith("the observation 'seen': 97 bytes with the digest")


def test_a_reward_without_a_value_where_a_sequence_begins_is_no_finding() -> None:
    """A first step has no reward: "Reward and discount" is about the steps after it."""

    class BeginsWithNan(playground.Session):
        def observe(self, requested: set[int]) -> Any:
            observations = super().observe(requested)
            if playground.REWARD in requested and self.steps == 0:
                observations[playground.REWARD].floats.array[:] = [float("nan")]
            return observations

    with playground.serve(BeginsWithNan) as address:
        results = results_of(address, Options(**OPTIONS))
    assert results["rewards_and_discounts_are_numbers"].outcome is PASSED


GATE = (
    # An answer that any check can come across.
    "is terminated twice",
    # A request on whose answer other checks build.
    "answers a leave twice",
    # A request that has several checks.
    "destroys a world in use under agents who step on",
    # A stream that ends.
    "sends what is no message",
    # A rule with several checks.
    "rewards with nan",
    # One client at a time.
    "ends the stream where the world is taken",
)
"""The others are run whole with -m slow: each takes as long as the whole suite."""


def test_there_are_forty_or_more() -> None:
    assert len(BROKEN) >= 40
    assert {check for check, _ in BROKEN.values()} <= {check.name for check in CHECKS}
    assert set(GATE) <= set(BROKEN)


@pytest.mark.row(30)
@pytest.mark.parametrize(
    ("wrong", "is_whole"),
    [
        *((wrong, False) for wrong in BROKEN),
        *((wrong, True) for wrong in GATE),
        *(pytest.param(each, True, marks=pytest.mark.slow) for each in BROKEN if each not in GATE),
    ],
)
def test_a_broken_rule_is_one_finding(
    wrong: str, is_whole: bool, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, session_class = BROKEN[wrong]
    # Worlds that are left are of no account: nobody else uses this server.
    monkeypatch.setattr(trial, "_ANSWER_SECONDS", 0.2)
    # The check that is there for it comes first, which saves the time for the others.
    checks = CHECKS if is_whole else sorted(CHECKS, key=lambda check: check.name != expected)
    # Some do not answer, which takes the time; on a busy machine the others are slow to answer.
    options = dataclasses.replace(breakage.OPTIONS, timeout=patience(1.0))
    with playground.serve(session_class) as address:
        results = run(address, options, checks)
        findings = (result for result in results if result.is_finding)
        found = list(findings if is_whole else itertools.islice(findings, 1))
    if is_whole:
        seen(servers_with_one_cause=1, their_findings=len(found))
    else:
        seen(broken_servers=1, noticed=len(found))
    assert [result.name for result in found] == [expected], [str(result) for result in found]
    assert found[0].expected
    assert found[0].sent or found[0].received


def test_specs_that_make_no_sense_are_one_finding() -> None:
    _, session_class = BROKEN["has two variable dimensions"]
    names = ("at_most_one_dimension_is_variable", "each_action_can_be_sent_alone")
    checks = [check for check in CHECKS if check.name in names]
    with playground.serve(session_class) as address:
        found, skipped = run(address, breakage.OPTIONS, checks)
    assert (found.outcome, skipped.outcome) == (Outcome.FAILED, Outcome.SKIPPED)
    assert "more than one variable dimension" in skipped.reason
