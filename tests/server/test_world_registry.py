"""The worlds of a server that stops while one of them is being made."""

from __future__ import annotations

import pytest

from dm_env_rpc_client.server.errors import ErrorLog, RequestError
from dm_env_rpc_client.server.options import ServeOptions
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.server.worlds.world_registry import Share, WorldRegistry


def test_a_factory_that_fails_while_the_server_stops_says_why() -> None:
    def factory(rows: int) -> World:
        registry.close()
        raise ValueError("of the factory")

    registry = WorldRegistry(ServeOptions(environment=factory), ErrorLog(), Share())
    with pytest.raises(RequestError, match="of the factory"):
        registry.create({"rows": 3}, object())
