from __future__ import annotations

from collections.abc import Callable, Iterator
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


@pytest.fixture
def export_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The export, to a folder of the test."""
    pytest.importorskip("minari")
    from dm_env_rpc_client.adaptors.minari import export_minari

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "data"))
    return export_minari
