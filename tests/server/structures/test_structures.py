"""Names and structures of environments, in their own order, however they travel.

Agents flatten `observation.values()`: in another order, each feature is another one. The table of
`tests/travelling` has more, by every way but those that are here.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
from dm_env import specs
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor

from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError, SpecError, make
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.server import serve
from tests.environment.foreign.reference import reference_connection
from tests.server.structures.hosted import Structured, array
from tests.support.serving import one_file_server, own_server

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


def test_a_type_of_mapping_stays_what_it_is() -> None:
    spec = collections.OrderedDict(b=array(), a=array())
    made = Structured(OBSERVATIONS, spec)
    with serve(made) as server, make(server.address) as env:
        env.reset()
        env.step({"a": 1.0, "b": 2.0})
    (action,) = made.actions
    assert type(action) is collections.OrderedDict
    assert list(action.items()) == [("b", 2.0), ("a", 1.0)]


def test_gym_socket() -> None:
    spec = {"b": array(), "a": {"d": array(), "c": array()}}
    own = {"It": lambda: Structured(spec, specs.DiscreteArray(2))}
    with (
        gym_socket.serve(own, "localhost:0") as server,
        gym_socket.GymSocketEnvironment(server.address, "It") as env,
    ):
        b, (d, c) = env.reset().observation
        assert [float(np.ravel(each)[0]) for each in (b, d, c)] == [0.0, 1.0, 2.0]


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return SERVERS[request.param]


@contextlib.contextmanager
def playing(server: Any, environment: Any, **settings: Any) -> Iterator[Any]:
    with server(lambda: environment) as address, make(address, settings) as env:
        yield env


@pytest.mark.parametrize("key", ["WORLD.RGB", "a.b.c", ".", "a..b"])
def test_periods_in_a_key_are_levels(server: Any, key: str) -> None:
    spec = {"first": array(), key: array(2)}
    made = Structured(spec, {key: array()})
    with playing(server, made) as env:
        value, action = env.reset().observation, cast("Any", 7.0)
        for level in key.split("."):
            value = value[level]
        for level in reversed(key.split(".")):
            action = {level: action}
        np.testing.assert_array_equal(value, [1.0, 1.0])
        env.step(action)
        env.step({key: 7.0})
    assert made.actions == [{key: 7.0}] * 2


REFUSED: dict[str, tuple[Structured, tuple[str, ...]]] = {
    "periods that hide another": (
        Structured({"a.b": array(), "a": {"b": array()}}),
        ("two observations", "'a.b'", "rename one"),
    ),
    "a string and a number": (
        Structured({"1": array(), 1: array()}), ("two observations", "'1'", "rename one"),
    ),
    "an index": (
        Structured({"a": (array(),), "a.0": array()}), ("two observations", "'a.0'", "rename one"),
    ),
    "actions": (
        Structured(array(), {"1": array(), 1: array()}), ("two actions", "'1'", "rename one"),
    ),
    "a value that is a group": (
        Structured({"a": array(), "a.b": array()}), ("observations", "'a'", "'a.b'", "rename one"),
    ),
    "a discount of its own": (
        Structured({"discount": array(), "x": array()}),
        ("observation 'discount'", "the discount of a step", "rename it"),
    ),
    "a discount beside the environment's": (
        Structured({"discount": array()}, discount_spec=array()),
        ("observation 'discount'", "the discount of a step", "rename it"),
    ),
    "a reward of its own": (
        Structured({"reward": array()}),
        ("observation 'reward'", "the reward of a step", "rename it"),
    ),
    "a reward beside parts of the reward": (
        Structured({"reward": array()}, reward_spec={"x": array()}, reward={"x": 1.0}),
        ("observation 'reward'", "the reward of a step", "rename it"),
    ),
    "a part of the reward": (
        Structured({"reward.x": array()}), ("'reward'", "'reward.x'", "rename one"),
    ),
}  # fmt: skip


def opened(place: str, environment: Structured) -> None:
    if place == "instance":
        serve(environment)
    with SERVERS[place](lambda: environment) as address:
        make(address)


@pytest.mark.parametrize("place", [*SERVERS, "instance"])
@pytest.mark.parametrize("name", REFUSED)
def test_names_that_cannot_be_told_apart_are_refused(place: str, name: str) -> None:
    """An instance is refused at once."""
    environment, parts = REFUSED[name]
    with pytest.raises(SpecError if place == "instance" else DmEnvRpcError) as caught:
        opened(place, environment)
    for part in parts:
        assert part in str(caught.value)


def test_an_action_of_the_name_of_the_mask_is_no_mask() -> None:
    def make_one() -> Structured:
        spec = {"step_mask": specs.Array((), np.bool_), "x": array()}
        return Structured({"y": array()}, spec)

    with serve(make_one) as server:
        with pytest.raises(DmEnvRpcError, match=r"'step_mask'.*reserved for batches; rename it"):
            make(server.address, {"num_envs": 2})
        # A stream for each environment, where it is an action like any other.
        with BatchedEnvironment(server.address, 2) as env:
            env.reset()
            action = {"step_mask": np.array([True, False]), "x": np.zeros(2)}
            np.testing.assert_array_equal(env.step(action).observation["y"], [100.0, 100.0])


BOUNDED: dict[str, specs.BoundedArray] = {
    "of one element": specs.BoundedArray((1,), np.float64, [-1.0], [1.0]),
    "of one element, with two dimensions": specs.BoundedArray((1, 1), np.float64, [[-1]], [[1]]),
    "one for all": specs.BoundedArray((3,), np.float64, -1.0, 1.0),
    "one side": specs.BoundedArray((1,), np.int32, [-(2**31)], [1]),
    "a row for all": specs.BoundedArray((2, 2), np.float32, [0.0, 1.0], [2.0, 3.0]),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_can_be_indexed_as_in_the_environment(server: Any, name: str) -> None:
    spec = BOUNDED[name]
    with playing(server, Structured({"x": spec}, {"x": spec})) as env:
        for found in (env.observation_spec()["x"], env.action_spec()["x"]):
            assert found.shape == spec.shape
            for own, its in ((spec.minimum, found.minimum), (spec.maximum, found.maximum)):
                assert bool(own.shape) == bool(its.shape)
                assert own.dtype == its.dtype
                np.testing.assert_array_equal(np.broadcast_to(own, spec.shape), its + 0 * own)
                if own.shape and own.size == 1:
                    np.testing.assert_array_equal(own[0].ravel(), its[0].ravel())
        env.reset()
        middle = (np.asarray(spec.minimum) / 2 + np.asarray(spec.maximum) / 2).astype(spec.dtype)
        env.step({"x": np.broadcast_to(middle, spec.shape)})
        with pytest.raises(SpecError, match="outside its bounds"):
            env.step({"x": np.full(spec.shape, 5, spec.dtype)})


def test_the_reference_implementation_s_client_takes_an_order_of_many_names() -> None:
    names = [f"n{(7 * number) % 100}" for number in range(100)]
    made = Structured({name: array() for name in names})
    with serve(lambda: made) as server, reference_connection(server.address) as connection:
        env, _ = reference_adaptor.create_and_join_world(connection, {}, {})
        assert list(env.observation_spec()) == names
        observation = env.reset().observation
        assert {name: observation[name] for name in names} == {
            name: float(place) for place, name in enumerate(names)
        }
        env.close()
