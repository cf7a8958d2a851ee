"""The pytest plugin, which provides options and fixtures.

If this package is installed, every pytest run loads this file. To load quickly, the file imports
only pytest and the table of options. Each fixture imports the modules that it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from dm_env_rpc_client.compliance.options import FINDING, FLAGS, Kind

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
    """Add the plugin's options to pytest, with names of the form --dm-env-rpc-NAME."""
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List each finding of the compliance suite once in the summary.

    In pytest's own lines, the path of this package may leave no room for them.
    """
    found = {
        str(text)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == FINDING
    }
    if found:
        terminalreporter.section("dm_env_rpc compliance")
        for text in sorted(found):
            terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def dm_env_rpc_compliance_options(request: pytest.FixtureRequest) -> Options:
    """Return the options of the compliance suite for the server under test."""
    from dm_env_rpc_client.compliance.options import Options
    from dm_env_rpc_client.errors import SpecError

    given = {field: _option(request, flag.name) for field, flag in FLAGS.items()}
    try:
        return Options.from_flags(given)
    except SpecError as error:
        raise pytest.UsageError(str(error)) from error


@pytest.fixture(scope="session")
def dm_env_rpc_address(
    request: pytest.FixtureRequest, dm_env_rpc_compliance_options: Options
) -> Iterator[str]:
    """Return the address of the server under test.

    The server is started if --dm-env-rpc-command is given.
    """
    from dm_env_rpc_client.environment.server_location import launched

    given, command = _option(request, "address"), _option(request, "command")
    if bool(given) == bool(command):
        raise pytest.UsageError(
            "pass either --dm-env-rpc-address HOST:PORT, for a running server, or "
            "--dm-env-rpc-command 'COMMAND --port={port}', to start one, but not both; "
            "alternatively, define a fixture dm_env_rpc_address in your conftest.py"
        )
    security = dm_env_rpc_compliance_options.security()
    with launched(given or f"process:{command}", **security) as address:
        yield address


@pytest.fixture
def dm_env_rpc_server() -> Iterator[Callable[..., Server]]:
    """Return a function that hosts environments in the test and is called like `server.serve`.

    Its servers are stopped after the test; the first error inside them fails the test.
    """
    from dm_env_rpc_client import server

    started: list[Server] = []

    def serve(environment: Any, *args: Any, **kwargs: Any) -> Server:
        started.append(server.serve(environment, *args, **kwargs))
        return started[-1]

    yield serve
    for each in started:
        each.stop(0.0)
    for each in started:
        for error in each.errors:
            raise error


@pytest.fixture
def dm_env_rpc_connection(
    dm_env_rpc_address: str, dm_env_rpc_compliance_options: Options
) -> Iterator[Connection]:
    """Return a connection to the server under test."""
    from dm_env_rpc_client.client.connecting import connect

    with connect(dm_env_rpc_address, **_connecting(dm_env_rpc_compliance_options)) as connection:
        yield connection


@pytest.fixture
def dm_env_rpc_env(
    request: pytest.FixtureRequest,
    dm_env_rpc_address: str,
    dm_env_rpc_compliance_options: Options,
) -> Iterator[DmEnvAdaptor]:
    """Return the environment of the server under test, in a new or an existing world."""
    from dm_env_rpc_client.environment.worlds import join_world, make

    options = dm_env_rpc_compliance_options
    if options.world_name is None:
        create, join = options.create_settings, options.join_settings
        env = make(dm_env_rpc_address, create, join, **_connecting(options))
    else:
        connection = request.getfixturevalue("dm_env_rpc_connection")
        env = join_world(connection, options.world_name, options.join_settings)
    with env:
        yield env


def _connecting(options: Options) -> dict[str, Any]:
    """Return the options as keyword arguments for `connect` and `make`."""
    return {"timeout": options.timeout, "request_timeout": options.timeout, **options.security()}


def _option(request: pytest.FixtureRequest, name: str) -> Any:
    return request.config.getoption(f"--dm-env-rpc-{name}")
