"""What several commands take: settings, objects named MODULE:NAME, and where to run."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from dm_env_rpc_client.cli.failures import UsageError
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


def parse_settings(settings: list[str] | None) -> dict[str, Any]:
    """Parses NAME=VALUE strings; a value is JSON, or else the text as it stands.

    Raises:
      UsageError: one has no `=`, or a value is JSON that cannot be a tensor.
    """
    parsed: dict[str, Any] = {}
    for setting in settings or []:
        name, found, text = setting.partition("=")
        if not found or not name:
            raise UsageError(f"a setting looks like rows=6, got {setting!r}")
        try:
            parsed[name] = json.loads(text)
        except json.JSONDecodeError:
            parsed[name] = text
        if parsed[name] is None:
            raise UsageError(f"setting {name!r} has no value: {setting!r}")
    return parsed


def load_object(reference: str, what: str) -> Any:
    """Imports the object that MODULE:NAME names, from the current folder too.

    Raises:
      UsageError: there is none, or its module cannot be imported.
    """
    module_name, found, name = reference.partition(":")
    if not found or not module_name or not name:
        raise UsageError(f"{what} looks like MODULE:NAME, such as my_envs:make, got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded: Any = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(
            f"cannot import {module_name!r}: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(loaded, part):
            raise UsageError(f"{module_name!r} has no {name!r}")
        loaded = getattr(loaded, part)
    return loaded


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
