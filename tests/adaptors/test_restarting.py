"""Servers that are launched for the interfaces of other libraries, and ones that are lost."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import Restart
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumProxy, make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.testing import FaultProxy
from tests.environments import Echo
from tests.launch.processes import ECHO

RESTART = Restart(attempts=3, backoff=0.01)

Losing = Callable[[Any], FaultProxy]


def cart_pole(**settings: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("CartPole-v1", **settings)


@pytest.fixture
def losing() -> Iterator[Losing]:
    """Serves an environment behind a proxy, which resets connections."""
    with contextlib.ExitStack() as stack:

        def host(environment: Any) -> FaultProxy:
            server: Server = stack.enter_context(serve(environment))
            return stack.enter_context(FaultProxy(server.address))

        yield host


def test_gymnasium_make_launches() -> None:
    env = gymnasium.make(
        "dm_env_rpc_client.gymnasium:Remote-v0",
        address=f"process:{sys.executable} -m dm_env_rpc_client.server "
        "tests.environments:Echo unix:{socket}",
        create_world_settings={"length": 1},
    )
    with contextlib.closing(env):
        env.reset(seed=None)
        assert env.step(np.int64(7))[0] == 7


def test_a_vector_launches_one_server() -> None:
    envs = gymnasium.make_vec("dm_env_rpc_client.gymnasium:Remote-v0", num_envs=2, address=ECHO)
    with contextlib.closing(envs):
        envs.reset()
        assert envs.step(np.array([3, 4]))[0].tolist() == [3, 4]


def test_pettingzoo_launches() -> None:
    pytest.importorskip("pettingzoo")
    from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv

    address = "python:dm_env_rpc_client.server:Race"
    with contextlib.closing(RemoteParallelEnv(address, ["red", "blue"])) as env:
        observations, _ = env.reset()
        assert set(observations) == {"red", "blue"}


def test_a_lost_step_is_truncated(losing: Losing) -> None:
    proxy = losing(Echo)
    env = make_remote(proxy.address, restart=RESTART)
    with contextlib.closing(env):
        env.reset()
        assert env.step(np.int64(7))[4] == {"discount": 1.0}
        proxy.reset()
        observation, reward, terminated, truncated, info = env.step(np.int64(8))
        assert (observation, reward, terminated, truncated) == (7, 0.0, False, True)
        assert info == {"discount": 1.0, "restarted": True}
        assert env.reset() == (-1, {})
        assert env.step(np.int64(9))[0] == 9


def test_a_lost_step_of_a_gymnasium_environment(losing: Losing) -> None:
    proxy = losing(cart_pole)
    env = make_remote(proxy.address, render_mode="rgb_array", restart=RESTART)
    assert isinstance(env, GymnasiumProxy)
    with contextlib.closing(env):
        env.reset(seed=1)
        observation = env.step(0)[0]
        proxy.reset()
        last, reward, terminated, truncated, info = env.step(1)
        np.testing.assert_array_equal(last, observation)
        assert (reward, terminated, truncated, info) == (0.0, False, True, {"restarted": True})
        with pytest.raises(gymnasium.error.ResetNeeded):
            env.step(1)
        first, _ = env.reset(seed=1)
        np.testing.assert_array_equal(env.step(0)[0], observation)
        assert first.shape == (4,)
        assert env.environment.restarts == 1
        # The new world renders, too.
        assert env.render().shape[2] == 3


@pytest.mark.parametrize("served", [Echo, cart_pole])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
def test_a_lost_row_of_a_vector(losing: Losing, served: Any, mode: AutoresetMode) -> None:
    proxies = [losing(served) for _ in range(3)]
    envs = RemoteVectorEnv(
        [proxy.address for proxy in proxies], restart=RESTART, autoreset_mode=mode
    )
    with contextlib.closing(envs):
        envs.reset(seed=None if served is Echo else 3)
        actions = np.array([1, 0, 1])
        before = envs.step(actions)[0]
        proxies[1].reset()
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        assert terminated.tolist() == [False] * 3
        assert truncated.tolist() == [False, True, False]
        assert rewards.tolist() == [1.0, 0.0, 1.0]
        if mode is AutoresetMode.SAME_STEP:
            np.testing.assert_array_equal(infos["final_obs"][1], before[1])
            restarted = infos["final_info"]["restarted"]
            assert envs.restarts == 1
        else:
            np.testing.assert_array_equal(observations[1], before[1])
            restarted = infos["restarted"]
        assert restarted.tolist() == [False, True, False]
        _, _, _, truncated, infos = envs.step(actions)
        assert not truncated.any()
        assert "restarted" not in infos
        assert envs.restarts == 1


def test_a_lost_row_without_autoreset(losing: Losing) -> None:
    proxies = [losing(Echo) for _ in range(2)]
    envs = RemoteVectorEnv(
        [proxy.address for proxy in proxies],
        restart=RESTART,
        autoreset_mode=AutoresetMode.DISABLED,
    )
    with contextlib.closing(envs):
        envs.reset()
        envs.step(np.array([1, 2]))
        proxies[0].reset()
        assert envs.step(np.array([3, 4]))[3].tolist() == [True, False]
        with pytest.raises(gymnasium.error.ResetNeeded):
            envs.step(np.array([5, 6]))
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert observations.tolist() == [-1, 4]
        assert envs.step(np.array([7, 8]))[0].tolist() == [7, 8]
