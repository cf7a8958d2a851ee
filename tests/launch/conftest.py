from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launch.docker_daemon import Daemon
from tests.support.scripted import settles


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """The stand-in for Docker, at whose end no container is left."""
    with contextlib.closing(Daemon(tmp_path)) as stand_in:
        monkeypatch.setenv("DOCKER_HOST", stand_in.host)
        monkeypatch.setenv("PATH", str(stand_in.path), prepend=os.pathsep)
        yield stand_in
        assert settles(lambda: not stand_in.containers, 20)
        assert all(each.process is None or each.has_ended.is_set() for each in stand_in.created)
