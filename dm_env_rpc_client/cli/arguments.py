"""Arguments that several commands share: addresses, settings, worlds, timeouts, security."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dm_env_rpc_client.cli.consoles import cell, console
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.compliance.options import FLAGS, Flag, Kind
from dm_env_rpc_client.system.launch_text import is_launch
from dm_env_rpc_client.tensors.setting_text import parse_settings

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
    from dm_env_rpc_client.transports.tls import Tls

__all__ = [
    "CATCH",
    "WHERE",
    "Access",
    "Address",
    "CreateSettings",
    "JoinSettings",
    "Json",
    "Timeout",
    "World",
    "check_address",
    "check_listening_address",
    "check_seconds",
    "complete_policy",
    "file_option",
    "open_connection",
    "open_environment",
    "parse_settings",
    "reached",
    "replace_parameters",
    "waiting",
    "with_access",
    "with_access_flags",
    "with_served_access",
]

_HOST_PORT = re.compile(r"[^/\s]+:(\d{1,5})")
_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:")


@dataclasses.dataclass(frozen=True)
class Access:
    """How the connections of a command are secured.

    Attributes:
      insecure: whether plaintext connections with other machines are allowed.
      tls: None for plaintext.
      token: what a client sends and a server requires; None for none.
    """

    insecure: bool = False
    tls: Tls | None = None
    token: str | None = dataclasses.field(default=None, repr=False)

    @property
    def is_plain(self) -> bool:
        """Whether the connections are plaintext and have to stay on this machine."""
        return self.tls is None and not self.insecure

    def options(self) -> dict[str, Any]:
        """Returns the arguments of `connect` and `serve`."""
        return {"insecure": self.insecure, "credentials": self.tls, "token": self.token}


def check_address(address: str, access: Access) -> None:
    """Checks the form of a server's address, and that connecting to it is allowed.

    Raises:
      UsageError: the form is wrong, or it is not on this machine and the connection would be
        plaintext that was not asked for.
    """
    from dm_env_rpc_client.transports.addresses import is_loopback

    if not _is_address(address, lowest_port=1):
        raise UsageError(
            "an address looks like localhost:50051, [::1]:50051 or unix:/tmp/socket, and a server "
            f"to start like process:COMMAND, docker:IMAGE or python:MODULE:NAME; got {address!r}"
        )
    if access.is_plain and not is_loopback(address):
        raise UsageError(
            f"{address} is not on this machine; pass --tls-ca FILE to connect with TLS, or "
            "--insecure to connect in plaintext, which others on the network can read"
        )


def check_listening_address(address: str, access: Access) -> None:
    """Checks the form of an address to listen at, and that listening there is allowed.

    Raises:
      UsageError: the form is wrong, or other machines can reach it and the server would be
        plaintext that was not asked for.
    """
    from dm_env_rpc_client.transports.addresses import is_loopback

    if not _is_address(address, lowest_port=0):
        raise UsageError(
            "an address to listen at looks like localhost:50051, localhost:0 for a free port, or "
            f"unix:/tmp/socket, got {address!r}"
        )
    if access.is_plain and not is_loopback(address):
        raise UsageError(
            f"other machines can reach {address}; pass --tls-cert FILE and --tls-key FILE to serve "
            "them with TLS, or --insecure to serve them in plaintext, which others on the network "
            "can read"
        )


def _is_address(address: str, lowest_port: int) -> bool:
    found = _HOST_PORT.fullmatch(address)
    if found is not None:
        return lowest_port <= int(found[1]) < 65536
    return address.startswith(_SCHEMES)


def check_seconds(seconds: float) -> float:
    """Returns a positive, finite number of seconds; BadParameter for others."""
    if not 0 < seconds < math.inf:
        raise typer.BadParameter(
            f"a number of seconds must be finite and more than 0, got {seconds:g}"
        )
    return seconds


def complete_policy(incomplete: str) -> list[str]:
    """Returns the names of policies that begin with a text, for shell completion."""
    return [name for name in ("random", "constant") if name.startswith(incomplete)]


WHERE = (
    "Address of the server, such as localhost:50051; or process:COMMAND, docker:IMAGE or "
    "python:MODULE:NAME, to start one for this command."
)

Address = Annotated[str, typer.Argument(metavar="ADDRESS", help=WHERE)]
CreateSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--create",
        metavar="NAME=VALUE",
        help="Setting with which the world is created. Repeatable.",
    ),
]
JoinSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--join", metavar="NAME=VALUE", help="Setting with which the agent joins. Repeatable."
    ),
]
World = Annotated[
    str | None,
    typer.Option(
        "--world", metavar="NAME", help="Name of an existing world to join instead of a new one."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        callback=check_seconds,
        help="Timeout in seconds for connecting and for each answer.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


def file_option(flag: Flag) -> Any:
    """Returns the option of a flag that names a file; the environment may name the file, too."""
    variable = "DM_ENV_RPC_" + flag.name.upper().replace("-", "_")
    return typer.Option(f"--{flag.name}", metavar="FILE", envvar=variable, help=flag.usage())


_CLIENT_FLAGS = {field: flag for field, flag in FLAGS.items() if flag.kind is Kind.FILE}

_SERVER_FLAGS = {
    field: flag._replace(help=text)
    for (field, flag), text in zip(
        _CLIENT_FLAGS.items(),
        (
            "Accept only clients whose certificate was issued by an authority in this PEM file.",
            "Serve with TLS. PEM file with the certificate of this server.",
            "PEM file with the private key of that certificate.",
            "Accept only clients that send the token in this file.",
        ),
        strict=True,
    )
}


CATCH = "python:dm_env_rpc_client.server:Catch"
"""The server of commands that are given none."""


def with_access(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that connects to a server the flags of its parameter `access`.

    A server that its argument `address` says to launch is launched, and ends with the command.
    """

    @functools.wraps(command)
    def on_server(*, address: str | None, access: Access, **given: Any) -> None:
        if address is None:
            address, access = CATCH, Access()  # The flags are for servers that others started.
        with reached(address, access, given.get("timeout")) as found:
            command(**given, address=found, access=access)

    return with_access_flags(on_server)


def with_access_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that connects to a server the flags of its parameter `access`."""
    return _with_access(command, _CLIENT_FLAGS)


@contextlib.contextmanager
def reached(address: str, access: Access, timeout: float | None = None) -> Iterator[str]:
    """A context with the address of a server, which is launched for it if need be.

    Args:
      address: where it is, or what launches it.
      access: how to connect to it.
      timeout: what `--timeout` says, if there is such an option: one that was launched must answer
        within it, if it is not the default.

    Raises:
      LaunchError: it was not started. Otherwise as `launch.from_process` and the like.
    """
    if not is_launch(address):
        yield address
        return
    from dm_env_rpc_client.environment.sites import CONNECT_SECONDS, launched

    seconds = CONNECT_SECONDS if timeout in (None, CONNECT_SECONDS) else timeout
    with contextlib.ExitStack() as stack:
        with _pulling() as progress:
            found = stack.enter_context(launched(address, seconds, progress, **access.options()))
        yield found


@contextlib.contextmanager
def _pulling() -> Iterator[Callable[[str, int, int], None]]:
    """Shows on a terminal that a server starts, and how much of its image was pulled."""
    import rich.progress

    with rich.progress.Progress(
        rich.progress.TextColumn("{task.description}"),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("starting the server", total=None)

        def show(what: str, done: int, total: int) -> None:
            bar.update(task, description=cell(what), completed=done, total=total or None)

        yield show


def with_served_access(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command that serves the flags of its parameter `access`."""
    return _with_access(command, _SERVER_FLAGS)


def _with_access(command: Callable[..., None], flags: dict[str, Flag]) -> Callable[..., None]:
    insecure = typer.Option("--insecure", help="Allow plaintext connections with other machines.")
    own = {
        "insecure": _parameter("insecure", Annotated[bool, insecure], False),
        **{
            field: _parameter(field, Annotated[str | None, file_option(flag)], None)
            for field, flag in flags.items()
        },
    }
    parameters: list[inspect.Parameter] = []
    for each in inspect.signature(command, eval_str=True).parameters.values():
        keyword = each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        parameters += own.values() if each.name == "access" else [keyword]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        access = _access(**{name: given.pop(name, own[name].default) for name in own})
        command(**given, access=access)

    replace_parameters(run, parameters)
    return run


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def replace_parameters(
    command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> None:
    """Gives a command other parameters than those of its definition."""
    # Both are read: by `inspect.signature` and by `typing.get_type_hints`.
    vars(command)["__signature__"] = signature = inspect.Signature(list(parameters))
    command.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}


def _access(
    insecure: bool,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    token_file: str | None,
) -> Access:
    """Returns what the flags say; SpecError if a file cannot be read or has other contents."""
    tls = token = None
    if tls_ca or tls_cert or tls_key:
        from dm_env_rpc_client.transports.tls import tls_from_flags

        tls = tls_from_flags(tls_ca, tls_cert, tls_key)
    if token_file:
        from dm_env_rpc_client.transports.tokens import read_token

        token = read_token(token_file)
    return Access(insecure, tls, token)


@contextlib.contextmanager
def waiting(for_what: str) -> Iterator[None]:
    """Shows on a terminal what the command waits for."""
    if console.is_terminal:
        with console.status(cell(for_what)):
            yield
    else:
        yield


@contextlib.contextmanager
def open_connection(
    address: str, timeout: float, access: Access, may_wait: bool = False
) -> Iterator[Connection]:
    """Connects, and closes the connection at the end; raises as `check_address` and `connect`."""
    from dm_env_rpc_client.client.connection import connect

    check_address(address, access)
    with waiting(f"connecting to {address}"):
        connection = connect(
            address,
            timeout=timeout,
            request_timeout=None if may_wait else timeout,
            **access.options(),
        )
    with connection:
        yield connection


@contextlib.contextmanager
def open_environment(
    address: str,
    create: dict[str, Any],
    join: dict[str, Any],
    world: str | None,
    timeout: float,
    access: Access,
    may_wait: bool = False,
) -> Iterator[DmEnvAdaptor]:
    """Creates and joins a world, or joins an existing one, and undoes this at the end.

    With `may_wait`, answers may take any time, for instance until other players have acted.
    """
    from dm_env_rpc_client.environment.worlds import join_world, make

    check_address(address, access)
    if world is None:
        with waiting(f"creating a world at {address}"):
            env = make(
                address,
                create,
                join,
                timeout=timeout,
                request_timeout=None if may_wait else timeout,
                **access.options(),
            )
        with env:
            yield env
        return
    if create:
        raise UsageError("--create is for a new world, --world joins an existing one")
    with open_connection(address, timeout, access, may_wait) as connection:
        with waiting(f"joining {world}"):
            env = join_world(connection, world, join)
        with env:
            yield env
