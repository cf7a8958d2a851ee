"""dm_env's own conformance tests, on the adaptor over real gRPC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from absl.testing import absltest
from dm_env import test_utils

from dm_env_rpc_client import DmEnvAdaptor, make
from dm_env_rpc_client.client.connection import Transport
from dm_env_rpc_client.server import Catch, serve
from tests.environments import Robot


class CatchConformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    transport: Transport = "http2"

    def make_object_under_test(self) -> DmEnvAdaptor:
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


class CatchOverGrpcioConformance(CatchConformance):
    transport: Transport = "grpc"


class RobotConformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self) -> DmEnvAdaptor:
        server = serve(Robot)
        self.addCleanup(server.stop, 0.0)
        return make(server.address)


class FlatRobotConformance(test_utils.EnvironmentTestMixin, absltest.TestCase):
    def make_object_under_test(self) -> DmEnvAdaptor:
        server = serve(Robot)
        self.addCleanup(server.stop, 0.0)
        return make(server.address, nested_tensors=False, requested_observations=["camera.*"])
