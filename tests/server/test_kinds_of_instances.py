"""Environments that exist already, and those of one thread: one world at a time, closed once."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from google.rpc import code_pb2
from gymnasium import spaces

from dm_env_rpc_client import (
    BatchedEnvironment,
    DmEnvRpcError,
    EnvironmentsFailedError,
    SpecError,
    connect,
    create_and_join_world,
    create_world,
    destroy_world,
    join_world,
    make,
    reset_world,
)
from dm_env_rpc_client.adaptors.pettingzoo import RemoteParallelEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Race, serve
from tests.server.hosted import Where
from tests.server.one_thread import STEP_SECONDS, Level, Threads
from tests.support.scripted import settles
from tests.travelling.environments.of_agents import Agents

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


class Duel(Agents):
    """A PettingZoo environment of one thread."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = Threads()

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.threads.note("reset")
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        self.threads.note("step")
        time.sleep(STEP_SECONDS)  # It takes time to step.
        return super().step(actions)

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
            assert env.step({"a": 1, "b": 2})[0].keys() == {"a", "b"}


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


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": 3}, "setting 'size'.*an instance of Level.*takes 'gain'.*pass a factory to"),
        ({"size.x": 3}, "setting 'size'"),
        ({"num_envs": 2}, "setting 'num_envs' is 2: this server hosts one.*pass a factory to"),
        ({"num_envs": 1, "rows.size": [3]}, "setting 'size'"),
        ({"num_envs": 0}, "a batch has 1 to"),
    ],
)
def test_settings_of_a_world_are_refused(settings: dict[str, Any], text: str) -> None:
    level = Level()
    with serve(level) as server:
        with pytest.raises(DmEnvRpcError, match=text):
            make(server.address, settings)
        with make(server.address) as env:
            assert env.reset().first()
        assert level.threads.closed == 0
    assert server.errors == []


def test_settings_of_a_reset_are_those_of_the_environment_alone() -> None:
    with (
        serve(Level()) as server,
        make(server.address) as env,
        connect(server.address) as other,
    ):
        with pytest.raises(
            DmEnvRpcError, match=r"setting 'size'.*a Reset by its agent takes 'gain'"
        ):
            env.reset({"size": 3, "gain": 2})
        with pytest.raises(
            DmEnvRpcError, match=r"setting 'gain'.*a Reset by its agent takes 'gain'"
        ):
            reset_world(other, "world-1", {"gain": 2})
        assert env.reset().first()
        assert env.step({"go": 1}).reward == 1.0


def test_a_batch_of_one_row() -> None:
    level = Level()
    with serve(level) as server:
        with make(server.address, {"num_envs": 1}) as env:
            assert env.reset().observation["steps"].tolist() == [0]
            assert env.step({"go": np.array([1])}).observation["steps"].tolist() == [1]
        assert level.threads.closed == 0
        with BatchedEnvironment(server.address, 1) as envs:
            assert envs.reset().observation["steps"].tolist() == [1]
        with pytest.raises(EnvironmentsFailedError, match=r"'num_envs' is 3: .*pass a factory to"):
            BatchedEnvironment(server.address, 3)
        assert server.world_count == 0
    level.threads.the_one("step", "close")


def test_a_batch_that_cannot_be_made_leaves_it_open() -> None:
    level = Level()
    level.observation_spec = lambda: {"step_type": specs.Array((), np.int64)}  # type: ignore[method-assign]
    with serve(level) as server:
        with pytest.raises(DmEnvRpcError, match="'step_type'"):
            make(server.address, {"num_envs": 1})
        assert (level.threads.closed, server.world_count) == (0, 0)
    assert level.threads.closed == 1


# The end.


def test_a_close_that_raises_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    level = Level()
    level.raises_in_close = True
    server = serve(level)
    assert not server.stop()
    (error,) = server.errors
    assert str(error) == "cannot be closed"


def test_a_server_that_cannot_listen_leaves_it_open_and_no_thread() -> None:
    level = Level()
    with serve(Where) as server, pytest.raises(OSError, match="cannot listen"):
        serve(level, server.address)
    assert level.threads.closed == 0
    (one,) = level.threads.seen["action_spec"]
    assert settles(lambda: one not in [thread.ident for thread in threading.enumerate()])
    with serve(level) as server, make(server.address) as env:
        assert env.reset().first()


class Delegating:
    """A wrapper, as others write them: what it does not have, is that of its environment."""

    def __init__(self, environment: dm_env.Environment):
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        if name == "_environment":
            raise AttributeError(name)
        return getattr(self._environment, name)


@pytest.mark.parametrize("is_instance", [True, False])
def test_settings_and_properties_of_a_wrapped_environment(is_instance: bool) -> None:
    def make_wrapped() -> Any:
        return Delegating(Level(check_same_thread=is_instance))

    served: Any = make_wrapped() if is_instance else make_wrapped
    with serve(served) as server, make(server.address) as env:
        assert env.reset({"gain": 4}).first()
        assert env.step({"go": 1}).reward == 4.0
        assert PropertiesExtension(env.connection)["steps"] == 1


def test_a_dict_has_instances_beside_factories() -> None:
    one, other = Level(), Level()
    with serve({"one": one, "other": other, "where": Where}) as server:
        with connect(server.address) as first, connect(server.address) as second:
            env, _ = create_and_join_world(first, {"environment": "one"}, {})
            create_world(second, {"environment": "other"})
            for _ in range(2):
                create_world(second, {"environment": "where"})
            with pytest.raises(DmEnvRpcError, match="an instance of Level"):
                create_world(second, {"environment": "one"})
            assert env.reset().first()
        assert one.threads.seen["action_spec"] != other.threads.seen["action_spec"]
        assert server.stop()
    assert (one.threads.closed, other.threads.closed) == (1, 1)
    with pytest.raises(SpecError, match="environment 'race' is an existing Race"):
        serve({"race": Race()})
