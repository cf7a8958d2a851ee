"""TimeSteps from states, and stacks of them."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import pytest
from google.protobuf import any_pb2

from dm_env_rpc_client import SpecError
from dm_env_rpc_client.protocol.timesteps import stack

FIRST, MID, LAST = dm_env.StepType


def step(
    observation: Any, reward: Any = 1.0, discount: Any = 1.0, kind: Any = MID
) -> dm_env.TimeStep:
    return dm_env.TimeStep(kind, reward, discount, observation)


def test_time_is_the_first_axis() -> None:
    first = step({"a": np.zeros(2), "b": [np.float32(1)]}, None, None, FIRST)
    mid = step({"a": np.ones(2), "b": [np.float32(2)]}, 0.5, 1.0)
    last = step({"a": np.ones(2), "b": [np.float32(3)]}, -1.0, 0.0, LAST)
    stacked = stack([first, mid, last])
    assert stacked.step_type.tolist() == [FIRST, MID, LAST]
    assert stacked.reward.tolist() == [0.0, 0.5, -1.0]
    assert stacked.discount.tolist() == [1.0, 1.0, 0.0]
    assert stacked.observation["a"].tolist() == [[0, 0], [1, 1], [1, 1]]
    assert stacked.observation["b"][0].dtype == np.float32
    assert stacked.observation["b"][0].tolist() == [1, 2, 3]


def test_one_first_step_has_reward_0_and_discount_1() -> None:
    stacked = stack([step(np.zeros(2), None, None, FIRST)])
    assert stacked.reward.tolist() == [0.0]
    assert stacked.discount.tolist() == [1.0]
    assert stacked.observation.shape == (1, 2)


def test_rewards_may_be_arrays_or_structures() -> None:
    mid = step(0, {"x": np.ones(2, np.float32)}, np.float32(0.5))
    stacked = stack([step(0, None, None, FIRST), mid])
    assert stacked.reward["x"].tolist() == [[0, 0], [1, 1]]
    assert stacked.reward["x"].dtype == np.float32
    assert stacked.discount.dtype == np.float32


def test_the_stack_is_a_copy() -> None:
    observation = np.zeros(2)
    stacked = stack([step(observation)])
    stacked.observation[:] = 1
    assert observation.tolist() == [0, 0]


def test_strings_and_messages_are_stacked_as_objects() -> None:
    texts = stack([step("a"), step("long" * 1000)]).observation
    assert texts.dtype == object
    assert texts.tolist() == ["a", "long" * 1000]
    message = any_pb2.Any(type_url="x")
    assert stack([step(message), step(message)]).observation.tolist() == [message, message]
    arrays = stack([step(np.array(["a"], object)), step(np.array(["bc"], object))]).observation
    assert arrays.tolist() == [["a"], ["bc"]]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [step(np.zeros(2)), step(np.zeros(3))],
        [step({"a": 1}), step({"b": 1})],
        [step({"a": 1}), step([1])],
        [step({"a": 1}), step(1)],
        [step(0, np.zeros(2)), step(0, np.zeros(3))],
        [step(0, 1.0, np.zeros(2)), step(0, 1.0, np.zeros(3))],
        [step(0, {"a": 1.0}), step(0, [1.0])],
    ],
)
def test_steps_of_different_structures_are_refused(steps: Any) -> None:
    with pytest.raises(SpecError, match="cannot"):
        stack(steps)
