"""dm_env's own tests, on a library here, and in a child process of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dm_env
from absl.testing import absltest
from dm_env import test_utils

import dm_env_rpc_client
from dm_env_rpc_client.bridges.env_c_api import EnvCApiEnvironment, environment_factory
from dm_env_rpc_client.server import serve
from tests.bridges.env_c_api.compiling import compile_library

SETTINGS = {"length": 5}


class _Conformance(test_utils.EnvironmentTestMixin):
    """Runs past the end of episodes, which are 5 steps long."""

    def make_action_sequence(self) -> Iterator[Any]:
        for _ in range(13):
            yield self.make_action()


class HereTest(_Conformance, absltest.TestCase):
    def make_object_under_test(self) -> dm_env.Environment:
        library = compile_library("complete", "2.2")
        return EnvCApiEnvironment(library, "complete_connect", version="2.2", settings=SETTINGS)


class ServedTest(_Conformance, absltest.TestCase):
    """Each world is in a child process."""

    def make_object_under_test(self) -> dm_env.Environment:
        library = compile_library("complete", "1.4")
        server = serve(
            environment_factory(library, "complete_connect", events_observation="events")
        )
        self.addCleanup(server.stop, 0.0)
        return dm_env_rpc_client.make(server.address, SETTINGS)
