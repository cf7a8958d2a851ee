"""Sequences, errors and pipelining against servers in other languages."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from dm_env import StepType

from dm_env_rpc_client import DmEnvRpcError, dm_env_rpc_pb2, make
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


def test_refused_steps_among_others_fail_alone(make_environment: MakeEnvironment) -> None:
    env = make_environment(requested_observations=["steps"])
    env.reset()
    connection = env._connection
    assert connection is not None
    pending = [
        connection.submit(dm_env_rpc_pb2.StepRequest(requested_observations=[12 if even else 99]))
        for even in (True, False) * 50
    ]
    for number, future in enumerate(pending):
        if number % 2:
            with pytest.raises(DmEnvRpcError, match="99"):
                future.result(10)
        else:
            assert future.result(10).observations[12].int64s.array == [number // 2 + 1]


def test_the_metadata_of_the_call_arrive(make_environment: MakeEnvironment) -> None:
    env = make_environment(metadata=[("x-user", "me: and =you"), ("x-token-bin", b"\0\xff\x80")])
    seen = set(env.reset().observation["metadata"])
    assert {"x-user=me: and =you", "x-token-bin=00ff80"} <= seen


@pytest.mark.parametrize(
    ("peer", "count"),
    [("cpp", 64), ("go", 64), pytest.param("cpp", 256, marks=pytest.mark.slow)],
    indirect=["peer"],
)
def test_many_connections_at_once(address: str, transport: Any, count: int) -> None:
    settings = {"shape": np.zeros(0, np.int32)}
    with contextlib.ExitStack() as stack:
        envs = [
            stack.enter_context(
                make(address, settings, transport=transport, requested_observations=["int32"])
            )
            for _ in range(count)
        ]
        for env in envs:
            env.reset()
        for step in range(2):
            futures = [env.step_async({"int32": step + n}) for n, env in enumerate(envs)]
            seen = [future.result(30).observation["int32"] for future in futures]
            assert seen == [step + n for n in range(count)]
