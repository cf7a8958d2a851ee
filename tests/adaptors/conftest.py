"""Servers for several files."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dm_env_rpc_client.server import Catch, Server, serve
from tests.adaptors.walkers import Arm, Walker
from tests.support.environments import Robot


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve({"Walker": Walker, "Arm": Arm, "Catch": Catch, "Robot": Robot}) as server:
        yield server
        assert server.errors == []
