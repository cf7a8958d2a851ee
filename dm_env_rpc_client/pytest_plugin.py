"""Options and fixtures for pytest. What they do is in `testing.fixtures`, imported when used.

Every pytest run of whoever has this package installed loads this file, so it imports
nothing but pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dm_env_rpc_client import Connection, DmEnvAdaptor
    from dm_env_rpc_client.compliance import Options
    from dm_env_rpc_client.server import Server

_OPTIONS: dict[str, dict[str, Any]] = {
    "address": {"metavar": "HOST:PORT", "help": "The server under test."},
    "command": {
        "metavar": "COMMAND",
        "help": "Starts the server under test, once for the session; {port} is its port.",
    },
    "create": {"metavar": "NAME=VALUE", "action": "append", "help": "A create setting."},
    "invalid-create": {
        "metavar": "NAME=VALUE",
        "action": "append",
        "help": "A create setting to be refused.",
    },
    "required-create": {
        "metavar": "NAME",
        "action": "append",
        "help": "A create setting that cannot be left out.",
    },
    "join": {"metavar": "NAME=VALUE", "action": "append", "help": "A join setting."},
    "invalid-join": {
        "metavar": "NAME=VALUE",
        "action": "append",
        "help": "A join setting to be refused.",
    },
    "reset": {"metavar": "NAME=VALUE", "action": "append", "help": "A reset setting."},
    "invalid-reset": {
        "metavar": "NAME=VALUE",
        "action": "append",
        "help": "A reset setting to be refused.",
    },
    "reset-world": {"metavar": "NAME=VALUE", "action": "append", "help": "A ResetWorld setting."},
    "world": {"metavar": "NAME", "help": "A world that exists; the suite creates none then."},
    "policy": {
        "metavar": "POLICY",
        "default": "random",
        "help": "Where actions come from: random, constant or MODULE:FUNCTION.",
    },
    "several-worlds": {"choices": ("yes", "no"), "help": "Whether there can be several worlds."},
    "several-agents": {"choices": ("yes", "no"), "help": "Whether a world takes several agents."},
    "companions": {
        "type": int,
        "default": 0,
        "help": "How many more agents a world waits for; they act on their own.",
    },
    "max-steps": {"type": int, "default": 200, "help": "Steps to wait for a sequence's end."},
    "timeout": {
        "type": float,
        "default": 10.0,
        "help": "Seconds to wait for a connection and for each answer.",
    },
    "insecure": {"action": "store_true", "help": "Allow plaintext to other machines."},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options, each as --dm-env-rpc-NAME."""
    group = parser.getgroup("dm_env_rpc", "environments over dm_env_rpc")
    for name, details in _OPTIONS.items():
        group.addoption(f"--dm-env-rpc-{name}", **details)


@pytest.fixture(scope="session")
def dm_env_rpc_address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of the server under test, which --dm-env-rpc-command starts."""
    from dm_env_rpc_client.testing import fixtures

    with fixtures.address(request.config) as address:
        yield address


@pytest.fixture
def dm_env_rpc_server() -> Iterator[Callable[..., Server]]:
    """Hosts environments in the test: call it with the arguments of `server.serve`.

    All servers stop at the end of the test, which fails with what failed in them.
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
    """The environment of the server under test, in a world of its own."""
    from dm_env_rpc_client.testing import fixtures

    with fixtures.environment(dm_env_rpc_address, request.config) as env:
        yield env


@pytest.fixture(scope="session")
def dm_env_rpc_compliance_options(request: pytest.FixtureRequest) -> Options:
    """What the options say of the server under test, for the compliance suite."""
    from dm_env_rpc_client.testing import fixtures

    return fixtures.compliance_options(request.config)
