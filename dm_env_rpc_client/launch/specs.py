"""Servers to launch, as text: `process:COMMAND`, `docker:IMAGE ARGUMENTS`, `python:MODULE:NAME`."""

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
"""Starts a server; called again to start it again."""

Address: TypeAlias = str | Launcher
"""Where a server is, or how to start one: a text, see `launcher_of`, or a function."""


def is_address(given: Address) -> bool:
    """Whether this is the address of a server that is running, and not one to launch."""
    return isinstance(given, str) and not sources.is_launch(given)


def launcher_of(
    given: Address,
    options: ConnectOptions,
    progress: Progress | None = None,
    python: str | os.PathLike[str] | None = None,
) -> Launcher:
    """Return the function that starts the server named by a text; a function is returned unchanged.

    Args:
      given: `process:COMMAND` with `{port}` or `{socket}` in it, split as a shell does;
        `docker:IMAGE`, perhaps with arguments for the image's entry point, and `{port}` in them;
        `python:MODULE:NAME`, perhaps with ` --thread main` behind it; or an environment of another
        package, such as `gymnasium://CartPole-v1`, as `dm-env-rpc serve` takes it.
      options: how to connect to it; `timeout` are the seconds until it must answer, for a
        `DefaultSeconds` it is `START_SECONDS`.
      progress: called while an image is pulled.
      python: the interpreter for `python:`; None for that of this process.

    Raises:
      SpecError: the text has another form.
    """
    if python is not None and not (isinstance(given, str) and given.startswith(sources.PYTHON)):
        raise SpecError(f"python={os.fspath(python)!r} is for python:MODULE:NAME, got {given!r}")
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
        raise SpecError(f"expected {scheme} and what to start, got {given!r}")
    connecting = options.of_launched
    if scheme == sources.PROCESS:
        return functools.partial(from_process, argv, timeout=seconds, **connecting)
    return functools.partial(
        from_docker, argv[0], argv[1:], timeout=seconds, progress=progress, **connecting
    )


def _without_thread(text: str) -> tuple[str, bool]:
    """Return the object named by `python:`, and whether it needs the main thread."""
    reference, found, option = text.partition(" ")
    if not found:
        return text, False
    if option.split() != ["--thread", "main"]:
        raise SpecError(
            f"behind python:{reference} there may be --thread main and nothing else, got {option!r}"
        )
    return reference, True


def _check_launches(given: Any) -> None:
    """Raise SpecError for values that are often passed in place of an address."""
    expected = "a server address looks like 'localhost:50051'"
    if isinstance(given, int):
        raise SpecError(f"{expected}, got the number {given}; did you mean 'localhost:{given}'?")
    if isinstance(given, type) and not issubclass(given, Launch):
        raise SpecError(
            f"{expected}, got the class {given.__name__}; "
            f"'python:{given.__module__}:{given.__qualname__}' starts a server of it"
        )
    if not callable(given):
        raise SpecError(f"{expected}, or is a function that launches one, got {given!r}")
