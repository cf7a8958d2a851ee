"""Arguments that several commands share: addresses, settings, worlds, timeouts."""

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
    """Checks the form of a server's address, and that connecting to it is allowed.

    Raises:
      UsageError: the form is wrong, or it is not on this machine and `insecure` is False.
    """
    from dm_env_rpc_client.transports.addresses import is_loopback

    if not _is_address(address, lowest_port=1):
        raise UsageError(
            "an address looks like localhost:50051, [::1]:50051 or unix:/tmp/socket, "
            f"got {address!r}"
        )
    if not insecure and not is_loopback(address):
        raise UsageError(
            f"{address} is not on this machine; pass --insecure to connect in plaintext, which "
            "others on the network can read"
        )


def check_listening_address(address: str, insecure: bool) -> None:
    """Checks the form of an address to listen at, and that listening there is allowed.

    Raises:
      UsageError: the form is wrong, or other machines can reach it and `insecure` is False.
    """
    from dm_env_rpc_client.transports.addresses import is_loopback

    if not _is_address(address, lowest_port=0):
        raise UsageError(
            "an address to listen at looks like localhost:50051, localhost:0 for a free port, or "
            f"unix:/tmp/socket, got {address!r}"
        )
    if not insecure and not is_loopback(address):
        raise UsageError(
            f"other machines can reach {address}; pass --insecure to serve them in plaintext, "
            "which others on the network can read"
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


Address = Annotated[
    str, typer.Argument(metavar="ADDRESS", help="Address of the server, such as localhost:50051.")
]
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
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow plaintext connections with other machines.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one line of JSON.")]


@contextlib.contextmanager
def waiting(for_what: str) -> Iterator[None]:
    """Shows on a terminal what the command waits for."""
    if console.is_terminal:
        with console.status(for_what):
            yield
    else:
        yield


@contextlib.contextmanager
def open_connection(address: str, timeout: float, insecure: bool) -> Iterator[Connection]:
    """Connects, and closes the connection at the end; raises as `check_address` and `connect`."""
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
    """Creates and joins a world, or joins an existing one, and undoes this at the end."""
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
        raise UsageError("--create is for a new world, --world joins an existing one")
    with open_connection(address, timeout, insecure) as connection:
        with waiting(f"joining {world}"):
            env = join_world(connection, world, join)
        with env:
            yield env
