from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dm_env_rpc_client.server import Catch, Server, serve


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(Catch) as running:
        yield running


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.mcap"
