"""Environments with a mistake of their author, and clients that come upon it."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from dm_env import specs
from gymnasium import spaces

import dm_env_rpc_client
from dm_env_rpc_client import server
from tests.travelling.environments.of_dm_env import ENDLESS, Timed

serve: Any = server.serve  # Also what type checkers refuse.

OBSERVATION = {"counter": 1}
ARRAY = np.zeros(2, np.float32)


class Countdown(Timed):
    """Without a mistake."""

    def __init__(self) -> None:
        spec, action = specs.Array((), np.int64), specs.DiscreteArray(3)
        super().__init__(
            0, ENDLESS, {"counter": spec}, lambda env: OBSERVATION, {"subtract": action}
        )


class CountdownEnv(gymnasium.Env[Any, Any]):
    """The same for Gymnasium."""

    action_space: spaces.Space[Any] = spaces.Discrete(3)
    observation_space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return ARRAY, {}

    def step(self, action: Any) -> Any:
        return ARRAY, 0.0, False, False, {}


def returning(base: type, method: str, value: Any) -> type:
    """Returns a class of the name of its base, whose method returns a value."""
    return type(base.__name__, (base,), {method: lambda *_, **__: value})


def play(address: str) -> None:
    with dm_env_rpc_client.make(address) as env:
        env.reset()
        (name,) = env.action_spec()
        env.step({name: 1})


def play_rows(address: str) -> None:
    with dm_env_rpc_client.BatchedEnvironment(address, 2) as envs:
        envs.reset()
        (name,) = envs.action_spec()
        envs.step({name: np.ones(2, int)})


# What the texts say.
TRANSITION = "expected a dm_env.TimeStep: return dm_env.transition(reward, observation)"
RESTART = "expected a dm_env.TimeStep: return dm_env.restart(observation)"
GYMNASIUM = "expected a dm_env.TimeStep: this looks like Gymnasium's interface: inherit from gymn"
FIVE = "(observation, reward, terminated, truncated, info)"
OLD = "gym before 0.26"
INHERIT = "expected dm_env specs: inherit from gymnasium.Env"
