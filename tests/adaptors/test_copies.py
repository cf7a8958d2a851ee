"""Copies and pickles of the environments of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import dm_env
import gymnasium
import numpy as np
import pytest

import dm_env_rpc_client
from dm_env_rpc_client import DmEnvAdaptor
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv, GymnasiumEnvironment
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Catch, serve
from tests.adaptors.gymnasium.known import REMOTE, cart_pole
from tests.adaptors.pettingzoo.arena import Arena
from tests.environment import test_made_again

WAYS = {name: way for name, way in test_made_again.WAYS.items() if name != "copy"}
"""A shallow copy of a wrapper of Gymnasium has the same environment."""


class Wrapper(dm_env.Environment):
    """What other projects put around an environment."""

    def __init__(self, environment: DmEnvAdaptor):
        self._environment = environment

    def reset(self, settings: Mapping[str, Any] = MappingProxyType({})) -> dm_env.TimeStep:
        return self._environment.reset(settings)

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._environment.step(action)

    def action_spec(self) -> Any:
        return self._environment.action_spec()

    def observation_spec(self) -> Any:
        return self._environment.observation_spec()

    def close(self) -> None:
        self._environment.close()


def wrapped(address: str) -> GymnasiumEnv:
    return GymnasiumEnv(Wrapper(dm_env_rpc_client.make(address)))


KINDS: dict[str, tuple[Callable[..., Any], Callable[[str], Any]]] = {
    "gymnasium": (cart_pole, lambda address: gymnasium.make(REMOTE, address=address)),
    "dm_env": (Catch, lambda address: gymnasium.make(REMOTE, address=address)),
    "wrapped": (Catch, wrapped),
    "vector": (cart_pole, lambda address: RemoteVectorEnv(address, 2, copy=False)),
    "vector of dm_env": (Catch, lambda address: RemoteVectorEnv(address, num_envs=2)),
}


def played(env: Any) -> list[Any]:
    env.action_space.seed(1)
    results = [env.reset(seed=3)[0]]
    return results + [env.step(env.action_space.sample())[:4] for _ in range(4)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_plays_on_its_own(kind: str, way: str) -> None:
    factory, remote = KINDS[kind]
    with serve(factory) as server:
        env = remote(server.address)
        env.reset(seed=3)
        worlds = server.stats().worlds
        other = WAYS[way](env)
        assert server.stats().worlds == 2 * worlds
        assert other.observation_space == env.observation_space
        assert getattr(other, "spec", None) == getattr(env, "spec", None)
        with pytest.raises(gymnasium.error.ResetNeeded):
            other.unwrapped.step(other.action_space.sample())
        expected = played(env)
        np.testing.assert_equal(played(other), expected)
        other.close()
        assert server.stats().worlds == worlds
        np.testing.assert_equal(played(env), expected)
        env.close()


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_parallel_env(way: str) -> None:
    with serve(Arena) as server:
        env = RemoteParallelEnv(server.address)
        observations, _ = env.reset(seed=1)
        other = WAYS[way](env)
        assert server.stats().worlds == 2
        assert other.possible_agents == env.possible_agents
        again, _ = other.reset(seed=1)
        np.testing.assert_equal(again, observations)
        other.step({agent: other.action_space(agent).sample() for agent in other.agents})
        other.close()
        env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        env.close()


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_a_copy_of_a_served_gymnasium_environment_steps(way: str) -> None:
    environment = WAYS[way](GymnasiumEnvironment(cart_pole()))
    environment.reset()
    assert environment.step(1).step_type is dm_env.StepType.MID


def test_a_space_that_is_replaced_is_used() -> None:
    with serve(cart_pole) as server:
        env = gymnasium.make(REMOTE, address=server.address, disable_env_checker=True).unwrapped
        env.reset(seed=1)
        env.action_space = gymnasium.spaces.Dict({"action": gymnasium.spaces.Discrete(2)})
        assert not env.step({"action": 1})[2]
        env.close()
