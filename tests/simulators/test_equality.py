"""Simulators served from a process of their own: the same, bit for bit, as in this process."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dm_env
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import DmEnvRpcError, make, recording
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol.batches import STEP_TYPE, WORLD_AUTORESET_MODE
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.batches import SEED, WAYS, check, episodes, named
from tests.adaptors.sameness import same
from tests.simulators import factories, kinds
from tests.simulators.kinds import served
from tests.support.programs import run_python
from tests.travelling.environments.habits import Habit
from tests.travelling.in_process import alone, sent
from tests.travelling.timed_in_process import timed_alone, timed_in_rows
from tests.travelling.told import difference
from tests.travelling.ways.dm_env_clients import play_batched, play_make
from tests.travelling.ways.gymnasium_clients import play_single

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    # These packages warn of one another.
    pytest.mark.filterwarnings("ignore"),
]

STEPS = 500


@dataclasses.dataclass
class Served:
    """A simulator, and the address of its server."""

    name: str
    address: str


@pytest.fixture(scope="module", params=kinds.ROWS)
def rows(request: pytest.FixtureRequest) -> Iterator[Served]:
    batch = kinds.ROWS[request.param]
    pytest.importorskip(batch.needs)
    with served(request.param, "--autoreset-mode", str(batch.mode)) as address:
        yield Served(request.param, address)


@pytest.fixture(scope="module", params=[*kinds.ROWS, *kinds.SINGLES])
def either(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a simulator that steps a batch, or one environment."""
    batch = kinds.ROWS.get(request.param)
    pytest.importorskip(batch.needs if batch else kinds.SINGLES[request.param])
    options = ["--autoreset-mode", str(batch.mode)] if batch else []
    with served(request.param, *options) as address:
        yield address


@functools.cache
def played(name: str, steps: int = STEPS) -> Any:
    return episodes(kinds.ROWS[name], steps)


@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_that_of_the_batch_in_this_process(rows: Served, way: str) -> None:
    check(kinds.ROWS[rows.name], way, rows.address, played(rows.name))


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("factory", ["gymnax_cart_pole", "brax_pendulum"])
def test_no_action_is_changed_in_any_mode(factory: str, mode: AutoresetMode) -> None:
    pytest.importorskip(kinds.ROWS[factory].needs)
    actions, results = played(factory, 100)
    with served(factory, "--autoreset-mode", mode.name) as address, make(address) as env:
        assert PropertiesExtension(env.connection)[WORLD_AUTORESET_MODE] == mode.name
        firsts = 0
        for action, expected in zip(actions, results, strict=True):
            if action is None:
                env.reset({"seed": SEED})
                continue
            timestep = env.step(named(action))
            parts = dict(timestep.observation)
            is_first = parts.pop(STEP_TYPE) == 0
            assert same(parts, named(expected.observation, "observation"))
            np.testing.assert_array_equal(timestep.reward, expected.reward)
            firsts += int(is_first.sum())
    assert (firsts > 0) == (mode is AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("factory", ["gymnax_cart_pole", "brax_pendulum", "vmas_rows"])
def test_a_mode_that_nobody_has_said_is_asked_for(factory: str) -> None:
    pytest.importorskip(kinds.ROWS[factory].needs)
    with (
        served(factory) as address,
        pytest.raises(DmEnvRpcError, match=r"has no 'autoreset_mode' .* Pass the mode to serve"),
    ):
        make(address)


def test_rewards_of_several_agents_are_refused_by_name() -> None:
    pytest.importorskip("vmas")
    with served("vmas_agents", "--autoreset-mode", "DISABLED") as address, make(address) as env:
        env.reset()
        action = np.zeros((factories.ROWS, 2), np.float32)
        with pytest.raises(DmEnvRpcError, match=r"several agents.* ParallelEnv of PettingZoo"):
            env.step({"0": action, "1": action})


def test_vmas_is_not_asked_to_reset_some_rows() -> None:
    pytest.importorskip("vmas")
    with served("vmas_rows", "--autoreset-mode", "DISABLED") as address, make(address) as env:
        env.reset()
        env.reset({"reset_mask": np.ones(factories.ROWS, bool)})
        with pytest.raises(DmEnvRpcError, match="cannot reset single rows"):
            env.reset({"reset_mask": np.arange(factories.ROWS) == 1})


def single(habit: str, row: int) -> Any:
    """Makes a simulator that steps one environment; rows differ."""
    return getattr(factories, habit)(seed=SEED + row)


PLAYS: dict[str, tuple[Any, Any]] = {
    "make": (play_make, lambda habit: [timed_alone(habit, 1)]),
    "BatchedEnvironment": (
        play_batched, lambda habit: timed_in_rows([timed_alone(habit, row) for row in (0, 1)]),
    ),
    "Remote-v0": (play_single, lambda habit: [sent(alone(habit, 1))]),
}  # fmt: skip
"""As in the table of `tests/travelling`."""


@pytest.mark.parametrize(
    ("factory", "way"),
    [
        *((factory, way) for factory in kinds.SINGLES for way in ("make", "BatchedEnvironment")),
        ("jumanji_gymnasium", "Remote-v0"),
    ],
)
def test_every_step_is_that_of_the_environment_in_this_process(factory: str, way: str) -> None:
    pytest.importorskip(kinds.SINGLES[factory])
    calls = "r" + "s" * 15
    play, expected = PLAYS[way]
    with serve(single) as server:
        found = play(server.address, factory, calls)
    habit = Habit(functools.partial(single, factory), calls=calls)
    for mine, other in zip(found, expected(habit), strict=True):
        assert not (text := difference(mine, other)), text


def test_the_check_passes(either: str) -> None:
    checked = run_python("-m", "dm_env_rpc_client", "check", either, timeout=300)
    assert " 0 failed, " in checked.stdout


def _played(address: str, count: int, **options: Any) -> list[dm_env.TimeStep]:
    random = np.random.default_rng(3)
    with make(address, **options) as env:
        steps = [env.reset()]
        for _ in range(count):
            spec = env.action_spec()
            action = {
                name: random.uniform(-1, 1, part.shape).astype(part.dtype)
                if part.dtype.kind == "f"
                else random.integers(0, 2, part.shape).astype(part.dtype)
                for name, part in spec.items()
            }
            steps.append(env.step(action))
    return steps


def test_a_recording_is_replayed(either: str, tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    seen = _played(either, 100, record=path)
    with recording.replay(path) as server:
        again = _played(server.address, 100)
    for mine, expected in zip(again, seen, strict=True):
        assert same(tuple(mine), tuple(expected))
    assert recording.read(path).episodes
