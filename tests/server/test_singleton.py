"""Environments of which a process has one, or that take settings of a Reset themselves."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from dm_env import specs

import dm_env_rpc_client
from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError, EnvironmentsFailedError, make
from dm_env_rpc_client.errors import PropertyNotFoundError, PropertyPermissionError
from dm_env_rpc_client.extensions.properties import PropertiesExtension
from dm_env_rpc_client.server import Server, serve
from tests.server.structures.hosted import Structured, array
from tests.support.scripted import settles
from tests.support.stopwatch import time_limit


class Simulator(Structured):
    """Refuses to be made while another one is there, as a simulation context does."""

    alive = 0
    made: ClassVar[list[int]] = []

    def __init__(self, size: int = 2):
        assert Simulator.alive == 0, "a second simulation context in one process"
        if size < 1:
            raise ValueError("size is at least 1")
        Simulator.alive += 1
        Simulator.made.append(size)
        self._size, self._is_open = size, True
        super().__init__({"x": array(size)}, {"a": array()}, observe=self._observed)

    def _observed(self, step: int) -> Any:
        assert self._is_open
        return {"x": np.full(self._size, float(self._size))}

    def close(self) -> None:
        assert self._is_open, "closed twice"
        self._is_open = False
        Simulator.alive -= 1


@pytest.fixture
def server() -> Iterator[Server]:
    Simulator.alive, Simulator.made = 0, []
    with serve(Simulator, singleton=True) as running:
        yield running
    assert running.errors == []
    assert Simulator.alive == 0


def test_a_second_world_is_refused_by_a_text(server: Server) -> None:
    with dm_env_rpc_client.make(server.address) as env:
        env.reset()
        with pytest.raises(
            DmEnvRpcError,
            match=r"one environment at a time \(singleton\), and the world that uses it is 'world-",
        ):
            dm_env_rpc_client.make(server.address)
        assert env.step({"a": 1}).mid()
    with dm_env_rpc_client.make(server.address) as env:
        assert env.reset().first()


def test_a_reset_with_settings_closes_the_environment_first(server: Server) -> None:
    with dm_env_rpc_client.make(server.address) as env:
        env.reset()
        env.step({"a": 1})
        assert env.reset({"size": 5}).observation["x"].tolist() == [5] * 5
        assert env.step({"a": 1}).observation["x"].tolist() == [5] * 5
        assert Simulator.made == [2, 5]


def test_after_settings_that_are_refused_the_former_ones_are_in_force(server: Server) -> None:
    with dm_env_rpc_client.make(server.address, {"size": 3}) as env:
        env.reset()
        env.step({"a": 1})
        with pytest.raises(DmEnvRpcError, match="does not take these settings: size is at least 1"):
            env.reset({"size": 0})
        assert env.reset().observation["x"].tolist() == [3] * 3
        assert Simulator.made == [3, 3]


def test_a_reset_world_that_changes_specs_is_refused(server: Server) -> None:
    with (
        dm_env_rpc_client.make(server.address) as env,
        dm_env_rpc_client.connect(server.address) as other,
    ):
        env.reset()
        with pytest.raises(DmEnvRpcError, match="these settings change the specs"):
            dm_env_rpc_client.reset_world(other, str(env.world_name), {"size": 4})
        assert Simulator.made == [2, 4, 2]
        with pytest.raises(DmEnvRpcError, match="sequence"):
            env.step({"a": 1})
        assert env.reset().observation["x"].tolist() == [2, 2]


def test_where_the_former_settings_fail_as_well_the_world_says_so(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with dm_env_rpc_client.make(server.address) as env:
        env.reset()

        def fail(self: Simulator, size: int = 2) -> None:
            raise OSError("the licence server is gone")

        with monkeypatch.context() as patched:
            patched.setattr(Simulator, "__init__", fail)
            with pytest.raises(DmEnvRpcError, match="licence server"):
                env.reset({"size": 3})
        with pytest.raises(DmEnvRpcError, match="destroy this world and create a new one"):
            env.reset()
    assert [str(error) for error in server.errors] == ["the licence server is gone"]
    server._serving._host.error_log._kept.clear()
    with dm_env_rpc_client.make(server.address) as env:
        assert env.reset().first()


def test_a_trainer_that_was_killed_frees_it_within_two_seconds(server: Server) -> None:
    program = (
        "import dm_env_rpc_client, time\n"
        f"env = dm_env_rpc_client.make({server.address!r})\n"
        "env.reset()\n"
        "print('running', flush=True)\n"
        "time.sleep(600)\n"  # until it is killed
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"running\n"
        trainer.send_signal(signal.SIGKILL)
    with time_limit(2.0):
        assert settles(lambda: server.world_count == 0 and Simulator.alive == 0)
    with dm_env_rpc_client.make(server.address, {"size": 4}) as env:
        assert env.reset().observation["x"].shape == (4,)


def test_batches_are_for_factories_that_make_them(server: Server) -> None:
    with pytest.raises(EnvironmentsFailedError, match="singleton"):
        BatchedEnvironment(server.address, 2)
    with dm_env_rpc_client.make(server.address) as env:
        assert env.reset().first()


def test_a_vector_environment_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def vector() -> gymnasium.vector.VectorEnv:
        return gymnasium.make_vec("CartPole-v1", num_envs=3)

    with serve(vector, singleton=True) as server, BatchedEnvironment(server.address, 3) as envs:
        assert envs.reset().observation["observation"].shape == (3, 4)


class Tuned(Structured):
    """Observes its settings; `size` changes its specs."""

    reset_settings = ("gain", "noise", "size")
    made = 0
    closed = 0

    def __init__(self, base: int = 0):
        super().__init__(None, {"go": specs.DiscreteArray(2)}, observe=self._told_settings)
        type(self).made += 1
        self._base, self._size = base, 1
        self._settings: dict[str, Any] = {}

    @property
    def properties(self) -> Mapping[str, Any]:
        return {"base": lambda: self._base, "size.now": lambda: np.full(self._size, 1.5)}

    def configure(self, settings: Mapping[str, Any]) -> None:
        if settings.get("gain") == -1:
            raise ValueError("a gain is positive")
        self._settings |= settings
        self._size = int(settings.get("size", self._size))

    def observation_spec(self) -> dict[str, Any]:
        return {"seen": array(self._size), "told": specs.StringArray(())}

    def _told_settings(self, step: int) -> dict[str, Any]:
        told = {name: self._settings[name] for name in sorted(self._settings)}
        return {"seen": np.full(self._size, float(self._base)), "told": str(told)}

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def tuned() -> Iterator[Server]:
    Tuned.made = Tuned.closed = 0
    with serve(Tuned) as running:
        yield running
    assert running.errors == []
    assert Tuned.made == Tuned.closed


def test_settings_that_an_environment_takes_do_not_make_it_anew(tuned: Server) -> None:
    with make(tuned.address) as env:
        env.reset()
        env.step({"go": 1})
        timestep = env.reset({"gain": 2, "noise": {"low": 0.5}})
        assert timestep.first()
        assert str(timestep.observation["told"]) == "{'gain': 2, 'noise': {'low': 0.5}}"
        assert Tuned.made == 1
        # They may change the specs.
        assert env.reset({"size": 3}).observation["seen"].tolist() == [0.0] * 3
        assert env.observation_spec()["seen"].shape == (3,)
        # Others make a new one, which gets those that came with them.
        timestep = env.reset({"base": 7, "gain": 1})
        assert Tuned.made == 2
        assert timestep.observation["seen"].tolist() == [7.0]
        assert str(timestep.observation["told"]) == "{'gain': 1}"


def test_refused_settings_change_nothing(tuned: Server) -> None:
    with make(tuned.address, {"base": 3}) as env:
        env.reset()
        for settings in ({"gain": -1}, {"gain": -1, "base": 4}):
            with pytest.raises(DmEnvRpcError, match="a gain is positive"):
                env.reset(settings)
            # The sequence goes on.
            assert env.step({"go": 0}).mid()
        assert env.reset().observation["seen"].tolist() == [3.0]


def test_functions_are_properties_that_can_be_read(tuned: Server) -> None:
    with make(tuned.address, {"base": 5}) as env:
        properties = PropertiesExtension(env.connection)
        assert properties["base"] == 5
        assert properties["size.now"].tolist() == [1.5]
        assert [spec.key for spec in properties.walk()] == ["base", "size", "size.now"]
        with pytest.raises(PropertyPermissionError):
            properties["base"] = 6
        with pytest.raises(PropertyNotFoundError):
            properties.read("no")
