"""Simulators served from a process of their own: the same, bit for bit, as in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError, make, recording
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.protocol.batches import STEP_TYPE, WORLD_AUTORESET_MODE, WORLD_FORM
from tests.adaptors.gymnasium.known import REMOTE
from tests.adaptors.sameness import same
from tests.simulators import factories, kinds
from tests.simulators.kinds import Returned, Single, episodes, served
from tests.support.programs import run_python

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

    kind: Any
    address: str


@pytest.fixture(scope="module", params=kinds.ROWS)
def rows(request: pytest.FixtureRequest) -> Iterator[Served]:
    kind = kinds.ROWS[request.param]
    pytest.importorskip(kind.needs)
    with served(kind.factory, "--autoreset-mode", kind.mode) as address:
        yield Served(kind, address)


@pytest.fixture(scope="module", params=kinds.SINGLES)
def single(request: pytest.FixtureRequest) -> Iterator[Served]:
    kind = kinds.SINGLES[request.param]
    pytest.importorskip(kind.needs)
    with served(kind.factory) as address:
        yield Served(kind, address)


def flat(action: Any) -> dict[str, Any]:
    """An action as dm_env's clients send it."""
    if isinstance(action, tuple):
        return {str(index): part for index, part in enumerate(action)}
    return {"action": action}


def observed(observation: Any) -> dict[str, Any]:
    """An observation as dm_env's clients receive it."""
    if isinstance(observation, tuple):
        return {str(index): part for index, part in enumerate(observation)}
    return observation if isinstance(observation, dict) else {"observation": observation}


def check_timestep(timestep: dm_env.TimeStep, expected: Returned, begins: bool) -> None:
    parts = dict(timestep.observation)
    kind = parts.pop(STEP_TYPE, timestep.step_type)
    assert same(parts, observed(expected.observation))
    if begins:
        assert (np.asarray(kind) == 0).all()
        return
    np.testing.assert_array_equal(timestep.reward, expected.reward)
    np.testing.assert_array_equal(timestep.discount, 1.0 - expected.terminated)
    np.testing.assert_array_equal(kind == 2, expected.terminated | expected.truncated)


def test_make_vec_returns_the_same(rows: Served) -> None:
    actions, results = episodes(rows.kind.factory, STEPS)
    ends = 0
    envs = gymnasium.make_vec(REMOTE, factories.ROWS, address=rows.address)
    with envs:  # type: ignore[attr-defined]  # It is a RemoteVectorEnv.
        assert envs.metadata["autoreset_mode"] is AutoresetMode[rows.kind.mode]
        for number, (action, expected) in enumerate(zip(actions, results, strict=True)):
            if action is None:
                observation, infos = envs.reset(seed=None if number else factories.SEED)
                got = Returned(observation, infos=infos)
            else:
                got = Returned(*envs.step(action))
                ends += int((got.terminated | got.truncated).sum())
            assert same(tuple(got), tuple(expected)), (number, got, expected)
    assert ends >= 20


@pytest.mark.parametrize("way", ["make", "BatchedEnvironment"])
def test_timesteps_are_the_same(rows: Served, way: str) -> None:
    actions, results = episodes(rows.kind.factory, STEPS)
    with make(rows.address) if way == "make" else BatchedEnvironment(rows.address) as env:
        for number, (action, expected) in enumerate(zip(actions, results, strict=True)):
            if action is None:
                timestep = env.reset() if number else env.reset({"seed": factories.SEED})
            else:
                timestep = env.step(flat(action))
            check_timestep(timestep, expected, action is None)
        if way == "make":
            form = PropertiesExtension(env.connection)[WORLD_FORM]  # type: ignore[union-attr]
            assert form == f"{rows.kind.form}, {rows.kind.mode}"


@pytest.mark.parametrize("mode", AutoresetMode)
@pytest.mark.parametrize("factory", ["gymnax_cart_pole", "brax_pendulum"])
def test_no_action_is_changed_in_any_mode(factory: str, mode: AutoresetMode) -> None:
    kind = kinds.ROWS[factory]
    pytest.importorskip(kind.needs)
    actions, results = episodes(factory, 100)
    with served(factory, "--autoreset-mode", mode.name) as address, make(address) as env:
        assert PropertiesExtension(env.connection)[WORLD_AUTORESET_MODE] == mode.name
        env.reset({"seed": factories.SEED})
        firsts = 0
        for action, expected in zip(actions[1:], results[1:], strict=True):
            timestep = env.step(flat(action))
            parts = dict(timestep.observation)
            is_first = parts.pop(STEP_TYPE) == 0
            assert same(parts, observed(expected.observation))
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


class OneInProcess:
    """A single environment in this process, whose results are dm_env's."""

    def __init__(self, kind: Single, seed: int):
        self._env = getattr(factories, kind.factory)(seed)
        self._is_dm_env = isinstance(self._env, dm_env.Environment)
        own = self._env.action_spec() if self._is_dm_env else self._env.action_space
        self._action = own

    def sampled(self, random: np.random.Generator) -> Any:
        if self._is_dm_env:
            return np.int32(random.integers(self._action.num_values))
        return kinds.sampled(self._action, random)

    def reset(self) -> Returned:
        if self._is_dm_env:
            return Returned(kinds.plain(self._env.reset().observation), infos={})
        observation, infos = kinds.plain(self._env.reset(seed=None))
        return Returned(_scalars(observation), infos=infos)

    def step(self, action: Any) -> Returned:
        if self._is_dm_env:
            step = self._env.step(action)
            terminated = bool(step.last()) and float(step.discount) == 0
            truncated = bool(step.last()) and not terminated
            observation, reward = kinds.plain(step.observation), float(step.reward)
            return Returned(observation, reward, terminated, truncated, {})
        observation, reward, *others = kinds.plain(self._env.step(action))
        reward = reward[0] if isinstance(reward, list) else reward
        return Returned(_scalars(observation), reward, *others)


def _scalars(observation: Any) -> Any:
    """The spaces of Jumanji's Gymnasium wrapper have int64 for its int32."""
    if isinstance(observation, list):
        return tuple(observation)
    return {
        name: part.astype(np.int64) if part.dtype == np.int32 else part
        for name, part in observation.items()
    }


def check_one(timestep: dm_env.TimeStep, expected: Returned) -> None:
    got = {name: np.asarray(part) for name, part in timestep.observation.items()}
    assert same(got, observed(expected.observation))
    if expected.reward is not None:
        assert timestep.reward == expected.reward
        assert timestep.discount == 1.0 - expected.terminated
        assert timestep.last() == (expected.terminated or expected.truncated)


def test_single_environments_are_the_same_through_make(single: Served) -> None:
    own = OneInProcess(single.kind, factories.SEED)
    random = np.random.default_rng(3)
    with make(single.address) as env:
        check_one(env.reset(), own.reset())
        ended = False
        for _ in range(STEPS):
            action = own.sampled(random)
            timestep = env.step(flat(action))
            expected = own.reset() if ended else own.step(action)
            assert timestep.first() == ended
            check_one(timestep, expected)
            ended = timestep.last()


def test_rows_of_single_environments_are_the_same(single: Served) -> None:
    seeds = [3, 4, 5]
    owns = [OneInProcess(single.kind, seed) for seed in seeds]
    random = np.random.default_rng(3)
    with BatchedEnvironment(single.address, 3, [{"seed": seed} for seed in seeds]) as env:
        timestep = env.reset()
        expected = [own.reset() for own in owns]
        for number in range(STEPS):
            for row in range(3):
                one = dm_env.TimeStep(
                    timestep.step_type[row], timestep.reward[row], timestep.discount[row],
                    {name: part[row] for name, part in timestep.observation.items()},
                )  # fmt: skip
                check_one(one, expected[row])
            actions = [own.sampled(random) for own in owns]
            ended = timestep.last()
            by_name = [flat(action) for action in actions]
            stacked = {name: np.stack([each[name] for each in by_name]) for name in by_name[0]}
            timestep = env.step(stacked)
            expected = [
                own.reset() if was_last else own.step(action)
                for own, action, was_last in zip(owns, actions, ended, strict=True)
            ]
            assert (timestep.first() == ended).all(), number


@pytest.mark.parametrize("factory", ["jumanji_gymnasium", "vmas_single"])
def test_gymnasium_environments_are_the_same(factory: str) -> None:
    kind = kinds.SINGLES[factory]
    pytest.importorskip(kind.needs)
    own = OneInProcess(kind, factories.SEED)
    random = np.random.default_rng(3)
    with served(factory) as address:
        env = gymnasium.make(REMOTE, address=address)
        expected = own.reset()
        assert same(env.reset(), (expected.observation, expected.infos))
        for _ in range(STEPS):
            action = own.sampled(random)
            expected = own.step(action)
            got = Returned(*env.step(action))
            assert same(tuple(got), tuple(expected)), (got, expected)
            if got.terminated or got.truncated:
                expected = own.reset()
                assert same(env.reset(), (expected.observation, expected.infos))
        env.close()


def test_the_check_passes(rows: Served) -> None:
    checked = run_python("-m", "dm_env_rpc_client", "check", rows.address, timeout=300)
    assert " 0 failed, " in checked.stdout


def test_the_check_of_single_environments_passes(single: Served) -> None:
    checked = run_python("-m", "dm_env_rpc_client", "check", single.address, timeout=300)
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


def _check_recording(address: str, path: Path) -> None:
    seen = _played(address, 100, record=path)
    with recording.replay(path) as server:
        again = _played(server.address, 100)
    for mine, expected in zip(again, seen, strict=True):
        assert same(tuple(mine), tuple(expected))
    assert recording.read(path).episodes


def test_a_recording_is_replayed(rows: Served, tmp_path: Path) -> None:
    _check_recording(rows.address, tmp_path / "run.mcap")


def test_a_recording_of_one_environment_is_replayed(single: Served, tmp_path: Path) -> None:
    _check_recording(single.address, tmp_path / "run.mcap")
