"""TimeSteps from states, stacks of them, and answers that are read together."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import pytest
from google.protobuf import any_pb2
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import SpecError
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.protocol.step_codec import StepCodec
from dm_env_rpc_client.protocol.step_layout import UnreadStep
from dm_env_rpc_client.protocol.timesteps import MidSteps, stack
from tests.protocol.test_step_codec import codec_of, response
from tests.tensors.strategies import same_bits

DTYPES = ["float32", "float64", "uint8", "int8"]
SHAPES = [(), (1,), (2, 3), (40, 40)]


def taken(codec: StepCodec, message: bytes) -> UnreadStep:
    codec.decode(message)
    step = codec.decode(bytearray(message))
    assert isinstance(step, UnreadStep)
    return step


def random_value(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    array = rng.integers(0, 100, shape).astype(dtype)
    return array if shape else array[()]


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), max_size=4),
    st.sampled_from([[0], [0, 1, 2], [4, 1], [2, 3, 4], [0, 2, 4]]),
    st.integers(0, 1 << 30),
    st.booleans(),
)
def test_rows_have_the_values_of_each_step(
    kinds: list[tuple[str, tuple[int, ...]]], rows: list[int], seed: int, is_text: bool
) -> None:
    rng = np.random.default_rng(seed)
    first: dict[int, Any] = {
        uid: random_value(dtype, shape, rng) for uid, (dtype, shape) in enumerate(kinds, 1)
    }
    first[9] = "the same" if is_text else np.float32(3)
    codec = codec_of(first)
    steps = []
    for _ in rows:
        values = {
            uid: random_value(dtype, shape, rng) for uid, (dtype, shape) in enumerate(kinds, 1)
        }
        steps.append(taken(codec, response({**values, 9: first[9]})))
    alone = [step.read() for step in steps]
    mid = MidSteps(steps)
    assert len(mid) == len(rows)
    consecutive = rows == list(range(rows[0], rows[0] + len(rows)))
    selections: list[Any] = [rows]
    if consecutive:
        selections.append(slice(rows[0], rows[0] + len(rows)))
    for uid, value in first.items():
        name = f"n{uid}"
        missing = np.zeros(5)
        mid.put(f"{name}.other", missing, rows, 7.0)
        assert sorted(np.flatnonzero(missing == 7.0)) == sorted(rows)
        for read, own in zip(mid.values(name), alone, strict=True):
            assert read == own[name] if isinstance(value, str) else same_bits(read, own[name])
        for at in selections:
            for dtype in [object] if isinstance(value, str) else [value.dtype, np.float64]:
                table = np.zeros((5, *np.shape(value)), dtype)
                mid.put(name, table, at, 7.0)
                for row, own in zip(rows, alone, strict=True):
                    np.testing.assert_array_equal(table[row], own[name])
                others = [row for row in range(5) if row not in rows]
                assert not np.any(table[others])


def test_values_keep_no_message_in_memory() -> None:
    codec = codec_of({1: np.zeros((40, 40)), 2: np.float32(0)})
    messages = [
        response({1: np.full((40, 40), value), 2: np.float32(value)}) for value in (1.0, 2.0)
    ]
    mid = MidSteps([taken(codec, message) for message in messages])
    for value, array in zip((1.0, 2.0), mid.values("n1"), strict=True):
        assert array.base is None or array.base.nbytes < 2 * array.nbytes
        assert array.flags.writeable
        np.testing.assert_array_equal(array, np.full((40, 40), value))


@pytest.mark.parametrize(
    "values",
    [
        {1: np.bool_(True)},
        {1: np.ones(3, bool)},
        {1: np.int32(5)},
        {1: np.arange(3)},
        {1: np.zeros((0,), np.float32)},
        {1: np.array(["a", "b"], object)},
        {1: "x" * 2000},
    ],
)
def test_values_that_may_come_in_several_forms_are_read_at_once(values: dict[int, Any]) -> None:
    codec = codec_of(values)
    for _ in range(3):
        assert not isinstance(codec.decode(bytearray(response(values))), UnreadStep)


def test_an_empty_array_of_variable_shape_is_a_part_of_the_form_until_it_has_elements() -> None:
    first = {1: np.zeros((0, 2), np.uint8), 2: np.float32(0)}
    codec = codec_of(first, {1: (-1, 2)})
    step = taken(codec, response(first))
    rows = np.full(3, None, object)
    mid = MidSteps([step, step])
    mid.put("n1", rows, [0, 2])
    assert rows[1] is None
    found = [rows[0], rows[2], *mid.values("n1"), step.read()["n1"], step.read()["n1"]]
    for array in found:
        assert (array.shape, array.dtype) == ((0, 2), np.uint8)
        assert array.flags.writeable
    assert len(set(map(id, found))) == len(found)
    for shape in ((1, 2), (0, 2), (2, 2), (0, 2), (0, 0)):
        values = {1: np.ones(shape, np.uint8), 2: np.float32(5)}
        decoded = codec.decode(bytearray(response(values)))
        assert isinstance(decoded, UnreadStep) == (shape == (0, 2))
        if shape[1]:
            answer = codec.interpret(decoded)
            np.testing.assert_array_equal(answer.observations["n1"], values[1])
            assert answer.observations["n1"].shape == shape
            assert answer.observations["n2"] == 5
        else:  # Another shape of the same size is not that of the form.
            with pytest.raises(ProtocolError, match="violated its own specs"):
                codec.interpret(decoded)


def test_a_text_that_changes_is_read() -> None:
    codec = codec_of({1: "", 2: np.float32(0)})
    seen = []
    for text in ("", "", "ab", "cd", "ab", "ab", ""):
        answer = codec.interpret(codec.decode(bytearray(response({1: text, 2: np.float32(7)}))))
        seen.append(answer.observations["n1"])
        assert answer.observations["n2"] == 7
    assert seen == ["", "", "ab", "cd", "ab", "ab", ""]


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
