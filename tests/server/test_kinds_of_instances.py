"""Environments that exist already, of every library: one world at a time, in one thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import pytest
from google.rpc import code_pb2
from gymnasium import spaces
from pettingzoo import ParallelEnv

from dm_env_rpc_client import (
    DmEnvRpcError,
    connect,
    create_world,
    destroy_world,
    join_world,
    make,
)
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import serve
from tests.server.one_thread import STEP_SECONDS, Level, Threads
from tests.support.scripted import settles

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"


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


def lamps() -> Any:
    made = [Lamp() for _ in range(3)]
    envs = gymnasium.vector.SyncVectorEnv([lambda lamp=lamp: lamp for lamp in made])  # type: ignore[misc]
    for lamp in made:
        lamp.threads = Threads()
    return envs


def turns() -> Any:
    from pettingzoo import classic

    return classic.tictactoe_v3.env()


def play_level(address: str, **options: Any) -> None:
    with make(address, **options) as env:
        assert env.reset().first()
        assert env.step({"go": 1}).mid()
        assert PropertiesExtension(env.connection)["steps"] >= 1
        assert env.reset({"gain": 3}).first()
        assert env.step({}).reward == 3.0


def play_lamp(address: str, **options: Any) -> None:
    env = gymnasium.make(REMOTE, address=address, render_mode="rgb_array", **options)
    assert env.reset(seed=1, options={"a": 1}) == (1, {"options": {"a": 1}})
    assert env.step(1)[:4] == (1, 1.0, True, False)
    assert np.asarray(env.render()).shape == (2, 2, 3)
    env.close()
    with contextlib.closing(RemoteVectorEnv(address, 1, **options)) as envs:
        envs.reset()
        assert envs.call("watts") == (60,)


def play_lamps(address: str, **options: Any) -> None:
    for count in (None, 3):
        with contextlib.closing(RemoteVectorEnv(address, count, **options)) as envs:
            assert envs.reset(seed=4)[0].tolist() == [4, 5, 6]
            assert envs.step(np.array([0, 1, 1]))[2].tolist() == [False, True, True]


def play_duel(address: str, **options: Any) -> None:
    with contextlib.closing(RemoteParallelEnv(address, **options)) as env:
        env.reset()
        for _ in range(3):
            assert env.step({"left": 1, "right": 2})[0] == {"left": 1, "right": 2}


def play_turns(address: str, **options: Any) -> None:
    with contextlib.closing(RemoteParallelEnv(address, **options)) as env:
        assert set(env.reset()[0]) == {"player_1", "player_2"}


class Kind(NamedTuple):
    """An environment, how it is played, and what is said of two rows of it."""

    make: Callable[[], Any]
    play: Callable[..., None]
    name: str
    two_rows: str
    noted: Callable[[Any], list[Any]] = lambda own: [own]
    """What notes the threads."""
    called: tuple[str, ...] = ("reset", "step", "close")
    """What is called, all in one thread."""


ALONE = "'num_envs' is 2: this server hosts one.*pass a factory to"
GAME = "hosts a PettingZooGame, but a batch can contain"
KINDS: dict[str, Kind] = {
    "dm_env": Kind(
        Level, play_level, "Level", ALONE,
        called=("reset", "step", "close", "configure", "getter", "properties", "default_actions",
                "action_spec", "observation_spec"),
    ),
    "Gymnasium": Kind(Lamp, play_lamp, "Lamp", ALONE),
    "a vector": Kind(
        lamps, play_lamps, "SyncVectorEnv", "already has 3 rows", lambda own: list(own.envs)
    ),
    "PettingZoo": Kind(Duel, play_duel, "Duel", GAME),
    "taking turns": Kind(turns, play_turns, "raw_env", GAME, lambda own: []),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("transport", ["http2", "grpc"])
@pytest.mark.parametrize("name", KINDS)
def test_an_instance_has_one_world_at_a_time_and_one_thread(name: str, transport: Any) -> None:
    kind = KINDS[name]
    own = kind.make()
    noted = kind.noted(own)
    with serve(own, callable_names=["watts"], transport=transport) as server:
        for _ in range(2):
            kind.play(server.address, transport=transport)
        refused = server.stats().refusals
        with connect(server.address, transport=transport) as connected, connected.reopen() as other:
            name = create_world(connected)
            with pytest.raises(
                DmEnvRpcError, match=rf"an instance of {kind.name}.*pass a fac"
            ) as no:
                create_world(connected)
            assert no.value.code == code_pb2.FAILED_PRECONDITION
            assert (server.world_count, server.stats().refusals) == (1, refused + 1)
            if kind.two_rows is not GAME:
                with (
                    join_world(connected, name),
                    pytest.raises(DmEnvRpcError, match="only one at a time"),
                ):
                    join_world(other, name)
            destroy_world(connected, name)
        with pytest.raises(DmEnvRpcError, match=kind.two_rows):
            make(server.address, {"num_envs": 2}, transport=transport)
        kind.play(server.address, transport=transport)
        assert [each.threads.closed for each in noted] == [0] * len(noted)
        assert server.stop()
        assert server.errors == []
        assert server.stop()
    assert [each.threads.closed for each in noted] == [1] * len(noted)
    threads = {each.threads.the_one(*kind.called) for each in noted}
    assert len(threads) <= 1
    assert threading.get_ident() not in threads
    assert settles(lambda: not threads & {thread.ident for thread in threading.enumerate()})
