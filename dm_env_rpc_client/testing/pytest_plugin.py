"""Options and fixtures for pytest. What they do is in `fixtures.py`, imported when used.

If this package is installed, every pytest run loads this file. It therefore imports only pytest
and the table of options, which imports only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from dm_env_rpc_client.compliance.options import FLAGS, Kind

if TYPE_CHECKING:
    from dm_env_rpc_client import Connection, DmEnvAdaptor
    from dm_env_rpc_client.compliance import Options
    from dm_env_rpc_client.server import Server

_BY_KIND: dict[Kind, dict[str, Any]] = {
    Kind.SETTINGS: {"metavar": "NAME=VALUE", "action": "append"},
    Kind.NAMES: {"metavar": "NAME", "action": "append"},
    Kind.TEXT: {"metavar": "NAME"},
    Kind.POLICY: {"metavar": "POLICY"},
    Kind.COUNT: {"metavar": "N", "type": int},
    Kind.SECONDS: {"metavar": "SECONDS", "type": float},
    Kind.YES_OR_NO: {"choices": ("yes", "no")},
    Kind.SWITCH: {"action": "store_true"},
    Kind.FILE: {"metavar": "FILE"},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options, each as --dm-env-rpc-NAME."""
    group = parser.getgroup("dm_env_rpc", "environments over dm_env_rpc")
    group.addoption(
        "--dm-env-rpc-address",
        metavar="ADDRESS",
        help="Address of the server under test, such as localhost:50051; or docker:IMAGE or "
        "python:MODULE:NAME, to start one once per session.",
    )
    group.addoption(
        "--dm-env-rpc-command",
        metavar="COMMAND",
        help="Command that starts the server under test, once per session. {port} in it is "
        "replaced by a free port, {socket} by the path of a unix socket.",
    )
    for flag in FLAGS.values():
        group.addoption(f"--dm-env-rpc-{flag.name}", help=flag.usage(), **_BY_KIND[flag.kind])


@pytest.fixture(scope="session")
def dm_env_rpc_address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the server under test; starts the one of --dm-env-rpc-command."""
    from dm_env_rpc_client.testing import fixtures

    with fixtures.address(request.config) as address:
        yield address


@pytest.fixture
def dm_env_rpc_server() -> Iterator[Callable[..., Server]]:
    """Hosts environments in the test: call it with the arguments of `server.serve`.

    All servers stop at the end of the test, which fails with the first error in one of them.
    """
    from dm_env_rpc_client.testing import fixtures

    with fixtures.servers() as serve:
        yield serve


@pytest.fixture
def dm_env_rpc_connection(
    dm_env_rpc_address: str, request: pytest.FixtureRequest
) -> Iterator[Connection]:
    """A connection to the server under test."""
    from dm_env_rpc_client.testing import fixtures

    with fixtures.connection(dm_env_rpc_address, request.config) as connection:
        yield connection


@pytest.fixture
def dm_env_rpc_env(
    dm_env_rpc_address: str, request: pytest.FixtureRequest
) -> Iterator[DmEnvAdaptor]:
    """The environment of the server under test, in a new world or the one that was named."""
    from dm_env_rpc_client.testing import fixtures

    with fixtures.environment(dm_env_rpc_address, request.config) as env:
        yield env


@pytest.fixture(scope="session")
def dm_env_rpc_compliance_options(request: pytest.FixtureRequest) -> Options:
    """The options of the compliance suite for the server under test."""
    from dm_env_rpc_client.testing import fixtures

    return fixtures.compliance_options(request.config)
