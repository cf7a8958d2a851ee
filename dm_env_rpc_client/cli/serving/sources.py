"""Prepares environment sources for `dm-env-rpc serve`: adds settings and tries each once."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

from dm_env_rpc_client import server
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.server.serving import try_out
from dm_env_rpc_client.system.foreign_environments import AS_DECLARED, Conversion
from dm_env_rpc_client.system.sources import Source, raised_by
from dm_env_rpc_client.tensors import nesting


def with_settings(source: Source, settings: Mapping[str, Any]) -> Source:
    """Return a source that creates all environments with the given settings."""
    if not settings:
        return source
    arguments = nesting.unflatten_dict(settings, nesting.SEPARATOR)
    return Source(source.name, functools.partial(source.factory, **arguments))


def try_source(
    source: Source, settings: Mapping[str, Any], what: str, conversion: Conversion = AS_DECLARED
) -> None:
    """Create an environment from a source and close it, to check that the source works.

    Args:
      source: the source.
      settings: the create settings, by name, nested or flat.
      what: the name of the source in error messages.
      conversion: how environments of other libraries are converted.

    Raises:
      UsageError: the environment cannot be created with these settings, or is not an environment.
      DmEnvRpcClientError: the environment of another server cannot be created.
    """
    try:
        flat = nesting.flatten_dict(settings, nesting.SEPARATOR)
        try_out(source.factory, flat, conversion)
    except DmEnvRpcClientError:
        raise
    except server.RequestError as error:
        hint = ""
        if "missing a required" in str(error):
            hint = "; give it with --create NAME=VALUE, or pass --no-try if the clients send it"
        raise UsageError(f"cannot make {what}: {error}{hint}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot make {what}: {raised_by(error)}") from error


def library_source(library: str, version: str, params: list[str] | None) -> Source:
    """Return a source that creates environments through a library with the C interface.

    Args:
      library: PATH:CONNECT.
      version: the version of the interface.
      params: C strings for the connect function.

    Raises:
      UsageError: `library` is malformed.
      SpecError: as `environment_factory`.
    """
    from dm_env_rpc_client.bridges.env_c_api import environment_factory

    path, _, connect = library.rpartition(":")
    if not path or not connect:
        raise UsageError(
            f"--c-library must be PATH:CONNECT, such as ./libfoo.so:foo_connect, got {library!r}"
        )
    factory = environment_factory(path, connect, version=version, launch_params=params)
    return Source(pathlib.Path(path).stem, factory)
