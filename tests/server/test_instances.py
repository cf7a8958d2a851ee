"""Environments that exist already: one world at a time of that very one, in one thread."""

from __future__ import annotations

import concurrent.futures
import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import dm_env
import gymnasium
import numpy as np
import pytest
from dm_env import specs
from google.rpc import code_pb2
from gymnasium import spaces
from pettingzoo import ParallelEnv

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
from dm_env_rpc_client.server import Properties, Race, serve
from tests.server.hosted import Where
from tests.support.scripted import settles

REMOTE = "dm_env_rpc_client.gymnasium:Remote-v0"
STEP_SECONDS = 0.003


class Threads:
    """Notes which threads call what. Whoever makes it is not counted."""

    def __init__(self) -> None:
        self.seen: dict[str, set[int]] = {}
        self.closed = 0

    def note(self, what: str) -> None:
        self.seen.setdefault(what, set()).add(threading.get_ident())

    def the_one(self, *expected: str) -> int:
        """The one thread that called everything, among which is what is expected."""
        assert set(expected) <= self.seen.keys()
        (one,) = set.union(*self.seen.values())
        return one


class Level(dm_env.Environment):
    """An environment that takes the calls of one thread: it has a database in memory."""

    reset_settings = ("gain",)

    def __init__(self) -> None:
        self.threads = Threads()
        self._gain = 1
        self._database: sqlite3.Connection | None = None
        self.raises_in_close = False
        self.may_go_on = threading.Event()
        self.is_in_step = threading.Event()
        self.may_go_on.set()

    @property
    def properties(self) -> Mapping[str, Any]:
        self.threads.note("properties")
        return {"steps": self._count}

    @property
    def default_actions(self) -> Mapping[str, Any]:
        self.threads.note("default_actions")
        return {"go": 1}

    def _count(self) -> int:
        self.threads.note("getter")
        if self._database is None:
            return 0
        (count,) = self._database.execute("SELECT COUNT(*) FROM steps").fetchone()
        return int(count)

    def configure(self, settings: Mapping[str, Any]) -> None:
        self.threads.note("configure")
        self._gain = int(settings["gain"])

    def action_spec(self) -> Any:
        self.threads.note("action_spec")
        return {"go": specs.DiscreteArray(2)}

    def observation_spec(self) -> Any:
        self.threads.note("observation_spec")
        return {"steps": specs.Array((), np.int64)}

    def reset(self) -> dm_env.TimeStep:
        self.threads.note("reset")
        if self._database is None:
            self._database = sqlite3.connect(":memory:")
            self._database.execute("CREATE TABLE steps (go INTEGER)")
        return dm_env.restart({"steps": np.int64(self._count())})

    def step(self, action: Any) -> dm_env.TimeStep:
        self.threads.note("step")
        self.is_in_step.set()
        self.may_go_on.wait()
        time.sleep(STEP_SECONDS)  # It takes time to step, so that servers give it other threads.
        assert self._database is not None
        self._database.execute("INSERT INTO steps VALUES (?)", (int(action["go"]),))
        return dm_env.transition(float(self._gain), {"steps": np.int64(self._count())})

    def close(self) -> None:
        self.threads.note("close")
        self.threads.closed += 1
        if self._database is not None:
            self._database.close()
        if self.raises_in_close:
            raise OSError("cannot be closed")


@pytest.fixture(params=["http2", "grpc"])
def transport(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_one_thread_calls_it_for_all_clients(transport: Any) -> None:
    level = Level()
    with serve(level, transport=transport) as server:
        with (
            make(server.address, transport=transport) as env,
            connect(server.address, transport=transport) as other,
        ):
            assert env.reset().observation["steps"] == 0
            for number in range(1, 6):
                assert env.step({"go": 1}).observation["steps"] == number
            assert PropertiesExtension(env.connection)["steps"] == 5
            assert env.reset({"gain": 3}).first()
            assert env.step({}).reward == 3.0
            # A ResetWorld waits until the agent's next step, in no thread of the environment.
            with concurrent.futures.ThreadPoolExecutor() as executor:
                reset = executor.submit(reset_world, other, "world-1")
                interrupted = env.step({"go": 0})
                while not interrupted.last():
                    interrupted = env.step({"go": 0})
                reset.result()
        # Another world has that very environment.
        with make(server.address, transport=transport) as env:
            assert env.reset().observation["steps"] >= 6
        assert level.threads.closed == 0
        assert server.stop()
        assert server.errors == []
    assert level.threads.closed == 1
    one = level.threads.the_one(
        "reset", "step", "close", "configure", "getter", "properties", "default_actions",
        "action_spec", "observation_spec",
    )  # fmt: skip
    assert one != threading.get_ident()
    assert settles(lambda: one not in [thread.ident for thread in threading.enumerate()])


def test_a_second_world_is_refused(transport: Any) -> None:
    with (
        serve(Level(), transport=transport) as server,
        connect(server.address, transport=transport) as connected,
    ):
        name = create_world(connected)
        with pytest.raises(
            DmEnvRpcError, match=r"an instance of Level.*pass serve what makes"
        ) as no:
            create_world(connected)
        assert no.value.code == code_pb2.FAILED_PRECONDITION
        assert (server.world_count, server.stats().refusals, server.stats().errors) == (1, 1, 0)
        destroy_world(connected, name)
        assert server.world_count == 0
        destroy_world(connected, create_world(connected))


def test_a_world_whose_client_has_gone_makes_room() -> None:
    with serve(Level(), idle_world_seconds=0.0) as server:
        with connect(server.address) as connected:
            create_world(connected)
        assert settles(lambda: server.world_count == 0)
        with make(server.address) as env:
            assert env.reset().first()


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"size": 3}, "setting 'size'.*an instance of Level.*takes 'gain'.*pass serve what makes"),
        ({"size.x": 3}, "setting 'size'"),
        ({"num_envs": 2}, "setting 'num_envs' is 2: this server hosts one.*pass serve what makes"),
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
            DmEnvRpcError, match=r"setting 'size'.*the Reset of its agent takes 'gain'"
        ):
            env.reset({"size": 3, "gain": 2})
        with pytest.raises(
            DmEnvRpcError, match=r"setting 'gain'.*the Reset of its agent takes 'gain'"
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
        with pytest.raises(
            EnvironmentsFailedError, match=r"'num_envs' is 3: .*pass serve what makes"
        ):
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


def test_stop_closes_it_without_any_world() -> None:
    level = Level()
    server = serve(level)
    assert server.stop()
    assert level.threads.closed == 1
    assert server.stop()
    assert level.threads.closed == 1


def test_a_close_that_raises_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    level = Level()
    level.raises_in_close = True
    server = serve(level)
    assert not server.stop()
    (error,) = server.errors
    assert str(error) == "cannot be closed"


def test_it_is_closed_after_a_step_that_is_taken_when_the_server_stops(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.CRITICAL)
    level = Level()
    server = serve(level)
    env = make(server.address)
    env.reset()
    level.may_go_on.clear()
    env.submit_step({"go": 1})
    assert level.is_in_step.wait(30)
    assert not server.stop(0.0)
    assert level.threads.closed == 0
    level.may_go_on.set()
    assert settles(lambda: level.threads.closed == 1)
    level.threads.the_one("close")
    with contextlib.suppress(ConnectionError):
        env.close()


def test_a_server_that_cannot_listen_leaves_it_open_and_no_thread() -> None:
    level = Level()
    with serve(Where) as server, pytest.raises(OSError, match="cannot listen"):
        serve(level, server.address)
    assert level.threads.closed == 0
    (one,) = level.threads.seen["action_spec"]
    assert settles(lambda: one not in [thread.ident for thread in threading.enumerate()])
    with serve(level) as server, make(server.address) as env:
        assert env.reset().first()


# What is served.


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
        with pytest.raises(EnvironmentsFailedError, match="pass serve what makes"):
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
        with pytest.raises(SpecError, match="instance of CartPoleEnv that exists already belongs"):
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
        with pytest.raises(EnvironmentsFailedError, match="has 3 rows already"):
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
        time.sleep(STEP_SECONDS)  # It takes time to step, so that servers give it other threads.
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
        with pytest.raises(DmEnvRpcError, match="hosts a PettingZooGame, and batches are made of"):
            make(server.address, {"num_envs": 2})
        assert server.stop()
        assert server.errors == []
    assert duel.threads.closed == 1
    duel.threads.the_one("reset", "step", "close")


class Delegating(dm_env.Environment):
    """A wrapper, as others write them: what it does not have, is that of its environment."""

    def __init__(self, environment: dm_env.Environment):
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        if name == "_environment":
            raise AttributeError(name)
        return getattr(self._environment, name)

    def action_spec(self) -> Any:
        return self._environment.action_spec()

    def observation_spec(self) -> Any:
        return self._environment.observation_spec()

    def reset(self) -> dm_env.TimeStep:
        return self._environment.reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._environment.step(action)

    def close(self) -> None:
        self._environment.close()


@pytest.mark.parametrize("is_instance", [True, False])
def test_settings_and_properties_of_a_wrapped_environment(is_instance: bool) -> None:
    served: Any = Delegating(Level()) if is_instance else lambda: Delegating(Level())
    with serve(served) as server, make(server.address) as env:
        assert env.reset({"gain": 4}).first()
        assert env.step({"go": 1}).reward == 4.0
        assert PropertiesExtension(env.connection)["steps"] == 1


class Registered(Where):
    """Has a registry of properties."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = Threads()
        self.properties = Properties()
        self.properties.add("volume", self._volume, self._set_volume)
        self._value = 1

    def _volume(self) -> int:
        self.threads.note("read")
        return self._value

    def _set_volume(self, value: int) -> None:
        self.threads.note("write")
        self._value = value


def test_a_registry_of_properties() -> None:
    registered = Registered()
    with serve(registered) as server:
        with make(server.address) as env:
            properties = PropertiesExtension(env.connection)
            assert list(properties.specs()) == ["volume"]
            properties["volume"] = 3
            assert properties["volume"] == 3
        with make(server.address, {"num_envs": 1}) as env:
            assert env.reset().first()
        registered.threads.the_one("read", "write")


def test_a_batch_is_made_of_environments_with_a_registry_of_properties() -> None:
    with serve(Registered) as server, make(server.address, {"num_envs": 2}) as env:
        assert env.reset().observation["pid"].shape == (2,)


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
    with pytest.raises(SpecError, match="environment 'race' is a Race that exists already"):
        serve({"race": Race()})


@pytest.fixture
def joined_level() -> Iterator[tuple[Any, Any]]:
    with serve(Level()) as server, make(server.address) as env, connect(server.address) as other:
        yield env, other


def test_its_world_takes_one_agent(joined_level: tuple[Any, Any]) -> None:
    _, other = joined_level
    with pytest.raises(DmEnvRpcError, match="takes only one at a time"):
        join_world(other, "world-1")
