"""Environments of Gymnasium and PettingZoo that exist already, each in one thread."""

from __future__ import annotations

import contextlib
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client import (
    DmEnvRpcError,
    EnvironmentsFailedError,
    SpecError,
    connect,
    create_world,
    make,
)
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.server import serve
from tests.server.one_thread import STEP_SECONDS, Threads

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"


@pytest.fixture(params=["http2", "grpc"])
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


class Lamp(gymnasium.Env[Any, Any]):
    """A Gymnasium environment of one thread."""

    action_space = spaces.Discrete(2)
    observation_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(self) -> None:
        self.threads = Threads()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.threads.note("reset")
        return seed or 0, {"options": options}

    def step(self, action: Any) -> Any:
        self.threads.note("step")
        return action, 1.0, bool(action), False, {}

    def render(self) -> Any:
        self.threads.note("render")
        return np.zeros((2, 2, 3), np.uint8)

    def watts(self) -> int:
        self.threads.note("watts")
        return 60

    def close(self) -> None:
        self.threads.note("close")
        self.threads.closed += 1


def test_gymnasium(transport: Any) -> None:
    lamp = Lamp()
    with serve(lamp, callable_names=["watts"], transport=transport) as server:
        options: dict[str, Any] = {"transport": transport, "render_mode": "rgb_array"}
        env = gymnasium.make(REMOTE, address=server.address, **options)
        assert env.reset(seed=1, options={"a": 1}) == (1, {"options": {"a": 1}})
        assert env.step(1)[:4] == (1, 1.0, True, False)
        assert np.asarray(env.render()).shape == (2, 2, 3)
        env.close()
        envs = RemoteVectorEnv(server.address, 1, transport=transport)
        envs.reset()
        assert envs.call("watts") == (60,)
        envs.close()
        with make(server.address, {"num_envs": 1}, transport=transport) as batch:
            batch.reset()
            batch.step({"action": np.zeros(1, int)})
        with pytest.raises(EnvironmentsFailedError, match="pass a factory to"):
            RemoteVectorEnv(server.address, 2, transport=transport)
        assert lamp.threads.closed == 0
        assert server.stop()
        assert server.errors == []
    assert lamp.threads.closed == 1
    lamp.threads.the_one("reset", "step", "render", "watts", "close")


def test_what_gymnasium_makes() -> None:
    local, served = gymnasium.make("CartPole-v1"), gymnasium.make("CartPole-v1")
    with serve(served) as server:
        env = gymnasium.make(REMOTE, address=server.address)
        np.testing.assert_array_equal(env.reset(seed=7)[0], local.reset(seed=7)[0])
        for action in (1, 0, 1, 1):
            np.testing.assert_array_equal(env.step(action)[0], local.step(action)[0])
        env.close()
        with pytest.raises(SpecError, match="instance of CartPoleEnv already exists in this"):
            serve(served, processes=2)


def test_a_vector_environment_is_a_batch() -> None:
    lamps = [Lamp() for _ in range(3)]
    envs = gymnasium.vector.SyncVectorEnv([lambda lamp=lamp: lamp for lamp in lamps])  # type: ignore[misc]
    for lamp in lamps:
        lamp.threads = Threads()
    with serve(envs) as server:
        for count in (None, 3):
            remote = RemoteVectorEnv(server.address, count)
            assert remote.reset(seed=4)[0].tolist() == [4, 5, 6]
            assert remote.step(np.array([0, 1, 1]))[2].tolist() == [False, True, True]
            remote.close()
        with pytest.raises(EnvironmentsFailedError, match="already has 3 rows"):
            RemoteVectorEnv(server.address, 2)
        with connect(server.address) as connected:
            create_world(connected)
            with pytest.raises(DmEnvRpcError, match="an instance of SyncVectorEnv"):
                create_world(connected)
        assert [lamp.threads.closed for lamp in lamps] == [0, 0, 0]
    assert [lamp.threads.closed for lamp in lamps] == [1, 1, 1]
    assert len({lamp.threads.the_one("reset", "step", "close") for lamp in lamps}) == 1


class Duel(ParallelEnv):
    """A PettingZoo environment of one thread."""

    metadata: ClassVar[dict[str, Any]] = {"name": "duel_v0"}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = ["left", "right"]
        self.agents: list[str] = []
        self.threads = Threads()

    def observation_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    action_space = observation_space

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.threads.note("reset")
        self.agents = list(self.possible_agents)
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        self.threads.note("step")
        time.sleep(STEP_SECONDS)  # It takes time to step.
        no = dict.fromkeys(actions, False)
        return dict(actions), dict.fromkeys(actions, 1.0), no, no, {agent: {} for agent in actions}

    def close(self) -> None:
        self.threads.note("close")
        self.threads.closed += 1


def test_pettingzoo(transport: Any) -> None:
    duel = Duel()
    with serve(duel, transport=transport) as server:
        for _ in range(2):
            with contextlib.closing(RemoteParallelEnv(server.address, transport=transport)) as env:
                env.reset()
                for _ in range(3):
                    assert env.step({"left": 1, "right": 2})[0] == {"left": 1, "right": 2}
                with pytest.raises(DmEnvRpcError, match="an instance of Duel"):
                    make(server.address, transport=transport)
        assert duel.threads.closed == 0
        with pytest.raises(DmEnvRpcError, match="hosts a PettingZooGame, but a batch can contain"):
            make(server.address, {"num_envs": 2})
        assert server.stop()
        assert server.errors == []
    assert duel.threads.closed == 1
    duel.threads.the_one("reset", "step", "close")


@pytest.mark.filterwarnings("ignore")
def test_agents_that_take_turns() -> None:
    from pettingzoo import classic

    with serve(classic.tictactoe_v3.env()) as server:
        for _ in range(2):
            with contextlib.closing(RemoteParallelEnv(server.address)) as env:
                observations, _ = env.reset()
                assert set(observations) == {"player_1", "player_2"}
        assert server.stop()
        assert server.errors == []
