"""`dm-env-rpc serve`."""

from __future__ import annotations

import json
import signal
from types import FrameType
from typing import Annotated, Any

import typer

from dm_env_rpc_client import server as hosting
from dm_env_rpc_client.cli import arguments, c_library
from dm_env_rpc_client.cli.failures import UsageError, console, one_line_errors

__all__ = ["serve"]


def serve(
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FACTORY | catch | race",
            help="What makes the environment: a callable that takes settings as keyword "
            "arguments and returns a dm_env.Environment, Game or World; or one that is shipped: "
            "catch, for one agent, race, for several. Not with --c-library.",
        ),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", help="Where to listen; port 0 takes a free one.")
    ] = "localhost:50051",
    insecure: arguments.Insecure = False,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Clients beyond this are refused.")
    ] = 256,
    library: c_library.Library = None,
    version: c_library.Version = "1.4",
    settings: c_library.Settings = None,
    params: c_library.Params = None,
    as_json: arguments.Json = False,
) -> None:
    """Serves an environment until Ctrl-C or SIGTERM; each client creates worlds of its own."""
    with one_line_errors():
        if environment is not None and library is None:
            factory = _factory(environment)
        elif library is not None and environment is None:
            factory = c_library.library_factory(library, version, settings, params)
        else:
            raise UsageError("name what to serve, either MODULE:FACTORY or --c-library")
        signal.signal(signal.SIGTERM, _interrupt)
        with hosting.serve(
            factory, address, insecure=insecure, max_connections=max_connections
        ) as server:
            if as_json:
                typer.echo(json.dumps({"address": server.address}))
            else:
                console.print(
                    f"serving {environment or library} at [bold]{server.address}[/]; Ctrl-C stops"
                )
            try:
                server.wait()
            except KeyboardInterrupt:
                console.print("stopping")


_SHIPPED = {"catch": hosting.Catch, "race": hosting.Race}


def _factory(environment: str) -> Any:
    if environment in _SHIPPED:
        return _SHIPPED[environment]
    factory = arguments.load_object(environment, "an environment")
    if not callable(factory):
        raise UsageError(f"{environment} is not callable, so it cannot make environments")
    return factory


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
