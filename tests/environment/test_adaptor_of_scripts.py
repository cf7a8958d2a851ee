"""The adaptor against scripted servers: what a server may do, and what it may not."""

from __future__ import annotations

import dm_env
import numpy as np
import pytest

from dm_env_rpc_client import (
    DmEnvRpcError,
    ProtocolError,
    dm_env_rpc_pb2,
    make,
    pack_tensor,
)
from dm_env_rpc_client.server import Server
from dm_env_rpc_client.testing import Request, Response
from tests.environment.one_world import (
    INTERRUPTED,
    RUNNING,
    TERMINATED,
    scripted,
    stepping,
)

LAST = dm_env.StepType.LAST


@pytest.mark.parametrize(("ending", "discount"), [(TERMINATED, 0.0), (INTERRUPTED, 1.0)])
def test_without_reward_and_discount_there_are_defaults(ending: int, discount: float) -> None:
    with scripted(RUNNING, RUNNING, ending) as server, make(server.address) as env:
        first, mid, last = (env.step({"a": 1}) for _ in range(3))
        assert (first.reward, first.discount) == (None, None)
        assert (mid.reward, mid.discount) == (0.0, 1.0)
        assert (last.step_type, last.reward, last.discount) == (LAST, 0.0, discount)
        env.reward_spec().validate(mid.reward)
        env.discount_spec().validate(mid.discount)


def test_reset_settings_rebuild_the_environment_with_new_specs(catch_server: Server) -> None:
    with make(catch_server.address, {"rows": 4, "columns": 3}) as env:
        assert env.reset().observation["board"].shape == (4, 3)
        env.step({"paddle": 1})
        timestep = env.reset({"columns": 9})
        assert timestep.first()
        assert timestep.observation["board"].shape == (4, 9)
        assert env.observation_spec()["board"].shape == (4, 9)
        with pytest.raises(DmEnvRpcError, match="colums"):
            env.reset({"colums": 2})
        assert env.step({"paddle": 1}).mid()


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (None, r"did not send the requested observation 'o' \(uid 4\)"),
        (pack_tensor([1.0, 2.0]), r"observation 'o' \(uid 4\): has dtype float64"),
        (pack_tensor([1, 2, 3], np.int32), r"observation 'o' \(uid 4\): has shape \[3\]"),
        (dm_env_rpc_pb2.Tensor(shape=[2]), r"observation 'o' \(uid 4\): the tensor has no"),
    ],
)
def test_an_observation_that_breaks_its_spec_is_told_by_its_path(
    tensor: dm_env_rpc_pb2.Tensor | None, text: str
) -> None:
    observations = {} if tensor is None else {4: tensor}
    with (
        scripted(answers={"step": stepping(observations)}) as server,
        make(server.address) as env,
        pytest.raises(ProtocolError, match=text),
    ):
        env.reset()


def test_observations_that_nobody_requested_are_left_alone() -> None:
    step = stepping({4: pack_tensor([1, 2], np.int32), 77: pack_tensor("unknown")})
    with scripted(answers={"step": step}) as server, make(server.address) as env:
        assert list(env.reset().observation) == ["o"]


def test_a_first_step_has_no_reward_even_where_the_server_sends_one() -> None:
    rewarding = dm_env_rpc_pb2.ActionObservationSpecs(
        observations={
            1: dm_env_rpc_pb2.TensorSpec(name="reward", dtype=dm_env_rpc_pb2.FLOAT),
            2: dm_env_rpc_pb2.TensorSpec(name="discount", dtype=dm_env_rpc_pb2.FLOAT),
        }
    )

    def join(request: Request) -> Response:
        return Response(join_world=dm_env_rpc_pb2.JoinWorldResponse(specs=rewarding))

    step = stepping({1: pack_tensor(3.0, np.float32), 2: pack_tensor(0.5, np.float32)})
    with (
        scripted(answers={"join_world": join, "step": step}) as server,
        make(server.address) as env,
    ):
        first, second = env.reset(), env.step({})
        assert (first.reward, first.discount, first.observation) == (None, None, {})
        assert (second.reward, second.discount, second.observation) == (3.0, 0.5, {})
