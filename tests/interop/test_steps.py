"""Sequences, errors, pipelining and values against servers in other languages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import StepType
from google.protobuf import any_pb2

from tests.interop.conftest import MakeEnvironment

FIRST, MID, LAST = StepType


@pytest.mark.parametrize("length", [0, 10])
def test_1000_steps_are_in_flight_and_none_is_mixed_up(
    make_environment: MakeEnvironment, length: int
) -> None:
    env = make_environment({"length": length}, requested_observations=["int64", "steps"])
    futures = [env.step_async({"int64": [number]}) for number in range(1000)]
    timesteps = [future.result(30) for future in futures]
    for number, timestep in enumerate(timesteps):
        is_first = number % (length + 1) == 0 if length else number == 0
        assert timestep.first() == is_first
        assert list(timestep.observation["int64"]) == ([] if is_first else [number])


def test_the_metadata_of_the_call_arrive(make_environment: MakeEnvironment) -> None:
    env = make_environment(metadata=[("x-user", "me: and =you"), ("x-token-bin", b"\0\xff\x80")])
    seen = set(env.reset().observation["metadata"])
    assert {"x-user=me: and =you", "x-token-bin=00ff80"} <= seen


F32, F64 = np.finfo(np.float32), np.finfo(np.float64)

VALUES: dict[str, Any] = {
    "float": np.array([0, -0.0, 1.5, F32.max, F32.min, F32.tiny, F32.smallest_subnormal], "f4"),
    "double": np.array([0, -0.0, 1.5, F64.max, F64.min, F64.tiny, F64.smallest_subnormal]),
    "int8": np.arange(-128, 128, dtype=np.int8),
    "int32": np.array([0, 1, -1, 127, 128, -129, 2**31 - 1, -(2**31)], np.int32),
    "int64": np.array([0, 1, -1, 127, 128, -129, 2**53 + 1, 2**63 - 1, -(2**63)], np.int64),
    "uint8": np.arange(256, dtype=np.uint8),
    "uint32": np.array([0, 1, 127, 128, 2**31, 2**32 - 1], np.uint32),
    "uint64": np.array([0, 1, 127, 128, 2**53 + 1, 2**63, 2**64 - 1], np.uint64),
    "bool": np.array([True, False, True, True]),
    "string": np.array(["", "a", "\0", "grüße", "環境", "🤖" * 1000, "two\nlines"], object),
    "proto": np.array([any_pb2.Any(type_url="x/y", value=b"\0\xff"), any_pb2.Any()], object),
}
NO_NUMBERS = ("string", "proto")
MIB = 2**20


def check_same(seen: Any, sent: Any) -> None:
    """Equal bit for bit, dtype and shape included."""
    assert seen.dtype == sent.dtype
    assert seen.shape == sent.shape
    if sent.dtype == object:
        assert seen.tolist() == sent.tolist()
    else:
        assert seen.tobytes() == sent.tobytes()


def test_all_dtypes_come_back_together(make_environment: MakeEnvironment) -> None:
    env = make_environment()
    env.reset()
    observation = env.step(VALUES).observation
    for dtype, value in VALUES.items():
        check_same(observation[dtype], value)


def test_empty_arrays_come_back(make_environment: MakeEnvironment) -> None:
    env = make_environment()
    first = env.reset().observation
    for dtype in VALUES:
        assert first[dtype].shape == (0,)
        empty = np.zeros(0, env.action_spec()[dtype].dtype)
        check_same(env.step({dtype: empty}).observation[dtype], empty)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (1, 1, 1, 5)])
def test_shapes_come_back(make_environment: MakeEnvironment, shape: tuple[int, ...]) -> None:
    env = make_environment({"shape": np.array(shape, np.int32)})
    assert np.shape(env.reset().observation["int64"]) == shape
    sent = {
        dtype: np.resize(value, shape) for dtype, value in VALUES.items() if dtype not in NO_NUMBERS
    }
    observation = env.step(sent).observation
    for dtype, value in sent.items():
        assert np.shape(observation[dtype]) == shape
        assert np.array_equal(observation[dtype], value)


# gRPC takes messages of 4 MiB unless it is told otherwise. Not much more, since Node computes for
# long with millions of numbers, and answers no pings meanwhile: on a busy machine it would be lost.
@pytest.mark.parametrize("mib", [5, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["uint8", "float"])
def test_large_arrays_go_both_ways(make_environment: MakeEnvironment, dtype: str, mib: int) -> None:
    env = make_environment(requested_observations=[dtype])
    env.reset()
    sent: Any = np.resize(np.arange(251, dtype=np.uint8), mib * MIB)
    if dtype == "float":
        sent = (sent.view(np.uint32) >> 9).view(np.float32)
    check_same(env.step({dtype: sent}).observation[dtype], sent)
