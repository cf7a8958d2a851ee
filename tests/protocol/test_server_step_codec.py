"""The server's codec of steps: equal to the way through messages, on valid and on changed bytes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dm_env_rpc_client import (
    Limits,
    SpecError,
    SpecManager,
    dm_env_rpc_pb2,
    pack_tensor,
    set_bounds,
)
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.server_step_codec import ServerStepCodec, StepAsked
from dm_env_rpc_client.protocol.step_codec import StepCodec
from dm_env_rpc_client.protocol.step_layout import StepAnswer
from tests.protocol.test_step_codec import shown, spec
from tests.tensors import strategies

TensorSpec = dm_env_rpc_pb2.TensorSpec
EnvironmentRequest = dm_env_rpc_pb2.EnvironmentRequest
EnvironmentResponse = dm_env_rpc_pb2.EnvironmentResponse


def _integers(name: str, low: int, high: int, *shape: int) -> Any:
    made = TensorSpec(name=name, dtype=dm_env_rpc_pb2.INT64, shape=shape)
    set_bounds(made, low, high)
    return made


SPECS = {
    1: TensorSpec(name="move", dtype=dm_env_rpc_pb2.INT32),
    2: TensorSpec(name="torque", dtype=dm_env_rpc_pb2.FLOAT, shape=[3]),
    3: TensorSpec(name="text", dtype=dm_env_rpc_pb2.STRING),
    4: TensorSpec(name="mask", dtype=dm_env_rpc_pb2.BOOL, shape=[2, 2]),
    5: TensorSpec(name="any", dtype=dm_env_rpc_pb2.INT64, shape=[-1]),
    6: _integers("discrete", 0, 1, 16),
    7: TensorSpec(name="torques", dtype=dm_env_rpc_pb2.FLOAT, shape=[3]),
    8: _integers("grid", -5, 300, 2, 3),
    9: _integers("most", 0, 127, 4),
    10: _integers("more", 0, 128, 4),
    300: TensorSpec(name="reward", dtype=dm_env_rpc_pb2.DOUBLE),
    301: TensorSpec(name="image", dtype=dm_env_rpc_pb2.UINT8, shape=[8, 8, 3]),
    302: TensorSpec(name="none", dtype=dm_env_rpc_pb2.FLOAT, shape=[0, 3]),
}
set_bounds(SPECS[1], -5, 5)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "move": st.integers(-5, 5) | st.integers(-5, 5).map(np.int32),
    "torque": arrays(np.float32, 3, elements=st.floats(-1, 1, width=32)),
    "text": st.text(max_size=5),
    "mask": arrays(np.bool_, (2, 2)),
    "any": arrays(np.int64, st.integers(0, 4)),
    "discrete": arrays(np.int64, 16, elements=st.integers(0, 1)),
    "torques": arrays(np.float32, 3, elements=st.floats(-1, 1, width=32)),
    "grid": arrays(np.int64, (2, 3), elements=st.integers(-5, 300)),
    "most": arrays(np.int64, 4, elements=st.integers(0, 127)),
    "more": arrays(np.int64, 4, elements=st.integers(0, 128)),
    "reward": st.floats(allow_nan=False, allow_infinity=False),
    "image": arrays(np.uint8, (8, 8, 3)),
    "none": st.just(np.empty((0, 3), np.float32)),
}
STATES = [State.RUNNING, State.TERMINATED, State.INTERRUPTED]
SOME = st.sets(st.sampled_from(sorted(VALUES)))


def chosen(data: st.DataObject) -> dict[str, Any]:
    return {name: data.draw(VALUES[name]) for name in data.draw(SOME)}


def managers() -> tuple[SpecManager, SpecManager]:
    return SpecManager(SPECS, "action"), SpecManager(SPECS, "observation")


def codec() -> ServerStepCodec:
    return ServerStepCodec(*managers(), Limits())


def answer_of(values: Any, state: State = State.RUNNING) -> dm_env_rpc_pb2.EnvironmentResponse:
    """A step's answer with tensors, as a message."""
    step = dm_env_rpc_pb2.StepResponse(state=state.name, observations=values)
    return EnvironmentResponse(step=step)


def through_messages(message: bytes) -> StepAsked | None:
    """What the session does without the codec; None where it refuses or it is no step."""
    actions, observations = managers()
    try:
        request = EnvironmentRequest.FromString(message)
    except Exception:
        return None
    if request.WhichOneof("payload") != "step":
        return None
    try:
        uids = dict.fromkeys(request.step.requested_observations)
        names = tuple(map(observations.uid_to_name, uids))
        unpacked = actions.unpack(request.step.actions)
        for name, value in unpacked.items():
            actions.field(name).conform(value)
    except SpecError:
        return None
    return StepAsked(unpacked, names)


@given(st.data())
def test_requests_of_a_client_are_read_one_after_another(data: st.DataObject) -> None:
    """Requests that differ only in their elements are read by the layout of those before."""
    server = codec()
    asked_for = [[], [1], [1, 4, 300]]
    clients = [StepCodec(*managers(), requested) for requested in asked_for]
    choices = [data.draw(SOME) for _ in range(2)]
    for _ in range(6):
        values = {name: data.draw(VALUES[name]) for name in data.draw(st.sampled_from(choices))}
        message = data.draw(st.sampled_from(clients)).encode(values).message
        expected = through_messages(message)
        assert expected is not None
        for _ in range(2):  # The second time it may be known.
            asked = server.decode(message)
            assert asked is not None
            assert shown(asked.actions) == shown(expected.actions)
            assert asked.requested == expected.requested
        # The writer's bytes are protobuf's, whichever way it has taken.
        sent = EnvironmentRequest.FromString(message).step.actions
        assert sent == managers()[0].pack(values)


REQUESTED = {
    1: np.int32(3), 2: np.ones(3, np.float32), 4: np.eye(2, dtype=bool), 5: np.arange(3),
    6: np.ones(16, np.int64), 8: np.zeros((2, 3), np.int64), 9: np.zeros(4, np.int64),
}  # fmt: skip
"""Actions by UID, in each form that has a reader of its own; texts are read through messages."""


def changed_requests(count: int) -> Iterator[bytes]:
    """Yields requests of which one bit is changed, each bit in turn; then `count` with changes."""
    names = managers()[0].uid_to_name
    requests = [
        StepCodec(*managers(), [1, 300]).encode({names(uid): REQUESTED[uid] for uid in uids})
        for uids in ([1], [2, 4], [1, 2, 4, 5], [2, 6], [8, 4, 9], [])
    ]
    messages = [request.message for request in requests]
    for message in messages:
        for place, bit in itertools.product(range(len(message)), range(8)):
            yield bytes((*message[:place], message[place] ^ 1 << bit, *message[place + 1 :]))
    rng = random.Random(33)
    for _ in range(count):
        message = strategies.mutated(rng.choice(messages), rng)
        yield message[: rng.choice([None, rng.randrange(len(message) + 1)])]


@strategies.counts(100_000)
def test_changed_requests_are_read_as_messages_are_or_not_at_all(count: int) -> None:
    server = codec()
    reached = 0
    for message in changed_requests(count):
        asked = server.decode(message)
        if asked is not None:
            reached += 1
            expected = through_messages(message)
            assert expected is not None, message
            assert shown(asked.actions) == shown(expected.actions), message
            assert asked.requested == expected.requested, message
    print(f"{count} changed requests and each bit, {reached} of them read")
    assert reached > 200


@given(st.data(), st.sampled_from(STATES))
def test_answers_are_what_protobuf_makes_of_the_same_values(
    data: st.DataObject, state: State
) -> None:
    values = chosen(data)
    message = codec().encode(state, values)
    packed = managers()[1].pack(values)
    assert EnvironmentResponse.FromString(message) == answer_of(packed, state)
    client = StepCodec(*managers(), sorted(packed))
    answer = client.interpret(client.decode(bytearray(message)))
    assert isinstance(answer, StepAnswer)
    assert shown(answer.observations) == shown(managers()[1].unpack(packed))


@given(strategies.arrays(0))
def test_arrays_of_any_layout_are_sent_as_they_are(array: Any) -> None:
    value = np.asarray(array)
    manager = SpecManager({1: spec("a", value)}, "observation")
    server = ServerStepCodec(SpecManager({}, "action"), manager, Limits())
    forms = [value]
    if value.ndim:
        forms += [value[::-1].copy()[::-1], np.asfortranarray(value)]
    expected = answer_of({1: pack_tensor(value)})
    for form in forms:
        message = server.encode(State.RUNNING, {"a": form})
        # As bytes: NaN is not equal to itself.
        answer = EnvironmentResponse.FromString(message)
        assert answer.SerializeToString() == expected.SerializeToString()


def test_values_out_of_range_are_sent_and_wrong_ones_are_not() -> None:
    server = codec()
    assert server.encode(State.RUNNING, {"move": 100, "reward": float("nan")})
    for wrong in ({"move": 1.5}, {"torque": np.zeros(2, np.float32)}, {"nothing": 1}):
        with pytest.raises(SpecError):
            server.encode(State.RUNNING, wrong)


def test_texts_are_sent_as_they_are_again_and_again() -> None:
    server = codec()
    texts = ["", "\N{SNOWMAN}", "x" * 65, *map(str, range(40)), "\0", "1", ""]
    image = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    for text in texts * 2:
        # Beside a text, whose size changes, an array is written with its own size in bytes.
        values = {"text": text, "image": image[::-1], "reward": 0.5, "torque": np.ones(3)}
        answer = EnvironmentResponse.FromString(server.encode(State.RUNNING, values))
        assert answer == answer_of(managers()[1].pack(values))
        with pytest.raises(SpecError, match=r"observation 'text' \(uid 3\)"):
            server.encode(State.RUNNING, {"text": "\ud800"})


def test_a_float_that_float32_cannot_hold_is_an_error() -> None:
    manager = SpecManager({1: spec("reward", np.float32(0))}, "observation")
    server = ServerStepCodec(SpecManager({}, "action"), manager, Limits())
    assert server.encode(State.RUNNING, {"reward": 1.5})
    with pytest.raises(SpecError, match=r"observation 'reward' \(uid 1\)"):
        server.encode(State.RUNNING, {"reward": 1e300})


def test_each_request_has_arrays_of_its_own() -> None:
    """An environment may write into an array that it was given."""
    server, client = codec(), StepCodec(*managers(), [1])
    for number in (0, 0, 1, 2):  # Known, and of the same layout.
        values = {"torque": np.full(3, number, np.float32), "discrete": np.ones(16, np.int64)}
        asked = server.decode(client.encode(values).message)
        assert asked is not None
        assert asked.actions["torque"].tolist() == [number] * 3
        assert asked.actions["discrete"].tolist() == [1] * 16
        asked.actions["torque"][:] = asked.actions["discrete"][:] = 7


def test_a_request_of_the_same_size_with_another_action_is_not_taken_for_it() -> None:
    server, client = codec(), StepCodec(*managers(), [1])
    for name in ("torque", "torques", "torque"):
        asked = server.decode(client.encode({name: np.ones(3, np.float32)}).message)
        assert asked is not None
        assert list(asked.actions) == [name]


def test_an_action_out_of_range_is_refused_at_either_end() -> None:
    server, client = codec(), StepCodec(*managers(), [1])
    good = client.encode({"discrete": np.ones(16, np.int64)}).message
    assert server.decode(good) is not None
    assert server.decode(good.replace(bytes([1] * 16), bytes([2] * 16))) is None
    for wrong in (2, -1, 257, 2**32 + 1):
        with pytest.raises(SpecError, match="discrete"):
            client.encode({"discrete": np.full(16, wrong)})
    # Of any memory layout and dtype that fits.
    for values in (np.ones((32,), np.int64)[::2], [1] * 16, np.ones(16, np.uint8), np.ones(16)):
        assert client.encode({"discrete": values}).message == good


@pytest.mark.parametrize(("uid", "value"), [(1, np.int32(6)), (2, np.full(3, np.nan, np.float32))])
def test_actions_out_of_range_are_left_to_messages(uid: int, value: Any) -> None:
    request = dm_env_rpc_pb2.StepRequest(actions={uid: pack_tensor(value)})
    message = EnvironmentRequest(step=request).SerializeToString()
    assert codec().decode(message) is None
