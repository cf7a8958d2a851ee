"""What several commands take: addresses, settings, and where to run."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dm_env_rpc_client.cli.failures import UsageError, console
from dm_env_rpc_client.runtime.setting_text import parse_settings

if TYPE_CHECKING:
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor

__all__ = [
    "Address",
    "CreateSettings",
    "Insecure",
    "JoinSettings",
    "Json",
    "Timeout",
    "World",
    "check_address",
    "check_listening_address",
    "check_seconds",
    "complete_policy",
    "open_connection",
    "open_environment",
    "parse_settings",
    "waiting",
]

_HOST_PORT = re.compile(r"[^/\s]+:(\d{1,5})")
_SCHEMES = ("unix:", "unix-abstract:", "dns:", "ipv4:", "ipv6:", "vsock:")


def check_address(address: str, insecure: bool) -> None:
    """Checks that an address can be that of a server, and that going there is allowed.

    Raises:
      UsageError: it is none; or not on this machine, without `insecure`.
    """
    from dm_env_rpc_client.transports.addresses import is_loopback

    if not _is_address(address, lowest_port=1):
        raise UsageError(
            "an address looks like localhost:50051, [::1]:50051 or unix:/tmp/socket, "
            f"got {address!r}"
        )
    if not insecure and not is_loopback(address):
        raise UsageError(
            f"{address} is not on this machine; --insecure connects to it all the same, "
            "in plaintext that anybody on the way can read"
        )


def check_listening_address(address: str, insecure: bool) -> None:
    """Checks that a server can listen at an address, and that it is allowed to.

    Raises:
      UsageError: it cannot; or other machines reach it, without `insecure`.
    """
    from dm_env_rpc_client.transports.addresses import is_loopback

    if not _is_address(address, lowest_port=0):
        raise UsageError(
            "an address to listen at looks like localhost:50051, localhost:0 for a free port, or "
            f"unix:/tmp/socket, got {address!r}"
        )
    if not insecure and not is_loopback(address):
        raise UsageError(
            f"other machines reach {address}; --insecure serves them, in plaintext that anybody "
            "on the way can read"
        )


def _is_address(address: str, lowest_port: int) -> bool:
    found = _HOST_PORT.fullmatch(address)
    if found is not None:
        return lowest_port <= int(found[1]) < 65536
    return address.startswith(_SCHEMES)


def check_seconds(seconds: float) -> float:
    """Returns a positive, finite number of seconds; BadParameter for others."""
    if not 0 < seconds < math.inf:
        raise typer.BadParameter(f"a time in seconds is more than 0, got {seconds:g}")
    return seconds


def complete_policy(incomplete: str) -> list[str]:
    """Returns the names of policies that begin like this, for the completion of shells."""
    return [name for name in ("random", "constant") if name.startswith(incomplete)]


Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="The server, such as localhost:50051.")
]
CreateSettings = Annotated[
    list[str] | None,
    typer.Option("--create", metavar="NAME=VALUE", help="A setting of the world; repeatable."),
]
JoinSettings = Annotated[
    list[str] | None,
    typer.Option("--join", metavar="NAME=VALUE", help="A setting of the agent; repeatable."),
]
World = Annotated[
    str | None, typer.Option("--world", help="Join this world instead of creating one.")
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        callback=check_seconds,
        help="How long to wait for a connection and for each answer.",
    ),
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow plaintext to or from other machines.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@contextlib.contextmanager
def waiting(for_what: str) -> Iterator[None]:
    """Shows, on a terminal, that the command waits and what for."""
    if console.is_terminal:
        with console.status(for_what):
            yield
    else:
        yield


@contextlib.contextmanager
def open_connection(address: str, timeout: float, insecure: bool) -> Iterator[Connection]:
    """Connects, and closes the connection at the end; errors as `check_address`, `connect`."""
    from dm_env_rpc_client.client.connection import connect

    check_address(address, insecure)
    with waiting(f"connecting to {address}"):
        connection = connect(address, timeout=timeout, request_timeout=timeout, insecure=insecure)
    with connection:
        yield connection


@contextlib.contextmanager
def open_environment(
    address: str,
    create: dict[str, Any],
    join: dict[str, Any],
    world: str | None,
    timeout: float,
    insecure: bool,
) -> Iterator[DmEnvAdaptor]:
    """Creates and joins a world, or joins one that exists; undoes it at the end."""
    from dm_env_rpc_client.environment.worlds import join_world, make

    check_address(address, insecure)
    if world is None:
        with waiting(f"creating a world at {address}"):
            env = make(
                address, create, join, timeout=timeout, request_timeout=timeout, insecure=insecure
            )
        with env:
            yield env
        return
    if create:
        raise UsageError("--create is for a world that is created, --world for one that exists")
    with open_connection(address, timeout, insecure) as connection:
        with waiting(f"joining {world}"):
            env = join_world(connection, world, join)
        with env:
            yield env
