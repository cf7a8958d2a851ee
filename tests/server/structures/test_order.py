"""Names are in the order of the environment's own mappings, however its values travel.

Agents flatten `observation.values()`: in another order, each feature is another one.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor

from dm_env_rpc_client import BatchedEnvironment, make
from dm_env_rpc_client.adaptors.gymnasium import GymnasiumEnv
from dm_env_rpc_client.adaptors.vector import RemoteVectorEnv
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.launch.standalone import dm_env_rpc_server
from dm_env_rpc_client.recording import read, replay
from dm_env_rpc_client.server import serve
from tests.environment.foreign.reference import reference_connection
from tests.server.structures.hosted import Structured, array

OBSERVATIONS = {
    "torso": array(2),
    "eyes": {"right": array(), "left": array(3)},
    "arms": (array(1), {"z": array(2), "a": array()}),
    "WORLD.RGB": array(2),
    "health": array(),
    "WORLD.DEPTH": array(1),
}
NAMES = [
    "torso", "eyes.right", "eyes.left", "arms.0", "arms.1.z", "arms.1.a", "WORLD.RGB", "health",
    "WORLD.DEPTH",
]  # fmt: skip
ACTIONS = {"turn": array(), "move": {"up": array(), "down": array(2)}, "act": array(1)}
ACTION_NAMES = ["turn", "move.up", "move.down", "act"]

ACTION = {"act": [4.0], "move": {"down": [3.0, 3.0], "up": 2.0}, "turn": 1.0}


def structured(**settings: Any) -> Structured:
    return Structured(OBSERVATIONS, ACTIONS)


def flat_keys(structure: Any) -> list[str]:
    """The flat names of a nested mapping in its own order."""
    found = []
    for key, part in structure.items():
        inner = flat_keys(part) if isinstance(part, dict) else None
        found += [key] if inner is None else [f"{key}.{name}" for name in inner]
    return found


# The levels of a name are in the order of the first name that has them.
NESTED_NAMES = [
    "torso", "eyes.right", "eyes.left", "arms.0", "arms.1.z", "arms.1.a", "WORLD.RGB",
    "WORLD.DEPTH", "health",
]  # fmt: skip


@contextlib.contextmanager
def own_server(environment: Callable[..., Any]) -> Iterator[str]:
    with serve(environment) as server:
        yield server.address


@contextlib.contextmanager
def one_file_server(environment: Callable[..., Any]) -> Iterator[str]:
    with dm_env_rpc_server.serve(environment, "localhost:0") as server:
        yield server.address


SERVERS = {"own": own_server, "one file": one_file_server}


@pytest.fixture(params=SERVERS)
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    with SERVERS[request.param](structured) as running:
        yield running


def check_values(observation: Any) -> None:
    """The leaves are 0, 1, 2, ... in the order of the environment's spec."""
    flat = {}
    for name in NAMES:
        value = observation
        for level in name.split("."):
            value = value[level]
        flat[name] = float(np.ravel(value)[0])
    assert flat == {name: float(place) for place, name in enumerate(NAMES)}


def test_specs_and_observations(address: str) -> None:
    with make(address) as env:
        assert flat_keys(env.observation_spec()) == NESTED_NAMES
        assert flat_keys(env.action_spec()) == ACTION_NAMES
        for timestep in (env.reset(), env.step(ACTION), env.step(ACTION)):
            assert flat_keys(timestep.observation) == NESTED_NAMES
        check_values(env.reset().observation)


def test_flat_names(address: str) -> None:
    with make(address, nested_tensors=False) as env:
        assert list(env.observation_spec()) == NAMES
        assert list(env.action_spec()) == ACTION_NAMES
        assert list(env.reset().observation) == NAMES


def test_the_reference_implementation_s_client(address: str) -> None:
    with reference_connection(address) as connection:
        env, _ = reference_adaptor.create_and_join_world(connection, {}, {})
        assert flat_keys(env.observation_spec()) == NESTED_NAMES
        timesteps = [env.reset(), env.step(ACTION)]
        assert [flat_keys(timestep.observation) for timestep in timesteps] == [NESTED_NAMES] * 2
        check_values(timesteps[0].observation)
        env.close()


@pytest.mark.parametrize("server", SERVERS)
def test_actions_are_in_the_order_of_their_spec(server: str) -> None:
    made = Structured(OBSERVATIONS, ACTIONS)
    with SERVERS[server](lambda: made) as address, make(address) as env:
        env.reset()
        env.step(ACTION)
    (action,) = made.actions
    assert flat_keys(action) == ACTION_NAMES
    assert float(action["move"]["up"]) == 2.0


def test_a_type_of_mapping_stays_what_it_is() -> None:
    spec = collections.OrderedDict(b=array(), a=array())
    made = Structured(OBSERVATIONS, spec)
    with serve(made) as server, make(server.address) as env:
        env.reset()
        env.step({"a": 1.0, "b": 2.0})
    (action,) = made.actions
    assert type(action) is collections.OrderedDict
    assert list(action.items()) == [("b", 2.0), ("a", 1.0)]


def test_keys_that_cannot_be_sorted() -> None:
    spec = {"b": array(), 2: array(), "a": array(), 1: array()}
    for server in SERVERS.values():
        with server(lambda: Structured(spec)) as address, make(address) as env:
            assert list(env.observation_spec()) == ["b", "2", "a", "1"]
            assert list(env.reset().observation.values()) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("num_batches", [1, 0])
def test_a_batch(num_batches: int) -> None:
    with (
        serve(structured) as server,
        BatchedEnvironment(server.address, 3, num_batches=num_batches) as env,
    ):
        assert flat_keys(env.observation_spec()) == NESTED_NAMES
        assert flat_keys(env.action_spec()) == ACTION_NAMES
        timestep = env.reset()
        assert flat_keys(timestep.observation) == NESTED_NAMES
        check_values(timestep.observation)


def test_a_batched_world() -> None:
    with serve(structured) as server, make(server.address, {"num_envs": 2}) as env:
        expected = [*NESTED_NAMES, "step_type", "row_errors"]
        assert flat_keys(env.observation_spec()) == expected
        timestep = env.reset()
        assert flat_keys(timestep.observation) == expected
        check_values(timestep.observation)


def test_a_recording_and_its_replay(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    with serve(structured) as server, make(server.address, record=path) as env:
        env.reset()
        env.step(ACTION)
    (episode,) = read(path).episodes
    assert list(episode.observation_specs) == [*NAMES, "reward"]
    assert list(episode.action_specs) == ACTION_NAMES
    timesteps = [*episode.flat_timesteps]
    assert [list(each.observation) for each in timesteps] == [NAMES] * 2
    with replay(path) as replayed, make(replayed.address) as env:
        assert flat_keys(env.observation_spec()) == NESTED_NAMES
        assert flat_keys(env.action_spec()) == ACTION_NAMES
        timestep = env.reset()
        assert flat_keys(timestep.observation) == NESTED_NAMES
        check_values(timestep.observation)


def test_gymnasium() -> None:
    with serve(structured) as server, contextlib.closing(make(server.address)) as remote:
        env: Any = GymnasiumEnv(remote)
        assert list(env.observation_space.spaces) == list(env.reset()[0])
        assert flat_keys(env.reset()[0]) == NESTED_NAMES
        assert list(env.action_space.spaces) == ["turn", "move", "act"]


@pytest.mark.parametrize("num_batches", [1, 0])
def test_vectors_of_gymnasium(num_batches: int) -> None:
    with (
        serve(structured) as server,
        contextlib.closing(RemoteVectorEnv(server.address, 2, num_batches=num_batches)) as env,
    ):
        single: Any = env.single_observation_space
        assert list(single.spaces) == [
            "torso", "eyes", "arms", "WORLD", "health",
        ]  # fmt: skip
        observation, _ = env.reset()
        assert flat_keys(observation) == NESTED_NAMES
        check_values(observation)


def test_gym_socket() -> None:
    spec = {"b": array(), "a": {"d": array(), "c": array()}}
    own = {"It": lambda: Structured(spec, specs.DiscreteArray(2))}
    with (
        gym_socket.serve(own, "localhost:0") as server,
        gym_socket.GymSocketEnvironment(server.address, "It") as env,
    ):
        b, (d, c) = env.reset().observation
        assert [float(np.ravel(each)[0]) for each in (b, d, c)] == [0.0, 1.0, 2.0]
