"""PyPI's dm-env-rpc as the peer, both ways: in processes of their own, and in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import grpc
import numpy as np
import pytest
from absl.testing import absltest
from dm_env import test_utils
from dm_env_rpc.v1 import connection as references
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor
from dm_env_rpc.v1 import dm_env_rpc_pb2 as reference_pb2
from dm_env_rpc.v1 import error as reference_error

from dm_env_rpc_client import DmEnvAdaptor, make
from dm_env_rpc_client.client.connecting import Transport
from dm_env_rpc_client.server import Catch, Server, serve
from tests.compliance import playground
from tests.compliance.playground import LOWEST
from tests.environment.foreign.reference import reference_connection
from tests.support.environments import Robot

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


def test_the_references_adaptor_drives_our_server_in_one_process(catch_server: Server) -> None:
    local = Catch(4, seed=0)
    with reference_connection(catch_server.address) as connection:
        env, world_name = reference_adaptor.create_and_join_world(
            connection, {"rows": 4, "seed": 0}, {}
        )
        assert env.observation_spec()["board"].shape == (4, 5)
        assert env.action_spec()["paddle"].num_values == 3
        timestep, expected = env.reset(), local.reset()
        for _ in range(9):
            # The reference knows no reward at the end of a step that is FIRST either.
            assert (timestep.step_type, timestep.reward) == (expected.step_type, expected.reward)
            timestep, expected = env.step({"paddle": 1}), local.step({"paddle": 1})
        with pytest.raises(reference_error.DmEnvRpcError, match="not allowed"):
            connection.send(reference_pb2.JoinWorldRequest(world_name="nowhere"))
        env.close()
        connection.send(reference_pb2.DestroyWorldRequest(world_name=world_name))
    assert (catch_server.agent_count, catch_server.world_count) == (0, 0)


def joined_by_reference(
    case: absltest.TestCase, factory: Callable[..., dm_env.Environment], settings: dict[str, Any]
) -> dm_env.Environment:
    """Serves an environment and joins it with dm-env-rpc's own client."""
    server = serve(factory)
    case.addCleanup(server.stop, 0.0)
    connection = references.create_secure_channel_and_connect(
        server.address, grpc.local_channel_credentials()
    )
    case.addCleanup(connection.close)
    environment, _ = reference_adaptor.create_and_join_world(connection, settings, {})
    return environment


class CatchConformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    transport: Transport = "http2"

    def make_object_under_test(self) -> dm_env.Environment:
        server = serve(Catch)
        self.addCleanup(server.stop, 0.0)
        return make(server.address, {"rows": 5}, transport=self.transport)

    def make_action_sequence(self) -> Iterator[Any]:
        """Reaches LAST twice and begins a third sequence."""
        for step in range(11):
            yield {"paddle": np.int32(step % 3)}

    def test_the_action_sequence_reaches_last(self) -> None:
        self.environment.reset()
        assert any(self.environment.step(action).last() for action in self.make_action_sequence())


class CatchFromReferenceClientConformance(CatchConformance):
    """FIRST has no discount for a client that takes the observation `discount` as it comes."""

    def make_object_under_test(self) -> dm_env.Environment:
        return joined_by_reference(self, Catch, {"rows": 5})


class RobotConformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self) -> DmEnvAdaptor:
        server = serve(Robot)
        self.addCleanup(server.stop, 0.0)
        return make(server.address)
