"""dm_env's own conformance tests, on the adaptor over real gRPC."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import grpc
import numpy as np
from absl.testing import absltest
from dm_env import test_utils
from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import dm_env_adaptor as reference_adaptor

from dm_env_rpc_client import DmEnvAdaptor, make
from dm_env_rpc_client.client.connecting import Transport
from dm_env_rpc_client.server import Catch, serve
from tests.support.environments import Robot


def joined_by_reference(
    case: absltest.TestCase, factory: Callable[..., dm_env.Environment], settings: dict[str, Any]
) -> dm_env.Environment:
    """Serves an environment and joins it with dm-env-rpc's own client."""
    server = serve(factory)
    case.addCleanup(server.stop, 0.0)
    connection = reference_connection.create_secure_channel_and_connect(
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
