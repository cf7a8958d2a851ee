"""dm_env's own tests, on a library here, in a child process, and through a server."""

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

    version = "1.4"

    def make_action_sequence(self) -> Iterator[Any]:
        for _ in range(13):
            yield self.make_action()


class HereTest(_Conformance, absltest.TestCase):
    def make_object_under_test(self) -> dm_env.Environment:
        library = compile_library("complete", self.version)
        return EnvCApiEnvironment(
            library, "complete_connect", version=self.version, settings=SETTINGS
        )


class HereWith22Test(HereTest):
    version = "2.2"


class ChildTest(_Conformance, absltest.TestCase):
    def make_object_under_test(self) -> dm_env.Environment:
        return environment_factory(
            compile_library("complete", self.version),
            "complete_connect",
            version=self.version,
            settings=SETTINGS,
            events_observation="events",
        )()


class ServedTest(_Conformance, absltest.TestCase):
    def make_object_under_test(self) -> dm_env.Environment:
        factory = environment_factory(
            compile_library("complete", self.version),
            "complete_connect",
            version=self.version,
            events_observation="events",
        )
        server = serve(factory)
        self.addCleanup(server.stop, 0.0)
        return dm_env_rpc_client.make(server.address, SETTINGS)


class ServedWith22Test(ServedTest):
    version = "2.2"
