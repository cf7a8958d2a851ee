"""`dm-env-rpc serve`."""

from __future__ import annotations

import enum
import signal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from dm_env_rpc_client.cli import arguments, c_library
from dm_env_rpc_client.cli.failures import UsageError, console
from dm_env_rpc_client.cli.group import examples

if TYPE_CHECKING:
    from dm_env_rpc_client import server as hosting
    from dm_env_rpc_client.bridges import gym_socket

__all__ = ["EXAMPLES", "serve"]

EXAMPLES = examples(
    "dm-env-rpc serve catch                                # at localhost:50051",
    "dm-env-rpc serve my_envs:make --create rows=6 --address localhost:0 --json",
    "dm-env-rpc serve gymnasium://CartPole-v1",
    "dm-env-rpc serve --c-library ./libengine.so:engine_connect",
)


class _Protocol(str, enum.Enum):
    DM_ENV_RPC = "dm-env-rpc"
    GYM_SOCKET = "gym-socket"


class _Dialect(str, enum.Enum):
    FIRST = "first"
    LATEST = "latest"


_PORTS = {_Protocol.DM_ENV_RPC: 50051, _Protocol.GYM_SOCKET: 5001}


def _complete_environment(incomplete: str) -> list[str]:
    return [name for name in ("catch", "race", "gymnasium://") if name.startswith(incomplete)]


def serve(
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:FACTORY | catch | race | URL",
            autocompletion=_complete_environment,
            help="What makes the environment: a callable that takes settings as keyword "
            "arguments and returns a dm_env.Environment, Game or World; one that is shipped: "
            "catch, for one agent, race, for several; gymnasium://ID; or another server's: "
            "gym-socket://HOST:PORT/NAME, dm-env-rpc://HOST:PORT. Not with --c-library.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Where to listen; port 0 takes a free one. localhost:50051, or :5001 for "
            "gym-socket, where not given.",
        ),
    ] = None,
    protocol: Annotated[
        _Protocol, typer.Option(help="What to speak to clients.")
    ] = _Protocol.DM_ENV_RPC,
    create: arguments.CreateSettings = None,
    insecure: arguments.Insecure = False,
    max_connections: Annotated[
        int, typer.Option(min=1, help="Clients beyond this are refused.")
    ] = 256,
    library: c_library.Library = None,
    version: c_library.Version = "1.4",
    params: c_library.Params = None,
    name: Annotated[
        str | None, typer.Option(help="gym-socket: what clients ask for; ENVIRONMENT's own name.")
    ] = None,
    dialect: Annotated[_Dialect, typer.Option(help="gym-socket: of the clients.")] = _Dialect.FIRST,
    processes: Annotated[
        bool, typer.Option("--processes", help="gym-socket: a process for each client.")
    ] = False,
    monitor: Annotated[
        Path | None, typer.Option(help="gym-socket: the folder below which clients may record.")
    ] = None,
    as_json: arguments.Json = False,
) -> None:
    """Serves an environment until Ctrl-C or SIGTERM; each client gets one of its own."""
    from dm_env_rpc_client import server as hosting
    from dm_env_rpc_client.bridges import gym_socket
    from dm_env_rpc_client.cli.results import print_json
    from dm_env_rpc_client.cli.sources import find_source

    settings = arguments.parse_settings(create)
    if environment is not None and library is None:
        source = find_source(environment, insecure)
    elif library is not None and environment is None:
        source = c_library.library_source(library, version, params)
    else:
        raise UsageError("name what to serve, either MODULE:FACTORY or --c-library")
    source = source.with_settings(settings)
    signal.signal(signal.SIGTERM, _interrupt)
    address = address or f"localhost:{_PORTS[protocol]}"
    server: hosting.Server | gym_socket.Server
    if protocol is _Protocol.GYM_SOCKET:
        server = gym_socket.serve(
            {name or source.name: source.factory},
            address,
            dialect=dialect.value,
            processes=processes,
            insecure=insecure,
            monitor_directory=monitor,
            max_connections=max_connections,
        )
    else:
        server = hosting.serve(
            source.factory, address, insecure=insecure, max_connections=max_connections
        )
    with server:
        if as_json:
            print_json({"address": server.address})
        else:
            console.print(
                f"serving {environment or library} at [bold]{server.address}[/]; Ctrl-C stops"
            )
        try:
            server.wait()
        except KeyboardInterrupt:
            console.print("stopping")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
