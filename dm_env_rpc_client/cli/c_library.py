"""Options for serving a library with the C interface (env_c_api.h)."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from dm_env_rpc_client.cli.failures import UsageError

if TYPE_CHECKING:
    from dm_env_rpc_client.cli.sources import Source

__all__ = ["Library", "Params", "Version", "library_source"]

Library = Annotated[
    str | None,
    typer.Option(
        "--c-library",
        metavar="PATH:CONNECT",
        help="Library with the C interface EnvCApi to serve, in one process per world. CONNECT is "
        "the name of its connect function, or the offset of it, such as +0x1234.",
    ),
]
Version = Annotated[
    str,
    typer.Option(
        "--c-version",
        metavar="VERSION",
        help="Version of env_c_api.h with which the library was compiled.",
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--c-param",
        metavar="TEXT",
        help="C string in the struct that is the first argument of the connect function. "
        "Repeatable.",
    ),
]


def library_source(library: str, version: str, params: list[str] | None) -> Source:
    """Returns the source of the environments of a library.

    Args:
      library: PATH:CONNECT.
      version: of the interface.
      params: C strings for the connect function.

    Raises:
      UsageError: `library` has another form.
      SpecError: as `environment_factory`.
    """
    from dm_env_rpc_client.bridges.env_c_api import environment_factory
    from dm_env_rpc_client.cli.sources import Source

    path, _, connect = library.rpartition(":")
    if not path or not connect:
        raise UsageError(
            f"--c-library looks like PATH:CONNECT, such as ./libfoo.so:foo_connect, got {library!r}"
        )
    factory = environment_factory(path, connect, version=version, launch_params=params)
    return Source(pathlib.Path(path).stem, factory)
