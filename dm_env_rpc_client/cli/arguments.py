"""What several commands take: settings, and where to run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.command_text import load_object, parse_settings
from dm_env_rpc_client.connection import connect
from dm_env_rpc_client.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.worlds import join_world, make

__all__ = [
    "CreateSettings",
    "Insecure",
    "JoinSettings",
    "Json",
    "Timeout",
    "World",
    "load_object",
    "open_environment",
    "parse_settings",
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
    float, typer.Option("--timeout", help="Seconds to wait for a connection and for each answer.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="Allow plaintext to or from other machines.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


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
    if world is None:
        with make(
            address, create, join, timeout=timeout, request_timeout=timeout, insecure=insecure
        ) as env:
            yield env
        return
    if create:
        raise UsageError("--create is for a world that is created, --world for one that exists")
    with (
        connect(address, timeout=timeout, request_timeout=timeout, insecure=insecure) as connection,
        join_world(connection, world, join) as env,
    ):
        yield env
