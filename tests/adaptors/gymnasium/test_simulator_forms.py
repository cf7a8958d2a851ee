"""Forms of batches in which simulators come: wrapped, of the older gym, with lists for agents."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers import OrderEnforcing, TransformAction

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcClientError,
    DmEnvRpcError,
    EnvironmentsFailedError,
    make,
)
from dm_env_rpc_client.adaptors.gymnasium import space_json
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.simulators import OfManiSkill
from tests.adaptors.sameness import same

ROWS = 3
OBSERVATION = spaces.Box(-9, 9, (2,), np.float32)
ACTION = spaces.Box(-1, 1, (2,), np.float32)


class Batch(gymnasium.Env[Any, Any]):
    """Rows whose observations are the sums of their actions."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012

    def __init__(self, num_envs: int = ROWS):
        self.num_envs = num_envs
        self.action_space = spaces.Box(-1, 1, (num_envs, 2), np.float32)
        self.observation_space = spaces.Box(-9, 9, (num_envs, 2), np.float32)
        self._state = np.zeros((num_envs, 2), np.float32)
        self.options: list[Any] = []

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.options.append(options)
        self._state[:] = 0
        return self._state.copy(), {}

    def step(self, action: Any) -> Any:
        self._state += action
        none = np.zeros(self.num_envs, bool)
        return self._state.copy(), self._state.sum(1), none, none, {}


class Declared(Batch):
    """Declares the spaces of one row, too, with names of its own."""

    single_action_space = spaces.Dict({"move": ACTION})
    single_observation_space = OBSERVATION

    def __init__(self, num_envs: int = ROWS):
        super().__init__(num_envs)
        self.action_space = spaces.Dict({"move": self.action_space})

    def step(self, action: Any) -> Any:
        return super().step(action["move"])


def doubled(env: Any) -> Any:
    space = spaces.Box(-2, 2, (ROWS, 2), np.float32)
    return TransformAction(env, lambda action: action / 2, space)


WRAPPED: dict[str, tuple[Any, Any]] = {
    "made by gymnasium.make": (lambda: OrderEnforcing(Batch()), ACTION),
    "with the spaces of one row": (
        lambda: OrderEnforcing(Declared()), Declared.single_action_space
    ),
    "with other actions": (
        lambda: OrderEnforcing(doubled(Batch())), spaces.Box(-2, 2, (2,), np.float32)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRAPPED)
def test_batches_in_wrappers_are_batches(name: str) -> None:
    factory, action_space = WRAPPED[name]
    with serve(factory) as server, RemoteVectorEnv(server.address) as envs:
        assert envs.num_envs == ROWS
        assert envs.single_action_space == action_space
        assert envs.single_observation_space == OBSERVATION
        envs.reset()
        action = envs.action_space.sample()
        own = factory()
        own.reset()
        assert same(envs.step(action)[0], own.step(action)[0])


def test_a_wrapper_that_removes_the_rows_makes_no_batch() -> None:
    class First(gymnasium.Wrapper[Any, Any, Any, Any]):
        """As ManiSkill's CPUGymWrapper."""

        def __init__(self, env: Any):
            super().__init__(env)
            self.action_space, self.observation_space = ACTION, OBSERVATION

        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return self.env.reset()[0][0], {}

        def step(self, action: Any) -> Any:
            returned: Any = self.env.step(action[np.newaxis])
            return returned[0][0], returned[1][0], False, False, {}

    with serve(lambda: First(Batch(1))) as server, make(server.address) as env:
        env.reset()
        step = env.step({"action": np.full(2, 0.5, np.float32)})
        assert step.reward == 1.0
        assert step.observation["observation"].tolist() == [0.5, 0.5]


class OfVmas:
    """A base class that makes others look like those of VMAS's package."""


OfVmas.__module__ = "vmas.simulator.environment.environment"


class Agents(gymnasium.Env[Any, Any], OfVmas):
    """As VMAS's `gymnasium_vec`: lists of each agent's, and its rows in `_num_envs`.

    Without `num_envs`, it is its `gymnasium`: one environment.
    """

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012
    unwrapped: Any = None

    def __init__(self, num_envs: int | None = None, agents: int = 1):
        rows = () if num_envs is None else (num_envs,)
        if num_envs is not None:
            self._num_envs = num_envs
            self.single_action_space = spaces.Tuple([ACTION] * agents)
            self.single_observation_space = spaces.Tuple([OBSERVATION] * agents)
        self._boxes = [spaces.Box(-9, 9, (*rows, 2), np.float32)] * agents
        self.action_space = self.observation_space = spaces.Tuple(self._boxes)
        self.unwrapped = object()

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return [np.zeros(box.shape, np.float32) for box in self._boxes], {}

    def step(self, action: Any) -> Any:
        rewards = [part.sum(-1) for part in action]
        none = np.zeros(rewards[0].shape, bool)
        if none.ndim == 0:
            return list(action), [float(reward) for reward in rewards], False, False, {}
        return list(action), rewards, none, none, {}


def test_lists_for_one_agent_are_taken() -> None:
    action = np.array([[0.5, 0.25], [0.5, 0.5], [1, 1]], np.float32)
    with serve(functools.partial(Agents, ROWS)) as server:
        with RemoteVectorEnv(server.address) as envs:
            envs.reset()
            observation, reward, *_ = envs.step((action,))
            assert same(observation, (action,))
            assert reward.tolist() == [0.75, 1.0, 2.0]
        with BatchedEnvironment(server.address) as env:
            env.reset()
            assert env.step({"0": action}).reward.tolist() == [0.75, 1.0, 2.0]
    with serve(Agents) as server, make(server.address) as one:
        one.reset()
        assert one.step({"0": action[0]}).reward == 0.75


@pytest.mark.parametrize("rows", [ROWS, None])
def test_lists_for_several_agents_are_refused(rows: int | None) -> None:
    text = "several agents" if rows else "a reward that is not a number: got a list"
    shape = (2,) if rows is None else (rows, 2)
    with serve(lambda: Agents(rows, 2)) as server, make(server.address) as env:
        env.reset()
        action = np.zeros(shape, np.float32)
        with pytest.raises(DmEnvRpcError, match=text):
            env.step({"0": action, "1": action})


class Objectives(gymnasium.Env[Any, Any]):
    """Returns a reward for each of two objectives, as MO-Gymnasium's environments do."""

    action_space = observation_space = spaces.Box(-1.0, 1.0, (2,), np.float64)
    reward_space = spaces.Box(-1.0, 1.0, (2,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2), {}

    def step(self, action: Any) -> Any:
        return action, action, False, False, {}


class ObjectivesOfRows(gymnasium.vector.SyncVectorEnv):
    """Has a reward for each row and objective, as MO-Gymnasium's MOSyncVectorEnv."""

    def __init__(self) -> None:
        super().__init__([Objectives] * ROWS)
        self.reward_space = Objectives.reward_space
        self._rewards: Any = np.zeros((ROWS, 2))


@pytest.mark.parametrize("environment", [Objectives, ObjectivesOfRows])
def test_rewards_of_several_objectives_are_refused_with_what_to_do(environment: Any) -> None:
    with serve(environment) as server:
        ways: list[Any] = [functools.partial(make, server.address)]
        if environment is Objectives:
            ways.append(functools.partial(BatchedEnvironment, server.address, 2))
        for way in ways:
            with way() as env:
                action = np.zeros(env.action_spec()["action"].shape)
                env.reset()
                text = r"several objectives, .*LinearReward"
                with pytest.raises(DmEnvRpcClientError, match=text) as caught:
                    env.step({"action": action})
                assert "agents" not in str(caught.value)


def of_gym(name: str, **members: Any) -> Any:
    """A space that looks like one of the package gym, which is not installed."""
    return type(name, (), {"__module__": f"gym.spaces.{name.lower()}", **members})()


SPACES: dict[str, tuple[Any, Any]] = {
    "Box": (
        of_gym(
            "Box", low=np.full(2, -1.5), high=np.array([1, np.inf]), shape=(2,),
            dtype=np.dtype(np.float64),
        ),
        spaces.Box(np.full(2, -1.5), np.array([1, np.inf]), dtype=np.float64),
    ),
    "Discrete": (of_gym("Discrete", n=np.int64(3)), spaces.Discrete(3)),
    "Discrete with a start": (of_gym("Discrete", n=3, start=2), spaces.Discrete(3, start=2)),
    "MultiBinary": (of_gym("MultiBinary", n=4), spaces.MultiBinary(4)),
    "MultiDiscrete": (
        of_gym("MultiDiscrete", nvec=np.array([2, 3])), spaces.MultiDiscrete([2, 3])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPACES)
def test_spaces_of_gym_keep_their_bounds(name: str) -> None:
    theirs, expected = SPACES[name]
    nested = of_gym("Tuple", spaces=[theirs, ACTION])
    notes: list[str] = []
    value = space_json.to_json(nested, "action_space", notes)
    assert space_json.from_json(value, "") == spaces.Tuple([expected, ACTION])
    assert not notes
    parts = {"a": theirs}
    named = of_gym("Dict", spaces=parts, __getitem__=lambda _, key: parts[key])
    assert space_json.of_gymnasium(named) == spaces.Dict({"a": expected})


class OfGym:
    """As Brax's VectorGymWrapper: gym's spaces, and its constructor has not been called."""

    num_envs = ROWS
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012
    action_space, observation_space = (
        of_gym(
            "Box", low=np.full((ROWS, 1), -3, np.float32), high=np.full((ROWS, 1), 3, np.float32),
            shape=(ROWS, 1), dtype=np.dtype(np.float32),
        )
        for _ in range(2)
    )  # fmt: skip
    ends: list[str] = []  # noqa: RUF012

    def seed(self, seed: int = 0) -> None:
        self.ends.append("seed")

    def reset(self) -> Any:
        return np.zeros((ROWS, 1), np.float32)

    def step(self, action: Any) -> Any:
        return action, action[:, 0], np.zeros(ROWS, np.float32), {}

    def close_extras(self) -> None:
        self.ends.append("close_extras")

    def close(self) -> None:
        if not self.closed:  # type: ignore[attr-defined]  # As in gym's base class.
            self.close_extras()


def test_batches_of_gym_are_served_and_closed() -> None:
    OfGym.ends.clear()
    with serve(OfGym) as server:
        with RemoteVectorEnv(server.address) as envs:
            assert envs.single_action_space == spaces.Box(-3, 3, (1,), np.float32)
            envs.reset(seed=1)
            action = envs.action_space.sample()
            assert same(envs.step(action)[0], action)
        assert not server.errors
    assert OfGym.ends == ["seed", "close_extras"]


def test_a_single_environment_of_gym_is_refused_by_name() -> None:
    class Old(gymnasium.Env[Any, Any]):
        action_space = ACTION
        observation_space = OBSERVATION

        def reset(self) -> Any:  # type: ignore[override]
            return np.zeros(2, np.float32)

    with (
        serve(Old) as server,
        make(server.address) as env,
        pytest.raises(DmEnvRpcError, match=r"reset of Old accepts no seed; .* gym before 0\.26"),
    ):
        env.reset()


def test_masks_are_indices_for_maniskill() -> None:
    class Theirs(Batch, OfManiSkill):
        pass

    own = Theirs()
    with serve(own) as server, RemoteVectorEnv(server.address) as envs:
        envs.reset(options={"level": 2})
        envs.reset(options={"reset_mask": np.array([True, False, True]), "level": 3})
    first, then = own.options
    assert first == {"level": 2}
    assert then["env_idx"].tolist() == [0, 2]
    assert (then["level"], len(then)) == (3, 2)


def test_a_mask_that_vmas_would_ignore_is_refused() -> None:
    class Theirs(Batch, OfVmas):
        pass

    with serve(Theirs) as server, RemoteVectorEnv(server.address) as envs:
        envs.reset()
        envs.reset(options={"reset_mask": np.ones(ROWS, bool)})
        with pytest.raises(EnvironmentsFailedError, match=r"Theirs .* cannot reset single rows"):
            envs.reset(options={"reset_mask": np.arange(ROWS) == 1})
        envs.reset()
