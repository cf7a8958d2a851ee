"""The compliance classes that ship with PyPI's dm-env-rpc pass against our server."""

from __future__ import annotations

import abc
import unittest
from typing import Any

from dm_env_rpc.v1 import connection as reference_connection
from dm_env_rpc.v1 import tensor_utils
from dm_env_rpc.v1.compliance import (
    create_destroy_world,
    join_leave_world,
    reset,
    reset_world,
    step,
)

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.server import Catch, Server, serve


class _Served(unittest.TestCase, metaclass=abc.ABCMeta):
    """A world on our server, and the reference's connection to it."""

    environment: Any = Catch
    default_actions: Any = None

    def setUp(self) -> None:
        super().setUp()
        self._server: Server = serve(self.environment, default_actions=self.default_actions)
        self.addCleanup(self._server.stop, 0.0)
        self._connection = reference_connection.create_secure_channel_and_connect(
            self._server.address
        )
        self.addCleanup(self._close)
        created = self._connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        self._world_name = created.world_name

    def _close(self) -> None:
        # Its own close leaves a thread that waits for more requests.
        self._connection._stream._requests.put(None)
        self._connection.close()

    @property
    def connection(self) -> Any:
        return self._connection

    @property
    def world_name(self) -> str:
        return str(self._world_name)

    def join_world(self) -> Any:
        request = dm_env_rpc_pb2.JoinWorldRequest(world_name=self.world_name)
        return self.connection.send(request).specs


class TestCreateDestroyWorld(_Served, create_destroy_world.CreateDestroyWorld):
    required_world_settings: dict[str, Any] = {}  # noqa: RUF012
    has_multiple_world_support = True

    @property
    def invalid_world_settings(self) -> dict[str, Any]:
        return {"rows": tensor_utils.pack_tensor(-3), "colour": tensor_utils.pack_tensor("red")}


class TestJoinLeaveWorld(_Served, join_leave_world.JoinLeaveWorld):
    join_world = join_leave_world.JoinLeaveWorld.join_world

    @property
    def invalid_join_settings(self) -> dict[str, Any]:
        return {"name": tensor_utils.pack_tensor("x")}


class TestReset(_Served, reset.Reset):
    pass


class TestResetWorld(_Served, reset_world.ResetWorld):
    join_world = reset_world.ResetWorld.join_world


class TestStep(_Served, step.Step):
    def setUp(self) -> None:
        super().setUp()
        self._specs = self.join_world()

    @property
    def specs(self) -> Any:
        return self._specs


del _Served
