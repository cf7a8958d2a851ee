"""Row 55: rollouts whose values fail; see `tests/reliability/processes/test_failing_values.py`."""

from __future__ import annotations

import collections
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import DmEnvRpcClientError, make
from dm_env_rpc_client.distributed import (
    Batch,
    LocalRollouts,
    RemoteEnvironments,
    Rollouts,
)
from dm_env_rpc_client.server import serve
from tests.distributed.failing import STEPS, Obeying, Orders, observed, told
from tests.reliability.processes.failing_values import ERRORS, PLACES, Answer, Told
from tests.reliability.recording import Seen
from tests.reliability.scorecard import counts

pytestmark = pytest.mark.row(55)

ACTORS, EACH = 2, 2
TOTAL = ACTORS * EACH

OF_VALUES = ("raised", "converted", "checked")
"""Places in environments whose infos nobody wants."""


class Model:
    """Collects batches, some of which fail, and checks that every answer is that to its action.

    Args:
      rollouts: collect the batches.
      seed: of what fails.
      errors: further errors of batches that fail.

    Attributes:
      steps: the steps of all batches.
      failures: how often a batch failed, by the place and the error that it was told.
      wrong: the answers that were those to other actions.
    """

    def __init__(self, rollouts: Rollouts, seed: int, errors: Sequence[type[BaseException]] = ()):
        self._rollouts = rollouts
        self._errors: tuple[type[BaseException], ...] = (DmEnvRpcClientError, *ERRORS, *errors)
        self._random = random.Random(seed)
        self._ticket = 0
        self.steps = self.answers = 0
        self.failures: collections.Counter[tuple[str, int]] = collections.Counter()
        self.wrong: list[Any] = []

    def choice(self, places: list[tuple[str, int]]) -> tuple[str, int]:
        """One of the given places and errors."""
        return self._random.choice(places)

    def collect(self, place: str, kind: int) -> None:
        """Collects a batch in which something fails."""
        self.steps += STEPS
        codes = np.zeros((STEPS, TOTAL), np.int64)
        if place in PLACES:
            row = self._random.randrange(TOTAL)
            codes[self._random.randrange(STEPS), row] = PLACES.index(place) * len(ERRORS) + kind
        self._rollouts.update(Orders(self._ticket, codes, place, kind))
        first, self._ticket = self._ticket, self._ticket + STEPS * TOTAL
        try:
            batch = self._rollouts.collect(STEPS)
        except self._errors:
            self.failures[place, kind] += 1
        else:
            self._check(batch, first)

    def _check(self, batch: Batch, first: int) -> None:
        kinds, observations = batch.timesteps.step_type, observed(batch.timesteps)
        actions = batch.actions["action"] if isinstance(batch.actions, Mapping) else batch.actions
        for row in range(TOTAL):
            for step in range(STEPS):
                self.answers += 1
                before, after = (
                    Answer(*map(int, observations[at, row])) for at in (step, step + 1)
                )
                expected = first + step * TOTAL + row
                self._expect(int(actions[step, row, 0]), expected)
                self._expect((after.row, after.life, after.ticket), (row, before.life, expected))
                self._expect((after.step, int(kinds[step + 1, row])), (before.step + 1, 1))
                self._expect(float(batch.timesteps.reward[step + 1, row]), float(expected))

    def _expect(self, found: Any, expected: Any) -> None:
        if found != expected:
            self.wrong.append((self.steps, found, expected))


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    """Nothing is logged: many errors are expected."""
    logger = logging.getLogger("dm_env_rpc_client")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)


def run(model: Model, wanted: dict[tuple[str, int], int], seen: Seen) -> None:
    """Collects until each place has failed as often as it has to."""
    while left := [each for each, most in wanted.items() if model.failures[each] < most]:
        model.collect(*model.choice(left))
        model.collect("", 0)
    by_place = {
        f"{place}_{ERRORS[kind].__name__}": n for (place, kind), n in model.failures.items()
    }
    seen(steps=model.steps, answers=model.answers, wrong=len(model.wrong), **by_place)
    assert model.wrong == []
    # Where nothing was told to fail, nothing has.
    assert set(model.failures) == set(wanted)


@counts(3, 1000)
def test_row_55_no_answer_of_local_rollouts_is_that_to_another_step(count: int, seen: Seen) -> None:
    places = (*OF_VALUES, "policy")
    wanted = {(place, kind): count for place in places for kind in range(len(ERRORS))}
    with LocalRollouts(told, Obeying(), ACTORS, EACH) as rollouts:
        run(Model(rollouts, count), wanted, seen)


@pytest.mark.parametrize("is_batched", [False, True])
@counts(3, 1000)
def test_row_55_no_answer_of_remote_rollouts_is_that_to_another_step(
    count: int, is_batched: bool, seen: Seen
) -> None:
    # A KeyboardInterrupt at the server ends a stream, and these rollouts open no other.
    wanted = {(place, 0): count for place in OF_VALUES} | {("policy", k): count for k in (0, 1)}
    with serve(Told) as server:
        address = server.address

        def one(index: int) -> dm_env.Environment:
            return make(address, {"index": index})

        together = RemoteEnvironments(address, lambda index: {"index": index})
        made = together if is_batched else one
        with LocalRollouts(made, Obeying(), ACTORS, EACH) as rollouts:
            run(Model(rollouts, count), wanted, seen)
