"""Servers that are launched for the interfaces of other libraries, and ones that are lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from dm_env_rpc_client import AgentsFailedError, ConnectionLostError, Restart, SpecError
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumProxy, make_remote
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.launch import Launch, from_python
from dm_env_rpc_client.recording import read
from dm_env_rpc_client.server import Race, Server, serve
from dm_env_rpc_client.testing import FaultProxy
from tests.adaptors.gymnasium.known import cart_pole
from tests.launch.processes import kill
from tests.support.environments import Echo
from tests.support.ports import HeldPort
from tests.support.stopwatch import patience

pytestmark = pytest.mark.filterwarnings("ignore::dm_env_rpc_client.RestartWarning")

RESTART = Restart(attempts=3, backoff=0.01)

Losing = Callable[[Any], FaultProxy]


@pytest.fixture
def losing() -> Iterator[Losing]:
    """Serves an environment behind a proxy, which resets connections."""
    with contextlib.ExitStack() as stack:

        def host(environment: Any) -> FaultProxy:
            server: Server = stack.enter_context(serve(environment))
            return stack.enter_context(FaultProxy(server.address))

        yield host


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


def test_rows_of_a_lost_batch_without_autoreset_begin_when_they_are_told(losing: Losing) -> None:
    proxy = losing(Echo)
    with contextlib.closing(
        RemoteVectorEnv(proxy.address, 2, restart=RESTART, autoreset_mode="Disabled")
    ) as envs:
        envs.reset()
        envs.step(np.array([1, 2]))
        proxy.reset()
        assert envs.step(np.array([3, 4]))[3].tolist() == [True, True]
        only = {"reset_mask": np.array([True, False])}
        assert envs.reset(options=only)[0][0] == -1
        with pytest.raises(gymnasium.error.ResetNeeded, match=r"environments \[1\]"):
            envs.step(np.array([5, 6]))
        only = {"reset_mask": np.array([False, True])}
        assert envs.reset(options=only)[0].tolist() == [-1, -1]
        assert envs.step(np.array([7, 8]))[0].tolist() == [7, 8]


PLAYERS = ["red", "blue"]


class Longer(Race):
    """A race with other bounds."""

    def __init__(self) -> None:
        super().__init__(length=9)


@contextlib.contextmanager
def remote_race(address: Any, **kwargs: Any) -> Iterator[Any]:
    from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv

    with contextlib.closing(RemoteParallelEnv(address, PLAYERS, **kwargs)) as env:
        yield env


def run(env: Any) -> Any:
    return env.step({agent: env.action_space(agent).sample() for agent in PLAYERS})


def assert_lost(before: Any, found: Any) -> None:
    observations, rewards, terminations, truncations, infos = found
    np.testing.assert_equal(observations, before)
    assert rewards == dict.fromkeys(PLAYERS, 0.0)
    assert terminations == dict.fromkeys(PLAYERS, False)
    assert truncations == dict.fromkeys(PLAYERS, True)
    assert infos == {agent: {"restarted": True} for agent in PLAYERS}


def test_a_lost_step_of_a_game_is_truncated_for_all_agents(losing: Losing, tmp_path: Path) -> None:
    proxy = losing(Race)
    path = tmp_path / "run.mcap"
    with remote_race(proxy.address, restart=RESTART, record=path) as env:
        space = env.observation_space("red")
        env.reset()
        before = run(env)[0]
        proxy.reset()
        assert_lost(before, run(env))
        assert (env.agents, env.restarts) == ([], 0)
        with pytest.raises(gymnasium.error.ResetNeeded):
            run(env)
        observations, infos = env.reset()
        assert set(observations) == set(infos) == set(env.agents) == set(PLAYERS)
        assert env.restarts == 1
        # Programs keep spaces.
        assert env.observation_space("red") is space
        assert not any(run(env)[3].values())
        proxy.reset()
        assert set(env.reset()[0]) == set(PLAYERS)
        assert env.restarts == 2
        assert not any(run(env)[3].values())
    # All worlds are in one file: each has a connection for control, and one for each agent.
    recording = read(path)
    assert recording.is_complete
    assert len(recording.connections) >= 3 * 3


def test_a_game_that_cannot_be_begun_again() -> None:
    # Nobody else gets the port when the server has stopped.
    with HeldPort() as port, serve(Race, port.address) as server:
        restart = Restart(attempts=2, backoff=0.01)
        with remote_race(server.address, restart=restart, timeout=patience(0.3)) as env:
            env.reset()
            server.stop(0.0)
            assert all(run(env)[3].values())
            for _ in range(2):
                with pytest.raises(ConnectionLostError, match="could not connect"):
                    env.reset()
        with pytest.raises(Exception, match="have left the world"):
            env.reset()


def test_a_game_with_other_spaces() -> None:
    references = [f"{__name__}:Longer", "dm_env_rpc_client.server:Race"]

    def launch() -> Launch:
        launches.append(from_python(references.pop()))
        return launches[-1]

    launches: list[Launch] = []
    with remote_race(launch, restart=RESTART) as env:
        env.reset()
        kill(launches[0])
        run(env)
        with pytest.raises(SpecError, match="different agents or spaces"):
            env.reset()
    assert not any(launch.is_running for launch in launches)


def test_a_game_without_restart_or_with_a_world_of_others(losing: Losing) -> None:
    proxy = losing(Race)
    with remote_race(proxy.address) as env:
        env.reset()
        proxy.reset()
        with pytest.raises(AgentsFailedError):
            run(env)
        assert env.restarts == 0
    with (
        pytest.raises(SpecError, match="'arena' is an existing world"),
        remote_race(proxy.address, world_name="arena", restart=RESTART),
    ):
        pass
