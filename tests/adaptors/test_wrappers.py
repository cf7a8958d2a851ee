"""Wrappers over real servers: their specs hold, and a batch does what single environments do."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import numpy as np
import pytest
import tree
from absl.testing import absltest
from dm_env import test_utils

from dm_env_rpc_client import BatchedEnvironment, SpecError, make
from dm_env_rpc_client.adaptors.wrappers import (
    ActionRepeat,
    ActionScale,
    FloatCast,
    ObservationStack,
    Wrapper,
)
from dm_env_rpc_client.server import Server, serve
from dm_env_rpc_client.tensors.sampling import sample
from tests.adaptors.walkers import Arm, Walker
from tests.support.environments import Robot, Words

Wrap = Callable[[dm_env.Environment], Wrapper]


WRAPPERS: dict[str, Wrap] = {
    "repeat": lambda env: ActionRepeat(env, 3),
    "stack": lambda env: ObservationStack(env, 3),
    "stack of some": lambda env: ObservationStack(env, 2, ["camera", "position.*"]),
    "cast": FloatCast,
    "scale": ActionScale,
    "all": lambda env: ObservationStack(FloatCast(ActionRepeat(ActionScale(env), 2)), 4),
    "all, in another order": lambda env: ActionScale(
        ActionRepeat(FloatCast(ObservationStack(env, 2)), 3)
    ),
}


def mixin(name: str, wrap: Wrap, **kwargs: Any) -> type[absltest.TestCase]:
    """dm_env's own conformance tests, on a wrapped remote environment."""

    class Conformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
        def make_object_under_test(self) -> Wrapper:
            server = serve({"Walker": Walker, "Arm": Arm}[name])
            self.addCleanup(server.stop, 0.0)
            return wrap(make(server.address, **kwargs))

        def make_action_sequence(self) -> Iterator[Any]:
            random = np.random.default_rng(0)
            for _ in range(17):
                action_spec = self.environment.action_spec()
                yield tree.map_structure(lambda spec: sample(spec, random), action_spec)

        def test_the_action_sequence_reaches_last(self) -> None:
            self.environment.reset()
            taken = [self.environment.step(action) for action in self.make_action_sequence()]
            assert any(timestep.last() for timestep in taken)

    return Conformance


RepeatConformance = mixin("Walker", WRAPPERS["repeat"])


StackConformance = mixin("Walker", WRAPPERS["stack"])


CastConformance = mixin("Walker", WRAPPERS["cast"])


ScaleConformance = mixin("Walker", WRAPPERS["scale"])


AllConformance = mixin("Walker", WRAPPERS["all"])


AllFlatConformance = mixin("Walker", WRAPPERS["all"], nested_tensors=False)


AllInAnotherOrderConformance = mixin("Walker", WRAPPERS["all, in another order"])


AllOfOneArrayConformance = mixin("Arm", WRAPPERS["all"], unwrap_single=True)


AllOfOneArrayInAMappingConformance = mixin("Arm", WRAPPERS["all"])


def assert_same(found: Any, expected: Any) -> None:
    tree.assert_same_structure(found, expected)
    for one, other in zip(tree.flatten(found), tree.flatten(expected), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype.kind == np.asarray(other).dtype.kind


def rows(timestep: dm_env.TimeStep, index: int) -> dm_env.TimeStep:
    """The TimeStep of one environment of a batch, as it alone returns it."""
    step_type = dm_env.StepType(timestep.step_type[index])
    observation = tree.map_structure(lambda each: each[index], timestep.observation)
    if step_type is dm_env.StepType.FIRST:
        assert np.all(timestep.reward[index] == 0)
        assert timestep.discount[index] == 1
        return dm_env.restart(observation)
    return dm_env.TimeStep(step_type, timestep.reward[index], timestep.discount[index], observation)


def validate(env: Wrapper, timestep: dm_env.TimeStep) -> None:
    """Checks a batch against its specs."""
    tree.map_structure(
        lambda spec, value: spec.validate(value), env.observation_spec(), timestep.observation
    )
    is_first = timestep.first()
    if not np.any(is_first):  # Those have no reward and discount; the row has 0 and 1.
        env.reward_spec().validate(timestep.reward)
        env.discount_spec().validate(timestep.discount)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("Walker", {}),
        ("Walker", {"nested_tensors": False, "copy": False}),
        ("Arm", {"copy": False}),
        ("Arm", {"unwrap_single": True}),
    ],
    ids=["nested", "flat", "single in a mapping", "single"],
)
@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_batch_does_what_the_environments_alone_do(
    server: Server, kind: str, name: str, how: dict[str, Any]
) -> None:
    if kind == "stack of some" and name == "Arm":
        kind = "stack"  # It has one observation.
    of_one = {key: value for key, value in how.items() if key != "copy"}
    settings = [{"environment": name, "length": length} for length in (3, 7, 4, 5)]
    batch = WRAPPERS[kind](BatchedEnvironment(server.address, 4, settings, **how))
    random = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(batch)
        alone = [
            stack.enter_context(WRAPPERS[kind](make(server.address, each, **of_one)))
            for each in settings
        ]
        found = batch.reset()
        for index, env in enumerate(alone):
            assert_same(rows(found, index), env.reset())
        for _ in range(15):
            single = alone[0].action_spec()
            actions = [tree.map_structure(lambda s: sample(s, random), single) for _ in alone]
            stacked = tree.map_structure(lambda *each: np.stack(each), *actions)
            found = batch.step(stacked)
            validate(batch, found)
            for index, env in enumerate(alone):
                assert_same(rows(found, index), env.step(actions[index]))


@pytest.mark.parametrize("kind", ["stack", "cast", "scale"])
def test_some_environments_of_a_batch(server: Server, kind: str) -> None:
    settings = [{"environment": "Walker", "length": length} for length in (2, 7, 4)]
    random = np.random.default_rng(0)
    with contextlib.ExitStack() as stack:
        batch = stack.enter_context(WRAPPERS[kind](BatchedEnvironment(server.address, 3, settings)))
        alone = [
            stack.enter_context(WRAPPERS[kind](make(server.address, each))) for each in settings
        ]
        for chosen in ([1], [0, 2], [2, 1], [0], [2, 1, 0], [0, 1]):  # The first ones begin.
            single = alone[0].action_spec()
            actions = [tree.map_structure(lambda s: sample(s, random), single) for _ in chosen]
            batch.send(tree.map_structure(lambda *each: np.stack(each), *actions), chosen)
            found, ids = batch.recv(len(chosen))
            expected = {i: alone[i].step(a) for i, a in zip(chosen, actions, strict=True)}
            assert sorted(ids) == sorted(chosen)
            for row, index in enumerate(ids):
                assert_same(rows(found, row), expected[int(index)])


@pytest.mark.parametrize("open_", [make, functools.partial(BatchedEnvironment, num_envs=2)])
def test_variable_lengths_are_not_stacked(open_: Callable[..., Any]) -> None:
    with serve(Words) as server, open_(server.address) as env:
        with pytest.raises(SpecError, match="'numbers' has no fixed shape"):
            ObservationStack(env)
        stacked = ObservationStack(env, 2, ["words"])
        stacked.reset()
        is_one = stacked.num_envs is None
        action = {"count": 3, "word": "x"} if is_one else {"count": [3, 3], "word": ["x", "y"]}
        observation = stacked.step(action).observation
        assert observation["words"].ravel().tolist()[:2] == ["", "x"]
        assert np.ravel(observation["numbers"])[0] is not None


def test_resets_with_settings_change_the_specs(server: Server) -> None:
    with ActionScale(ObservationStack(make(server.address, {"environment": "Robot"}), 2)) as env:
        assert env.reset().observation["camera"]["rgb"].shape == (4, 5, 3, 2)
        found = env.reset({"camera.height": 6, "joints": 2})
        assert found.observation["camera"]["rgb"].shape == (6, 5, 3, 2)
        assert env.action_spec()["arm"]["torque"].shape == (2,)
        action = {"arm": {"torque": [1, -1], "grip": True}, "mode": 0, "speech": "x"}
        assert env.step(action).observation["heard"].tolist() == [["", "x"], ["", "X"]]


def test_wrappers_are_for_environments_of_this_process_too() -> None:
    with ActionScale(ObservationStack(Robot(), 2)) as env:
        joints = env.reset().observation["joints"]
        assert [joint.tolist() for joint in joints] == [[0, 0], [1, 1], [2, 2]]
        action = {"arm": {"torque": [1, 1, 0], "grip": True}, "mode": 0, "speech": "x"}
        assert [each.tolist() for each in env.step(action).observation["joints"]] == [
            [0, 2], [1, 3], [2, 4],
        ]  # fmt: skip
        with pytest.raises(SpecError, match="a batch"):
            env.send(action)
        with pytest.raises(SpecError, match="a batch"):
            env.recv()
    assert repr(env).startswith(
        "<ActionScale of <ObservationStack of <tests.support.environments.Robot"
    )
