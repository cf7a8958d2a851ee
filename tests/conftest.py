from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from dm_env_rpc_client.server import Catch, Server, serve
from dm_env_rpc_client.testing import ScriptedServer, echo
from tests.environments import Echo

# On a busy machine a slow example says nothing about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite-notebooks",
        action="store_true",
        help="write what tests of the notebooks see, outputs and pictures, into notebooks/",
    )


@pytest.fixture
def catch_server() -> Iterator[Server]:
    with serve(Catch) as server:
        yield server
        assert server.errors == []


@pytest.fixture
def echo_server() -> Iterator[ScriptedServer]:
    """Answers extensions with themselves."""
    with ScriptedServer(echo) as server:
        yield server


@pytest.fixture
def echo_environment_server() -> Iterator[Server]:
    """Serves an environment that observes its action."""
    with serve(Echo) as server:
        yield server
        assert server.errors == []
