"""PyPI's dm-env-rpc as the peer, both ways: in processes of their own, and in one."""

from __future__ import annotations

from collections.abc import Iterator

import dm_env
import numpy as np
import pytest
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1 import error as reference_error

from dm_env_rpc_client import make
from dm_env_rpc_client.server import Catch, Server
from tests.compliance import playground
from tests.compliance.playground import LOWEST
from tests.environment.foreign.reference import reference_connection

FIRST, MID, LAST = dm_env.StepType


@pytest.fixture
def reference_address() -> Iterator[str]:
    """A server on the reference's modules."""
    with playground.serve() as address:
        yield address


def test_our_adaptor_drives_a_server_on_the_references_modules(reference_address: str) -> None:
    with make(reference_address) as env:
        np.testing.assert_array_equal(env.action_spec()["arm"]["force"].minimum, LOWEST)
        timestep = env.reset()
        for step in range(12):
            if step in (5, 11):
                assert timestep.step_type is LAST
                assert timestep.discount == 0.0
            else:
                assert timestep.step_type is (FIRST if step in (0, 6) else MID)
            timestep = env.step({"arm": {"force": LOWEST + 0.5}})
        assert timestep.step_type is FIRST
        env.step({"arm": {"force": LOWEST + 1}})
        mid = env.step({"arm": {"force": LOWEST + 1.5}, "speech": "hello"})
        np.testing.assert_array_equal(mid.observation["arm"]["force"], LOWEST + 1.5)
        assert mid.observation["heard"] == "hello"
        assert mid.reward == np.float32(2.0)
        assert env.reset().step_type is FIRST


def drive_with_the_reference(address: str) -> dict[str, object]:
    """Runs an episode of Catch with the reference's Connection and DmEnvAdaptor."""
    with reference_connection(address) as connection:
        env, world_name = reference_adaptor.create_and_join_world(
            connection, {"rows": 4, "seed": 0}, {}
        )
        kinds, rewards = [], []
        timestep = env.reset()
        for _ in range(9):
            kinds.append(int(timestep.step_type))
            rewards.append(None if timestep.reward is None else float(timestep.reward))
            timestep = env.step({"paddle": 1})
        refusal = ""
        try:
            connection.send(reference_pb2.JoinWorldRequest(world_name="nowhere"))
        except reference_error.DmEnvRpcError as error:
            refusal = error.message
        env.close()
        connection.send(reference_pb2.DestroyWorldRequest(world_name=world_name))
        return {
            "kinds": kinds,
            "rewards": rewards,
            "shape": list(env.observation_spec()["board"].shape),
            "actions": int(env.action_spec()["paddle"].num_values),
            "refusal": refusal,
        }


def check_driven(result: dict[str, object]) -> None:
    local = Catch(4, seed=0)
    expected = [local.reset(), *(local.step({"paddle": 1}) for _ in range(8))]
    assert result["kinds"] == [int(step.step_type) for step in expected]
    # The reference knows no reward at the end of a step that is FIRST either.
    assert result["rewards"] == [step.reward for step in expected]
    assert result["shape"] == [4, 5]
    assert result["actions"] == 3
    assert "not allowed" in str(result["refusal"])


def test_the_references_adaptor_drives_our_server_in_one_process(catch_server: Server) -> None:
    check_driven(drive_with_the_reference(catch_server.address))
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)
