"""The bodies of the pytest plugin's fixtures.

They are separate from the plugin, because every pytest run imports the plugin's file, and this
one imports most of the package.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dm_env_rpc_client import server as hosting
from dm_env_rpc_client.client.connection import Connection, connect
from dm_env_rpc_client.compliance.options import FLAGS, Options
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.sites import launched
from dm_env_rpc_client.environment.worlds import join_world, make
from dm_env_rpc_client.errors import SpecError

__all__ = ["address", "compliance_options", "connection", "environment", "servers"]


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(f"--dm-env-rpc-{name}")


@contextlib.contextmanager
def address(config: pytest.Config) -> Iterator[str]:
    """Yields the address of the server under test; starts and stops the one of the command.

    Raises:
      pytest.UsageError: the options name no server, or two.
      LaunchError: the command did not start a server.
    """
    given, command = _option(config, "address"), _option(config, "command")
    if bool(given) == bool(command):
        raise pytest.UsageError(
            "pass one of the two: --dm-env-rpc-address HOST:PORT for a running server, or "
            "--dm-env-rpc-command 'COMMAND --port={port}' to start one; or define a fixture "
            "dm_env_rpc_address in your conftest.py"
        )
    with launched(given or f"process:{command}", **compliance_options(config).security()) as found:
        yield found


@contextlib.contextmanager
def servers() -> Iterator[Callable[..., hosting.Server]]:
    """Yields `serve`; stops all its servers at the end and raises the first error in them."""
    started: list[hosting.Server] = []

    def serve(environment: Any, *args: Any, **kwargs: Any) -> hosting.Server:
        started.append(hosting.serve(environment, *args, **kwargs))
        return started[-1]

    try:
        yield serve
    finally:
        for server in started:
            server.stop(0.0)
    for server in started:
        for error in server.errors:
            raise error


@contextlib.contextmanager
def connection(server_address: str, config: pytest.Config) -> Iterator[Connection]:
    """Yields a connection to the server under test."""
    options = compliance_options(config)
    with connect(
        server_address,
        timeout=options.timeout,
        request_timeout=options.timeout,
        **options.security(),
    ) as opened:
        yield opened


@contextlib.contextmanager
def environment(server_address: str, config: pytest.Config) -> Iterator[DmEnvAdaptor]:
    """Yields the environment of the server under test."""
    options = compliance_options(config)
    if options.world_name is not None:
        with (
            connection(server_address, config) as opened,
            join_world(opened, options.world_name, options.join_settings) as env,
        ):
            yield env
        return
    with make(
        server_address,
        options.create_settings,
        options.join_settings,
        timeout=options.timeout,
        request_timeout=options.timeout,
        **options.security(),
    ) as env:
        yield env


def compliance_options(config: pytest.Config) -> Options:
    """Returns what the command line says about the server under test; UsageError if invalid."""
    try:
        return Options.from_flags(
            {field: _option(config, flag.name) for field, flag in FLAGS.items()}
        )
    except SpecError as error:
        raise pytest.UsageError(str(error)) from error
