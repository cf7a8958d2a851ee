"""An environment's `step` gets an action of the types that its own space samples."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client import make
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.server import serve
from tests.adaptors.gymnasium.ways import WAYS, playing

SPACES: dict[str, spaces.Space[Any]] = {
    "Discrete": spaces.Discrete(3),
    "Discrete from -1": spaces.Discrete(3, start=-1),
    "Discrete int32": spaces.Discrete(3, dtype=np.int32),
    "Box": spaces.Box(-1, 1, (2,), np.float32),
    "Box without dimensions": spaces.Box(-1, 1, (), np.float32),
    "Box float16": spaces.Box(-1, 1, (2,), np.float16),
    "Box int16": spaces.Box(-3, 3, (2,), np.int16),
    "MultiBinary": spaces.MultiBinary(2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "Text": spaces.Text(3),
    "Dict": spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (), np.float64)),
    "Tuple": spaces.Tuple((spaces.Discrete(3), spaces.Dict(c=spaces.Discrete(2)))),
    "Sequence": spaces.Sequence(spaces.Discrete(3)),
    "OneOf": spaces.OneOf((spaces.Discrete(3), spaces.Box(-1, 1, (1,), np.float32))),
}


def kinds(value: Any) -> Any:
    """The types of a value and of its parts, with the dtypes and shapes of arrays."""
    if isinstance(value, dict):
        return {key: kinds(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(set(map(str, map(kinds, value))))
    if isinstance(value, np.ndarray):
        return np.ndarray, value.dtype, value.shape
    return type(value)


class Watching(gymnasium.Env[Any, Any]):
    """Tells the types of its actions as its reward: 1 where they are those of a sample."""

    def __init__(self, name: str):
        self.action_space = SPACES[name]
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Any]:
        expected = kinds(self.action_space.sample())
        if not isinstance(self.action_space, spaces.Sequence | spaces.OneOf):
            assert kinds(action) == expected, (kinds(action), expected)
        else:
            assert isinstance(action, tuple)
            assert all(isinstance(part, np.generic | np.ndarray) for part in action)
        assert self.action_space.contains(action)
        return np.zeros(1, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SPACES)
def test_actions_are_as_samples(name: str, way: str) -> None:
    if name == "Sequence" and way not in ("Remote-v0", "streams"):
        return  # Rows have one shape.
    if way == "make of a batch" and name not in ("Discrete", "Box", "Box without dimensions"):
        return  # What `make` sends for these are arrays.
    with playing(way, lambda: Watching(name)) as env:
        env.reset()
        for _ in range(3):
            assert env.step().reward == 1.0


def test_a_plain_client_sends_the_same() -> None:
    with serve(Watching) as server, make(server.address, {"name": "Discrete"}) as env:
        env.reset()
        assert env.step({"action": 2}).reward == 1.0


class Pair(ParallelEnv):
    """Two agents; each is rewarded where its action is as sampled."""

    metadata = {"name": "pair_v0"}  # noqa: RUF012
    possible_agents = ["a", "b"]  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return spaces.Discrete(5)

    def action_space(self, agent: str) -> Any:
        return SPACES["Discrete"]

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 1), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        rewards = {agent: float(type(action) is np.int64) for agent, action in actions.items()}
        no = dict.fromkeys(self.agents, False)
        return dict.fromkeys(self.agents, 1), rewards, no, no, {agent: {} for agent in self.agents}


def test_actions_of_agents_are_as_samples() -> None:
    with serve(Pair) as server:
        env = RemoteParallelEnv(server.address)
        env.reset()
        _, rewards, *_ = env.step({"a": 1, "b": np.int64(2)})
        env.close()
    assert rewards == {"a": 1.0, "b": 1.0}
