"""Interpreters and peers are made before the time of a test begins."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import pytest

from tests.launch.standalone.interpreters import VERSIONS, interpreter
from tests.peers.building import MissingToolchainError
from tests.peers.servers import BUILT


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    version = params.get("version") or params.get("python") or params.get("server")
    with contextlib.suppress(MissingToolchainError, RuntimeError, pytest.skip.Exception):
        # What is missing is said by the test.
        if version in VERSIONS:
            interpreter(version, *params.get("packages", "").split())
        if params.get("language") in BUILT:
            BUILT[params["language"]]()
    return (yield)
