"""What environments in other projects have, and a server takes: names, structures, discounts."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import dm_env
import numpy as np
import pytest
from dm_env import specs
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor

from dm_env_rpc_client import BatchedEnvironment, DmEnvRpcError, SpecError, dm_env_rpc_pb2, make
from dm_env_rpc_client.server import serve
from dm_env_rpc_client.tensors.specs import (
    dm_env_spec_to_tensor_spec,
    tensor_spec_to_dm_env_spec,
)
from tests.environment.foreign.reference import reference_connection
from tests.server.structures.hosted import Structured, array, filled
from tests.server.structures.test_order import SERVERS


class Arms(NamedTuple):
    """A named tuple, whose fields are not in the order of the alphabet."""

    right: Any
    left: Any


class Seen(NamedTuple):
    """The same, with another inside."""

    torso: Any
    arms: Any


@dataclasses.dataclass
class Body:
    """A dataclass."""

    torso: Any
    arms: Any


NESTED = {"torso": array(), "arms": {"right": array(), "left": array()}}
VALUES = {"torso": 1.0, "arms": {"right": 2.0, "left": 3.0}}

BY_NAME: dict[str, Any] = {
    "a named tuple": Seen(1.0, Arms(2.0, 3.0)),
    "a named tuple in another order": {"arms": Arms(left=3.0, right=2.0), "torso": 1.0},
    "a mapping in a named tuple": Seen(1.0, {"left": 3.0, "right": 2.0}),
    "a dataclass": Body(1.0, Arms(2.0, 3.0)),
}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return SERVERS[request.param]


@contextlib.contextmanager
def playing(server: Any, environment: Any, **settings: Any) -> Iterator[Any]:
    with server(lambda: environment) as address, make(address, settings) as env:
        yield env


@pytest.mark.parametrize("value", BY_NAME)
def test_values_with_the_names_of_a_mapping(server: Any, value: str) -> None:
    made = Structured(NESTED, observe=lambda step: BY_NAME[value])
    with playing(server, made) as env:
        assert env.reset().observation == VALUES
        assert env.step({}).observation == VALUES


@pytest.mark.parametrize("value", [VALUES, *BY_NAME.values()])
@pytest.mark.parametrize(
    "spec", [Seen(array(), Arms(array(), array())), Body(array(), Arms(array(), array()))]
)
def test_values_with_the_names_of_a_named_tuple(server: Any, spec: Any, value: Any) -> None:
    made = Structured(spec, spec, observe=lambda step: value)
    with playing(server, made) as env:
        assert list(env.observation_spec()) == ["torso", "arms"]
        assert env.reset().observation == VALUES
        env.step(VALUES)
    (action,) = made.actions
    assert type(action) is type(spec)
    assert type(action.arms) is Arms
    assert (action.torso, action.arms) == (1.0, Arms(2.0, 3.0))


def test_named_tuples_in_rows_of_a_batch() -> None:
    def make_one() -> Structured:
        return Structured(
            Seen(array(), Arms(array(), array())),
            Arms(array(), array()),
            observe=lambda step: BY_NAME["a named tuple"],
        )

    with serve(make_one) as server, BatchedEnvironment(server.address, 2) as env:
        for timestep in (env.reset(), env.step({"right": np.zeros(2), "left": np.ones(2)})):
            observation = timestep.observation
            assert list(observation) == ["torso", "arms"]
            np.testing.assert_array_equal(observation["arms"]["left"], [3.0, 3.0])


PARTS: dict[str, tuple[Any, str, str]] = {
    "a key too many": (
        {**VALUES, "head": 1.0}, "'head'", "'torso', 'arms'",
    ),
    "a key too few": ({"torso": 1.0}, "'arms'", "'torso', 'arms'"),
    "another key": ({"torso": 1.0, "legs": VALUES["arms"]}, "'legs'", "'torso', 'arms'"),
    "a key too many below": (
        {"torso": 1.0, "arms": {"right": 1.0, "left": 1.0, "third": 1.0}}, "'third'",
        "'right', 'left'",
    ),
    "an array in place of a mapping": ({"torso": 1.0, "arms": np.ones(2)}, "arms", "'left'"),
    "a tuple in place of a mapping": ({"torso": 1.0, "arms": (1.0, 2.0)}, "arms", "'left'"),
}  # fmt: skip


@pytest.mark.parametrize("value", PARTS)
def test_a_value_with_other_parts_is_named(server: Any, value: str) -> None:
    given, found, expected = PARTS[value]
    made = Structured(NESTED, observe=lambda step: given if step else VALUES)
    with playing(server, made) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError) as caught:
            env.step({})
    text = str(caught.value)
    assert "INTERNAL" in text
    for part in ("observation", found, expected):
        assert part in text, text


SHORT = Structured((array(), array()), observe=lambda step: (1.0,) if step else (1.0, 2.0))


def test_a_tuple_of_another_length_is_named(server: Any) -> None:
    with playing(server, SHORT) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match=r"the environment.*observation"):
            env.step({})


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


def test_an_empty_name(server: Any) -> None:
    spec = {"": array(), "observation": array(), "a": {"": array()}}
    made = Structured(spec, {"": array(), "action": array()})
    with playing(server, made) as env:
        assert env.reset().observation == {"": 0.0, "observation": 1.0, "a": {"": 2.0}}
        env.step({"": 1.0, "action": 2.0})
    assert made.actions == [{"": 1.0, "action": 2.0}]


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


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_cannot_be_told_apart_are_refused(server: Any, name: str) -> None:
    environment, parts = REFUSED[name]
    with server(lambda: environment) as address, pytest.raises(DmEnvRpcError) as caught:
        make(address)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("name", REFUSED)
def test_an_instance_with_such_names_is_refused_at_once(name: str) -> None:
    environment, parts = REFUSED[name]
    with pytest.raises(SpecError) as caught:
        serve(environment)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize("key", ["step_type", "row_errors", "row_errors.x"])
def test_names_of_a_batch_are_refused_in_its_rows(key: str) -> None:
    spec: Any = {key: array(), "x": array()}
    with serve(lambda: Structured(spec)) as server:
        with make(server.address) as env:  # Alone there is nothing to confuse it with.
            assert list(env.reset().observation) == [key.partition(".")[0], "x"]
        with pytest.raises(DmEnvRpcError, match="reserved for batches; rename it"):
            make(server.address, {"num_envs": 2})


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


@pytest.mark.parametrize("discount", [0.0, 0.5, np.float32(0), np.zeros(()), None, float("nan")])
def test_a_first_step_has_any_discount(server: Any, discount: Any) -> None:
    def first(observation: Any) -> dm_env.TimeStep:
        return dm_env.TimeStep(dm_env.StepType.FIRST, 0.0, discount, observation)

    with playing(server, Structured(array(), first=first)) as env:
        timestep = env.reset()
        assert timestep.first()
        assert timestep.discount is None
        assert timestep.reward is None
        assert env.step({}).discount == 1.0


def test_a_first_step_of_a_row_has_any_discount() -> None:
    def first(observation: Any) -> dm_env.TimeStep:
        return dm_env.TimeStep(dm_env.StepType.FIRST, 0.0, 0.0, observation)

    with (
        serve(lambda: Structured(array(), first=first)) as server,
        BatchedEnvironment(server.address, 2) as env,
    ):
        assert env.reset().discount.tolist() == [1.0, 1.0]
        assert env.step({}).discount.tolist() == [1.0, 1.0]


def test_the_discount_of_another_step_is_still_checked(server: Any) -> None:
    class Discounted(Structured):
        def step(self, action: Any) -> dm_env.TimeStep:
            return dm_env.transition(0.0, filled(array()), 0.5)

    with playing(server, Discounted(array())) as env:
        env.reset()
        with pytest.raises(DmEnvRpcError, match="discount_spec"):
            env.step({})


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


def test_bounds_of_one_element_in_a_message() -> None:
    sent = dm_env_spec_to_tensor_spec(specs.BoundedArray((1,), np.float64, [-1.0], [1.0], "x"))
    assert list(sent.min.doubles.array) == [-1.0]
    assert tensor_spec_to_dm_env_spec(sent).minimum.tolist() == [-1.0]
    # One element is one bound for all elements of other shapes, and not of each of its lengths.
    other = dm_env_rpc_pb2.TensorSpec(name="x", shape=[-1], dtype=sent.dtype)
    other.min.CopyFrom(sent.min)
    assert np.shape(tensor_spec_to_dm_env_spec(other).minimum) == ()


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
