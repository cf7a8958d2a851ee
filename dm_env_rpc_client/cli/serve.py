"""`dm-env-rpc serve`."""

from __future__ import annotations

import enum
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dm_env_rpc_client.cli import arguments, c_library
from dm_env_rpc_client.cli.arguments import Access
from dm_env_rpc_client.cli.consoles import cell, console, print_json
from dm_env_rpc_client.cli.failures import Terminated, UsageError
from dm_env_rpc_client.cli.group import examples

if TYPE_CHECKING:
    from dm_env_rpc_client import server as hosting
    from dm_env_rpc_client.bridges import gym_socket

__all__ = ["EXAMPLES", "serve"]

EXAMPLES = examples(
    "dm-env-rpc serve catch                                # at localhost:50051",
    "dm-env-rpc serve my_envs:make --create rows=6 --address localhost:0 --json",
    "dm-env-rpc serve gymnasium://CartPole-v1 --processes 4",
    "dm-env-rpc serve --c-library ./libengine.so:engine_connect",
    "dm-env-rpc serve my_envs:make --dial trainer:5000 --environments 8 --tls-ca ca.crt",
    "dm-env-rpc serve catch --tls-cert crt.pem --tls-key key.pem --token-file token",
)


class _Protocol(str, enum.Enum):
    DM_ENV_RPC = "dm-env-rpc"
    GYM_SOCKET = "gym-socket"


class _Dialect(str, enum.Enum):
    FIRST = "first"
    LATEST = "latest"


_PORTS = {_Protocol.DM_ENV_RPC: 50051, _Protocol.GYM_SOCKET: 5001}


def _complete_environment(incomplete: str) -> list[str]:
    known = ("catch", "race", "gymnasium://", "pettingzoo://", "dm_control://", "bsuite://")
    return [name for name in known if name.startswith(incomplete)]


@arguments.with_served_access
def serve(
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="ENVIRONMENT",
            autocompletion=_complete_environment,
            help="What to serve. MODULE:FACTORY names a callable that takes the create settings as "
            "keyword arguments and returns a dm_env.Environment, Game or World. catch or race: "
            "an example game for one agent or for several. gymnasium://ID: a Gymnasium "
            "environment. pettingzoo://FAMILY/NAME: one of PettingZoo, for several agents. "
            "dm_control://DOMAIN/TASK or bsuite://ID: an environment of these "
            "packages. gym-socket://HOST:PORT/NAME or dm-env-rpc://HOST:PORT: the environment "
            "of another server. Not with --c-library.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Address to listen at; port 0 takes a free one. If not given, localhost:50051, or "
            "localhost:5001 for gym-socket.",
        ),
    ] = None,
    protocol: Annotated[
        _Protocol, typer.Option(help="Protocol of the clients.")
    ] = _Protocol.DM_ENV_RPC,
    create: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Setting of every environment, beside those that the client sends. Repeatable.",
        ),
    ] = None,
    *,
    access: arguments.Access,
    max_connections: Annotated[
        int,
        typer.Option(min=1, metavar="N", help="Number of clients beyond which others are refused."),
    ] = 256,
    library: c_library.Library = None,
    version: c_library.Version = "1.4",
    params: c_library.Params = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="gym-socket: environment name that clients ask for. If not given, the name in "
            "ENVIRONMENT.",
        ),
    ] = None,
    dialect: Annotated[
        _Dialect, typer.Option(help="gym-socket: version of the protocol that the clients use.")
    ] = _Dialect.FIRST,
    processes: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Number of processes that the environments run in, for those that compute in "
            "Python. If not given, that of the server.",
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Interpreter that serves ENVIRONMENT, a MODULE:FACTORY, from Python 3.6 on. If "
            "this package is not installed there, that takes the server of `dm-env-rpc "
            "standalone`, and no other options than --address, --insecure, --tls-cert, --tls-key "
            "and --token-file.",
        ),
    ] = None,
    dial: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a program that takes environments with listen(). The server connects "
            "to it, again and again, and listens nowhere. --tls-ca is what the program's "
            "certificate was issued by, and --token-file what the program requires.",
        ),
    ] = None,
    environments: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            help="With --dial: number of environments that the program may have at a time.",
        ),
    ] = 1,
    isolates: Annotated[
        bool,
        typer.Option(
            "--isolate", help="gym-socket: run each client's environment in its own process."
        ),
    ] = False,
    monitor: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="gym-socket: folder in which clients may record episodes."
        ),
    ] = None,
    tries: Annotated[
        bool,
        typer.Option(
            "--try/--no-try",
            help="Make the environment once, and close it, before serving: to see that it can be "
            "made with these settings.",
        ),
    ] = True,
    idle_world_seconds: Annotated[
        float,
        typer.Option(
            "--idle-seconds",
            min=0.0,
            metavar="SECONDS",
            help="How long a world stays that has no agents and whose client is gone.",
        ),
    ] = 60.0,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", help="Log every request but steps, also on a terminal."),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print the address as one line of JSON, and the log as JSON lines."
        ),
    ] = False,
) -> None:
    """Serves an environment until Ctrl-C or SIGTERM. Each world has its own environment.

    It then ends with 0 if all environments were closed, otherwise with 130 or 143.

    On a terminal it shows clients, worlds, agents, steps/s and the last errors. Otherwise, and with
    --verbose or --json, it logs them to stderr.
    """
    from dm_env_rpc_client import server as hosting
    from dm_env_rpc_client.bridges import gym_socket
    from dm_env_rpc_client.cli import serve_reports, sources

    if python is not None:
        _serve_with(python, environment, address or f"localhost:{_PORTS[protocol]}", access)
        return
    settings = arguments.parse_settings(create)
    if dial is not None and address is not None:
        raise UsageError("a server either listens or dials: pass --address or --dial, not both")
    if dial is not None and protocol is _Protocol.GYM_SOCKET:
        raise UsageError("the protocol gym-socket has no --dial")
    address = address or f"localhost:{_PORTS[protocol]}"
    if dial is not None:
        arguments.check_address(dial, access)
    else:
        arguments.check_listening_address(address, access)
    if protocol is _Protocol.GYM_SOCKET and (access.tls or access.token):
        raise UsageError(
            "the protocol gym-socket has neither TLS nor tokens; leave out --tls-ca, --tls-cert, "
            "--tls-key and --token-file, also in the environment"
        )
    if protocol is _Protocol.GYM_SOCKET and processes is not None:
        raise UsageError(
            "the protocol gym-socket has no --processes; --isolate runs each client's environment "
            "in its own process"
        )
    if environment is not None and library is None:
        source = sources.find_source(environment, access.insecure)
    elif library is not None and environment is None:
        source = c_library.library_source(library, version, params)
    elif environment is None:
        raise UsageError(f"there is nothing to serve; {sources.WHAT_THERE_IS}")
    else:
        raise UsageError("name what to serve: either an environment, such as catch, or --c-library")
    if tries:
        sources.try_source(source, settings, environment or str(library))
    source = source.with_settings(settings)
    shows_table = (
        protocol is _Protocol.DM_ENV_RPC
        and not (verbose or as_json)
        and serve_reports.can_show_table()
    )
    if not shows_table:
        serve_reports.log_activity(verbose, as_json)
    # What was imported stays. The collector would go through all of it, while clients wait.
    gc.collect()
    gc.freeze()
    server: hosting.Server | gym_socket.Server
    if protocol is _Protocol.GYM_SOCKET:
        server = gym_socket.serve(
            {name or source.name: source.factory},
            address,
            dialect=dialect.value,
            processes=isolates,
            insecure=access.insecure,
            monitor_directory=monitor,
            max_connections=max_connections,
        )
    else:
        server = hosting.serve(
            source.factory,
            *([address] if dial is None else []),
            dial=dial,
            dial_environments=environments,
            max_connections=max_connections,
            idle_world_seconds=idle_world_seconds,
            processes=processes,
            **access.options(),
        )
    with server:
        try:
            if as_json:
                print_json({"address": server.address})
            else:
                console.print(
                    f"serving {cell(environment or library)} {'to' if dial else 'at'} "
                    f"[bold]{server.address}[/]; Ctrl-C stops"
                )
            if shows_table and isinstance(server, hosting.Server):
                serve_reports.show_table(server)
            else:
                server.wait()
        except (KeyboardInterrupt, Terminated):
            console.print("stopping")
            if not server.stop():
                console.print("[bold yellow]warning:[/] not all environments were closed")
                raise


def _serve_with(python: Path, environment: str | None, address: str, access: Access) -> None:
    """Has another interpreter serve, in this process."""
    from dm_env_rpc_client.launch.processes import other_python
    from dm_env_rpc_client.standalone import FILE

    arguments.check_listening_address(address, access)
    if environment is None or ":" not in environment or "://" in environment:
        raise UsageError(f"--python serves a MODULE:FACTORY of its own, got {environment!r}")
    command = [*other_python(str(python), environment), address]
    if access != Access():
        command = [str(python), FILE, environment, "--address", address]
        command += ["--insecure"] if access.insecure else []
        if access.tls is not None:
            command += ["--cert", str(access.tls.cert), "--key", str(access.tls.key)]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1"}
    if access.token is not None:
        variables["DM_ENV_RPC_TOKEN"] = access.token
    os.execve(python, command, variables)
