"""The same environments, by the VecEnv of Stable-Baselines3: as each is alone, in SAME_STEP."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.reliability.recording import Seen
from tests.travelling.environments.all import GYMNASIUM
from tests.travelling.environments.usual import Habit
from tests.travelling.in_process import (
    OPTIONS,
    ROWS,
    alone,
    in_same_step,
    in_vectors,
    rows_of_observations,
    seed_of,
    sent,
)
from tests.travelling.told import Call, Event, Opened, Tale, Told, difference, kept
from tests.travelling.ways.all import IN_SAME_STEP
from tests.travelling.ways.gymnasium_clients import (
    actions_of_rows,
    first_failure,
    rows_of_failure,
)
from tests.travelling.ways.places import Places

pytest.importorskip("stable_baselines3")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from dm_env_rpc_client.adaptors.sb3 import RemoteSb3VecEnv

pytestmark = pytest.mark.row(61)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    logging.getLogger("dm_env_rpc_client").setLevel(logging.CRITICAL)
    with contextlib.ExitStack() as stack:
        yield Places(stack, tmp_path_factory.mktemp("recordings"))
    logging.getLogger("dm_env_rpc_client").setLevel(logging.NOTSET)


def expected(habit: Habit) -> list[Tale]:
    """What DummyVecEnv tells: float32 as rewards, and one flag beside that of a time limit."""
    rows = [sent(alone(habit, row)) for row in ROWS]
    tales = in_same_step(in_vectors(rows, has_own_infos=True), rows, habit.calls)
    return [[_as_vec_env(event) for event in tale] for tale in tales]


def _as_vec_env(event: Event) -> Event:
    if not isinstance(event, Told) or event.reward is None:
        return event
    is_over = bool(event.terminated or event.truncated)
    is_truncated = bool(event.truncated and not event.terminated)
    return event._replace(
        reward=float(np.float32(event.reward)), terminated=is_over, truncated=is_truncated
    )


def play(address: str, habit: str, calls: Sequence[Call]) -> list[Tale]:
    try:
        envs = RemoteSb3VecEnv(address, len(ROWS), lambda row: {"habit": habit, "row": row})
    except Exception as error:
        return [[first_failure(error)] for _ in ROWS]
    with contextlib.closing(envs):
        own = envs._envs
        opened = Opened(own.action_space, own.single_observation_space)
        tales: list[Tale] = [[opened] for _ in ROWS]
        begun: list[Event] | None = None
        for position, call in enumerate(calls):
            try:
                if call == "r" and begun is not None:
                    events, begun = begun, None
                else:
                    events, begun = _called(envs, call, position)
            except Exception as error:
                events, begun = rows_of_failure(error), None
            for tale, event in zip(tales, events, strict=True):
                tale.append(event)
        return tales


def _called(envs: Any, call: Call, position: int) -> tuple[list[Event], list[Event] | None]:
    """Returns what the rows are told, and what began in the same step."""
    space = envs.observation_space
    if call == "R":
        envs.seed(seed_of(0))
        envs.set_options(dict(OPTIONS))
        seen = rows_of_observations(space, kept(envs.reset()))
        return [*map(Told, seen, kept(envs.reset_infos))], None
    actions = actions_of_rows(envs.action_space, position)
    observations, rewards, dones, infos = kept(envs.step(actions))
    assert rewards.dtype == np.float32
    seen = rows_of_observations(space, observations)
    limits = [info.pop("TimeLimit.truncated") for info in infos]
    begun: list[Event] | None = None
    if dones.all():
        begun = [*map(Told, seen, kept(envs.reset_infos))]
        seen = [info.pop("terminal_observation") for info in infos]
    if call == "r":
        return [*map(Told, seen, infos)], None
    flags = zip(map(bool, dones), limits, strict=True)
    return [
        Told(observation, info, float(reward), *ends)
        for observation, info, reward, ends in zip(seen, infos, rewards, flags, strict=True)
    ], begun


@pytest.mark.parametrize("habit", IN_SAME_STEP)
def test_the_same_as_alone(places: Places, seen: Seen, habit: str) -> None:
    found = play(places.own, habit, GYMNASIUM[habit].calls)
    for row, (mine, other) in enumerate(zip(found, expected(GYMNASIUM[habit]), strict=True)):
        assert not (text := difference(mine, other)), f"row {row}: {text}"
    seen(cells=1)
