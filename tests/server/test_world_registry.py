"""The worlds of a server that stops while one of them is being made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.server.worlds.world_registry import UNNAMED, WorldRegistry


def test_a_factory_that_fails_while_the_server_stops_says_why() -> None:
    def factory(settings: Mapping[str, Any]) -> World:
        registry.close()
        raise ValueError("of the factory")

    registry = WorldRegistry({UNNAMED: factory}, 4, ErrorLog())
    with pytest.raises(ValueError, match="of the factory"):
        registry.create({"rows": 3}, object())
