"""Requests that differ only in their elements: read by their layout as through messages."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dm_env_rpc_client import Limits, SpecError, SpecManager, dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.protocol.server_step_codec import ServerStepCodec
from dm_env_rpc_client.protocol.step_codec import StepCodec
from tests.protocol.test_server_step_codec import through_messages
from tests.protocol.test_step_codec import shown
from tests.tensors.strategies import mutated

TensorSpec = dm_env_rpc_pb2.TensorSpec
EnvironmentRequest = dm_env_rpc_pb2.EnvironmentRequest


def _integers(name: str, low: int, high: int, *shape: int) -> Any:
    spec = TensorSpec(name=name, dtype=dm_env_rpc_pb2.INT64, shape=shape)
    spec.min.int64s.array.append(low)
    spec.max.int64s.array.append(high)
    return spec


SPECS = {
    1: _integers("discrete", 0, 1, 16),
    2: TensorSpec(name="torque", dtype=dm_env_rpc_pb2.FLOAT, shape=[3]),
    3: _integers("grid", -5, 300, 2, 3),
    4: TensorSpec(name="mask", dtype=dm_env_rpc_pb2.BOOL, shape=[2, 2]),
    5: _integers("most", 0, 127, 4),
    6: _integers("more", 0, 128, 4),
    7: TensorSpec(name="torques", dtype=dm_env_rpc_pb2.FLOAT, shape=[3]),
}
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "discrete": arrays(np.int64, 16, elements=st.integers(0, 1)),
    "torque": arrays(np.float32, 3, elements=st.floats(-1, 1, width=32)),
    "grid": arrays(np.int64, (2, 3), elements=st.integers(-5, 300)),
    "mask": arrays(np.bool_, (2, 2)),
    "most": arrays(np.int64, 4, elements=st.integers(0, 127)),
    "more": arrays(np.int64, 4, elements=st.integers(0, 128)),
    "torques": arrays(np.float32, 3, elements=st.floats(-1, 1, width=32)),
}


def managers() -> tuple[SpecManager, SpecManager]:
    return SpecManager(SPECS, "action"), SpecManager(SPECS, "observation")


def check(server: ServerStepCodec, message: bytes, must_be_read: bool = False) -> None:
    asked, expected = server.decode(message), through_messages(message, managers)
    if must_be_read:
        assert asked is not None
    if asked is not None:
        assert expected is not None
        assert shown(asked.actions) == shown(expected.actions)
        assert asked.requested == expected.requested


@given(st.data())
def test_one_request_after_another(data: st.DataObject) -> None:
    server = ServerStepCodec(*managers(), Limits())
    choices = [
        (data.draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, min_size=1)), requested)
        for requested in ([1], [1, 2, 4])
    ]
    client = {tuple(asked): StepCodec(*managers(), asked) for asked in ([1], [1, 2, 4])}
    for _ in range(8):
        names, requested = data.draw(st.sampled_from(choices))
        values = {name: data.draw(VALUES[name]) for name in names}
        message = client[tuple(requested)].encode(values).message
        check(server, message, must_be_read=True)
        # The writer's bytes are protobuf's, whichever way it has taken.
        request = EnvironmentRequest.FromString(message).step
        actions, _ = managers()
        for name, value in values.items():
            assert request.actions[actions.name_to_uid(name)] == pack_tensor(value)


def test_each_request_has_arrays_of_its_own() -> None:
    server, client = ServerStepCodec(*managers(), Limits()), StepCodec(*managers(), [1])
    for number in range(3):
        values = {"torque": np.full(3, number, np.float32), "discrete": np.ones(16, np.int64)}
        asked = server.decode(client.encode(values).message)
        assert asked is not None
        for array in asked.actions.values():
            assert array.flags.writeable
        assert asked.actions["torque"].tolist() == [number] * 3
        asked.actions["torque"][:] = asked.actions["discrete"][:] = 7


@pytest.mark.parametrize("names", [["torque"], ["torque", "discrete"], ["grid", "mask", "most"]])
def test_changed_bytes_are_read_as_through_messages(names: list[str]) -> None:
    chooser = random.Random(3)
    server, client = ServerStepCodec(*managers(), Limits()), StepCodec(*managers(), [1, 2])
    zeros = {
        "torque": np.zeros(3, np.float32),
        "discrete": np.zeros(16, np.int64),
        "grid": np.zeros((2, 3), np.int64),
        "mask": np.zeros((2, 2), np.bool_),
        "most": np.zeros(4, np.int64),
    }
    message = client.encode({name: zeros[name] for name in names}).message
    check(server, message, must_be_read=True)
    for at in range(len(message)):
        for value in (0, 1, message[at] ^ 1, 0x7F, 0x80, 0xFF):
            check(server, message[:at] + bytes([value]) + message[at + 1 :])
    for _ in range(2_000):
        check(server, mutated(message, chooser))


def test_a_request_of_the_same_size_with_another_action_is_not_taken_for_it() -> None:
    server, client = ServerStepCodec(*managers(), Limits()), StepCodec(*managers(), [1])
    for name in ("torque", "torques", "torque"):
        asked = server.decode(client.encode({name: np.ones(3, np.float32)}).message)
        assert asked is not None
        assert list(asked.actions) == [name]


def test_an_action_out_of_range_is_refused_at_either_end() -> None:
    server, client = ServerStepCodec(*managers(), Limits()), StepCodec(*managers(), [1])
    good = client.encode({"discrete": np.ones(16, np.int64)}).message
    assert server.decode(good) is not None
    assert server.decode(good.replace(bytes([1] * 16), bytes([2] * 16))) is None
    for wrong in (2, -1, 257, 2**32 + 1):
        with pytest.raises(SpecError, match="discrete"):
            client.encode({"discrete": np.full(16, wrong)})
    # Of any memory layout and dtype that fits.
    for values in (np.ones((32,), np.int64)[::2], [1] * 16, np.ones(16, np.uint8), np.ones(16)):
        assert client.encode({"discrete": values}).message == good
