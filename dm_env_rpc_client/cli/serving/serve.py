"""`dm-env-rpc serve`."""

from __future__ import annotations

import dataclasses
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dm_env_rpc_client import arguments
from dm_env_rpc_client.cli import options
from dm_env_rpc_client.cli.consoles import cell, console, print_json
from dm_env_rpc_client.cli.failures import Terminated, UsageError, what_stops
from dm_env_rpc_client.cli.group import examples
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.options import Arrays, ServeOptions, Thread, Threads, checked
from dm_env_rpc_client.system.keywords import attribute_texts
from dm_env_rpc_client.tensors.setting_text import parse_settings

if TYPE_CHECKING:
    from dm_env_rpc_client import server as hosting
    from dm_env_rpc_client.bridges import gym_socket
    from dm_env_rpc_client.system.foreign_environments import Conversion
    from dm_env_rpc_client.system.sources import Source

EXAMPLES = examples(
    "dm-env-rpc serve catch                                # at localhost:50051",
    "dm-env-rpc serve my_envs:make --create rows=6 --address localhost:0 --json",
    "dm-env-rpc serve gymnasium://CartPole-v1 --processes 4",
    "dm-env-rpc serve --c-library ./libengine.so:engine_connect",
    "dm-env-rpc serve catch --tls-cert crt.pem --tls-key key.pem --token-file token",
)


def _complete_environment(incomplete: str) -> list[str]:
    known = ("catch", "race", "gymnasium://", "pettingzoo://", "dm_control://", "bsuite://")
    return [name for name in known if name.startswith(incomplete)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _What(options.Group):
    """The environment to serve.

    Attributes:
      environment: Environment to serve. MODULE:FACTORY names a callable that takes the create
        settings as keyword arguments and returns a dm_env.Environment, Game or World. catch or
        race: an example game for one agent or for several. gymnasium://ID: a Gymnasium environment.
        pettingzoo://FAMILY/NAME: a PettingZoo environment, for several agents.
        dm_control://DOMAIN/TASK or bsuite://ID: an environment of these packages.
        gym-socket://HOST:PORT/NAME or dm-env-rpc://HOST:PORT: the environment of another server.
        Not with --c-library.
      create_settings: Setting of every environment, in addition to the client's. Repeatable.
      tries: Before serving, create the environment once and close it, to check that it works with
        these settings.
      python: Interpreter that serves ENVIRONMENT, a MODULE:FACTORY; Python 3.6 or later. If this
        package is not installed there, it runs the server of `dm-env-rpc standalone`, which
        supports only the options --address, --insecure, --thread, --tls-cert, --tls-key and
        --token-file.
      c_library: Library with the C interface EnvCApi to serve, in one process per world. CONNECT
        is the name of its connect function, or its offset, such as +0x1234.
      c_version: Version of env_c_api.h with which the library was compiled.
      c_param: C string for the struct passed as the first argument of the connect function.
        Repeatable.
    """

    environment: Annotated[
        str | None, typer.Argument(metavar="ENVIRONMENT", autocompletion=_complete_environment)
    ] = None
    create_settings: list[str] | None = None
    tries: Annotated[bool, typer.Option("--try/--no-try")] = True
    python: Annotated[Path | None, typer.Option(metavar="PATH")] = None
    c_library: Annotated[str | None, typer.Option(metavar="PATH:CONNECT")] = None
    c_version: Annotated[str, typer.Option(metavar="VERSION")] = "1.4"
    c_param: Annotated[list[str] | None, typer.Option(metavar="TEXT")] = None

    def source(self, insecure: bool, conversion: Conversion) -> Source:
        """Return the source of the environments, after trying it once unless `--no-try` is set.

        Raises:
          UsageError: no environment is named, or the environment cannot be created.
          SpecError: the environment does not exist.
        """
        from dm_env_rpc_client.cli.serving import sources
        from dm_env_rpc_client.system.sources import (
            WHAT_THERE_IS,
            find_source,
            look_in_current_folder,
        )

        settings = parse_settings(self.create_settings)
        if self.environment is not None and self.c_library is not None:
            raise UsageError(
                "pass either an environment to serve, such as catch, or --c-library, not both"
            )
        if self.c_library is not None:
            source = sources.library_source(self.c_library, self.c_version, self.c_param)
        elif self.environment is not None:
            look_in_current_folder()
            source = find_source(self.environment, insecure)
        else:
            raise UsageError(
                f"no environment to serve was given; {WHAT_THERE_IS}; or, for a library with the "
                "C interface, pass --c-library PATH:CONNECT"
            )
        if self.tries:
            what = self.environment or str(self.c_library)
            sources.try_source(source, settings, what, conversion)
        return sources.with_settings(source, settings)


_TEXTS = attribute_texts(ServeOptions)

_OF_SERVE: list[str] = []
"""The names of the fields of `_Host` that are passed to `serve` under the same name."""


def _of_serve(field: str, *flags: str, **details: Any) -> Any:
    """Return the option for a field of `ServeOptions`, with its validation and help text."""

    def check(value: Any) -> Any:
        try:
            return value if value is None else checked(field, value)
        except SpecError as error:
            raise typer.BadParameter(str(error)) from None

    _OF_SERVE.append(field)
    text = _TEXTS[field].replace("`", "")
    more = " Repeatable." if field.endswith("_names") else ""
    flags = flags or (f"--{field.replace('_', '-')}",)
    return typer.Option(*flags, help=text[:1].upper() + text[1:] + more, callback=check, **details)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Host(options.Access):
    """Options for serving.

    Attributes:
      protocol: Protocol of the clients.
      address: Address to listen at; port 0 selects a free one. If not given, localhost:50051, or
        localhost:5001 for gym-socket.
      name: gym-socket: environment name that clients request. If not given, the name in
        ENVIRONMENT.
      dialect: gym-socket: protocol version of the clients.
      grace: Seconds that open streams may continue after SIGTERM or Ctrl-C; 1 if not given, or 5
        for gym-socket. A second Ctrl-C ends them at once.
      isolate: gym-socket: run each client's environment in its own process.
      monitor: gym-socket: folder in which clients may record episodes.
      tls_ca: Accept only clients whose certificate was issued by an authority in this PEM file.
      tls_cert: Serve with TLS. PEM file with the certificate of this server.
      token_file: Accept only clients that send the token in this file.
    """

    protocol: Literal["dm-env-rpc", "gym-socket"] = "dm-env-rpc"
    address: Annotated[str | None, typer.Option(metavar="ADDRESS")] = None
    max_connections: Annotated[int, _of_serve("max_connections", metavar="N")] = (
        ServeOptions.max_connections
    )
    processes: Annotated[int | None, _of_serve("processes", metavar="N")] = None
    threads: Annotated[Threads | None, _of_serve("threads")] = None
    thread: Annotated[Thread | None, _of_serve("thread")] = None
    singleton: Annotated[bool, _of_serve("singleton", "--singleton")] = False
    callable_names: Annotated[
        list[str] | None, _of_serve("callable_names", "--callable", metavar="NAME")
    ] = None
    settable_names: Annotated[
        list[str] | None, _of_serve("settable_names", "--settable", metavar="NAME")
    ] = None
    autoreset_mode: Annotated[str | None, _of_serve("autoreset_mode", metavar="MODE")] = None
    arrays: Annotated[Arrays, _of_serve("arrays")] = "auto"
    idle_world_seconds: Annotated[
        float | None, _of_serve("idle_world_seconds", "--idle-seconds", metavar="SECONDS")
    ] = ServeOptions.idle_world_seconds
    grace: Annotated[float | None, typer.Option(metavar="SECONDS")] = None
    name: Annotated[str | None, typer.Option(metavar="NAME")] = None
    dialect: Literal["first", "latest"] = "first"
    isolate: bool = False
    monitor: Annotated[Path | None, typer.Option(metavar="FOLDER")] = None

    @property
    def is_gym_socket(self) -> bool:
        """Whether clients use the gym-socket protocol."""
        return self.protocol == "gym-socket"

    @property
    def place(self) -> str:
        """The address that the server listens on."""
        return self.address or f"localhost:{5001 if self.is_gym_socket else 50051}"

    def check(self) -> None:
        """Raise UsageError or SpecError if options conflict, or if one is invalid."""
        arguments.seconds("--grace", self.grace, least=0.0, none="None")
        options.check_listening_address(self.place, self)
        if not self.is_gym_socket:
            return
        if self.credentials or self.token:
            raise UsageError(
                "the gym-socket protocol supports neither TLS nor tokens; leave out --tls-ca, "
                "--tls-cert, --tls-key and --token-file, and unset their environment variables"
            )
        if self.processes is not None:
            raise UsageError(
                "the gym-socket protocol does not support --processes; use --isolate to run "
                "each client's environment in its own process"
            )
        if self.threads or self.thread:
            raise UsageError(
                "the gym-socket protocol supports neither --threads nor --thread; leave them out"
            )

    def start(self, source: Source) -> hosting.Server | gym_socket.Server:
        """Start the server; raise the errors of `hosting.serve` and `gym_socket.serve`."""
        if self.is_gym_socket:
            # Imported here because it needs Gymnasium, unlike the other protocol.
            from dm_env_rpc_client.bridges import gym_socket

            return gym_socket.serve(
                {self.name or source.name: source.factory},
                self.place,
                dialect=self.dialect,
                processes=self.isolate,
                insecure=self.insecure,
                monitor_directory=self.monitor,
                max_connections=self.max_connections,
            )
        from dm_env_rpc_client import server as hosting

        return hosting.serve(
            source.factory,
            self.place,
            **self.secured(),
            **{name: getattr(self, name) for name in _OF_SERVE if getattr(self, name) is not None},
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Output(options.Group):
    """The options that control the output while serving.

    Attributes:
      verbose: Log all requests except steps, also on a terminal.
      as_json: Print the address as one line of JSON, and the log as JSON lines.
    """

    verbose: Annotated[bool, typer.Option("--verbose", "-v")] = False
    as_json: Annotated[bool, typer.Option("--json")] = False


@options.with_options
def serve(*, what: _What, host: _Host, output: _Output) -> None:
    """Serve an environment until Ctrl-C or SIGTERM. Each world has its own environment.

    The exit code is then 0 if all environments were closed, otherwise 130 or 143.

    On a terminal it shows clients, worlds, agents, steps/s and the last errors. Otherwise, and with
    --verbose or --json, it logs them to stderr.
    """
    from dm_env_rpc_client.cli.serving import reports
    from dm_env_rpc_client.server import Server
    from dm_env_rpc_client.system.foreign_environments import Conversion

    if what.python is not None:
        _serve_with(what.python, what.environment, host)
    host.check()
    source = what.source(host.insecure, Conversion(host.autoreset_mode, host.arrays))
    verbose, as_json = output.verbose, output.as_json
    shows_table = not (host.is_gym_socket or verbose or as_json) and reports.can_show_table()
    if not shows_table:
        reports.log_activity(verbose, as_json)
    # Imported objects stay, so the collector need not traverse them while clients wait.
    gc.collect()
    gc.freeze()
    with host.start(source) as server:
        try:
            if as_json:
                print_json({"address": server.address})
            else:
                console.print(
                    f"serving {cell(what.environment or what.c_library)} "
                    f"at [bold]{server.address}[/]; "
                    f"{what_stops()} stops"
                )
            if shows_table and isinstance(server, Server):
                reports.show_table(server)
            else:
                server.wait()
        except (KeyboardInterrupt, Terminated):
            console.print("stopping")
            if not (server.stop() if host.grace is None else server.stop(host.grace)):
                console.print("[bold yellow]warning:[/] not all environments were closed")
                raise


def _serve_with(python: Path, environment: str | None, host: _Host) -> None:
    """Replace this process with another Python interpreter that serves the environment."""
    from dm_env_rpc_client.errors import LaunchError
    from dm_env_rpc_client.launch.processes import other_python, server_variables
    from dm_env_rpc_client.launch.standalone import FILE

    options.check_listening_address(host.place, host)
    if environment is None or ":" not in environment or "://" in environment:
        raise UsageError(
            f"--python requires an environment of the form MODULE:FACTORY, got {environment!r}"
        )
    try:
        command = [*other_python(str(python), environment, thread=host.thread), host.place]
    except LaunchError as error:
        raise UsageError(str(error)) from error
    tls, token = host.credentials, host.token
    if host.insecure or tls or token:
        command = [str(python), FILE, environment, "--address", host.place]
        command += ["--insecure"] if host.insecure else []
        command += ["--thread", host.thread] if host.thread else []
        command += ["--cert", str(tls.cert), "--key", str(tls.key)] if tls else []
    variables = server_variables({} if token is None else {"DM_ENV_RPC_TOKEN": token})
    os.execve(python, command, variables)
