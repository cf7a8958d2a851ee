"""Strings that specify servers: `process:COMMAND`, `docker:IMAGE ARGS`, `python:MODULE:NAME`."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from dm_env_rpc_client.client.connect_options import ConnectOptions, DefaultSeconds
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.launch.containers import Progress, from_docker
from dm_env_rpc_client.launch.launched import Launch
from dm_env_rpc_client.launch.processes import START_SECONDS, from_process, from_python, from_source
from dm_env_rpc_client.system import sources

Launcher: TypeAlias = Callable[[], Launch]
"""A function that starts a server, and restarts it when called again."""

Address: TypeAlias = str | Launcher
"""The address of a server, or a string (see `launcher_of`) or function that launches a server."""


def is_address(given: Address) -> bool:
    """Whether `given` is the address of a running server rather than a server to launch."""
    return isinstance(given, str) and not sources.is_launch(given)


def launcher_of(
    given: Address,
    options: ConnectOptions,
    progress: Progress | None = None,
    python: str | os.PathLike[str] | None = None,
) -> Launcher:
    """Return a function that starts the server specified by `given`, or `given` if it is callable.

    Args:
      given: `process:COMMAND` containing `{port}` or `{socket}`, split as in a shell;
        `docker:IMAGE`, optionally followed by arguments for the image's entry point, in which
        `{port}` is replaced; `python:MODULE:NAME`, optionally followed by ` --thread main`; or a
        source for `dm-env-rpc serve`, such as `gymnasium://CartPole-v1`.
      options: options of the connection; `timeout` limits the time, in seconds, until the server
        answers (`START_SECONDS` for a `DefaultSeconds`).
      progress: called while an image is pulled.
      python: the interpreter for `python:`; None for that of this process.

    Raises:
      SpecError: `given` is a string that has none of these forms.
    """
    if python is not None and not (isinstance(given, str) and given.startswith(sources.PYTHON)):
        raise SpecError(
            f"python={os.fspath(python)!r} works only with python:MODULE:NAME, got {given!r}"
        )
    if not isinstance(given, str):
        _check_launches(given)
        return given
    timeout = options.timeout
    seconds = START_SECONDS if isinstance(timeout, DefaultSeconds) else timeout
    if given.startswith(sources.SOURCES):
        return functools.partial(from_source, given, timeout=seconds)
    name, _, rest = given.partition(":")
    scheme = f"{name}:"
    if scheme == sources.PYTHON:
        reference, is_main = _without_thread(rest)
        thread: Literal["main"] | None = "main" if is_main else None
        return functools.partial(
            from_python, reference, python=python, timeout=seconds, thread=thread
        )
    try:
        argv = shlex.split(rest)
    except ValueError as error:
        raise SpecError(f"cannot split the command {rest!r}: {error}") from error
    if not argv:
        raise SpecError(f"expected {scheme} followed by what to start, got {given!r}")
    connecting = options.of_launched
    if scheme == sources.PROCESS:
        return functools.partial(from_process, argv, timeout=seconds, **connecting)
    return functools.partial(
        from_docker, argv[0], argv[1:], timeout=seconds, progress=progress, **connecting
    )


def _without_thread(text: str) -> tuple[str, bool]:
    """Return the reference in a `python:` string, and whether its server needs the main thread."""
    reference, found, option = text.partition(" ")
    if not found:
        return text, False
    if option.split() != ["--thread", "main"]:
        raise SpecError(f"only --thread main is allowed after python:{reference}, got {option!r}")
    return reference, True


def _check_launches(given: Any) -> None:
    """Raise SpecError for values commonly mistaken for an address."""
    expected = "expected a server address, such as 'localhost:50051'"
    if isinstance(given, int):
        raise SpecError(f"{expected}, got the number {given}; did you mean 'localhost:{given}'?")
    if isinstance(given, type) and not issubclass(given, Launch):
        raise SpecError(
            f"{expected}, got the class {given.__name__}; "
            f"'python:{given.__module__}:{given.__qualname__}' starts a server for it"
        )
    if not callable(given):
        raise SpecError(
            f"{expected}, got {given!r}; a function that launches a server is also accepted"
        )
