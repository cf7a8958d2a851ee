"""Looks up the environments that strings specify for `serve`, `dm-env-rpc serve` and `make`.

The server and the command resolve environment strings in the same way, without importing the
client or the bridges. Functions that create environments are listed here by name. Each function is
imported when the first environment of its kind is requested.

The strings that specify a server to launch are parsed here, not in `launch`, so that a command
that is given an address imports only what it needs.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
import traceback
import urllib.parse
from collections.abc import Callable
from typing import Any, NamedTuple

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.extras import install_command
from dm_env_rpc_client.plain_text import did_you_mean

PROCESS, DOCKER, PYTHON = "process:", "docker:", "python:"
"""The prefixes of strings that specify a server to launch. `launch.specs` describes what follows
these prefixes."""

SOURCES = ("gymnasium://", "pettingzoo://", "dm_control://", "bsuite://")
"""The prefixes of strings that name an environment from another package for `dm-env-rpc serve`."""


def is_launch(text: str) -> bool:
    """Whether `text` specifies a server to launch rather than an address."""
    return text.startswith((PROCESS, DOCKER, PYTHON, *SOURCES))


def look_in_current_folder() -> None:
    """Make imports also search the current folder, as Python commands do."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def load_object(reference: str, what: str) -> Any:
    """Import the object specified by MODULE:NAME.

    Args:
      reference: MODULE:NAME.
      what: the purpose of the object, for error messages.

    Raises:
      SpecError: the module cannot be imported, or has no such object.
    """
    module_name, found, name = reference.partition(":")
    if not found or not module_name or not name:
        raise SpecError(
            f"{what} must be given as MODULE:NAME, such as my_envs:make, got {reference!r}"
        )
    try:
        loaded: Any = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise SpecError(f"cannot import {module_name!r}: {raised_by(error)}") from error
    for part in name.split("."):
        try:
            loaded = getattr(loaded, part)
        except AttributeError:
            raise SpecError(f"{module_name!r} has no {name!r}") from None
        except Exception as error:
            raise SpecError(
                f"cannot get {name!r} from {module_name!r}: {raised_by(error)}"
            ) from error
    return loaded


def guarded(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    """Wrap a user's function so that its errors identify it as their cause.

    Args:
      function: a function that `load_object` returned.
      what: the purpose of the function, for error messages.

    Returns:
      A function with the arguments and the result of `function`. It raises SpecError instead of
      any other exception.
    """

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except SpecError:
            raise
        except (Exception, SystemExit) as error:
            raise SpecError(f"{what} failed: {raised_by(error)}") from error

    return call


def raised_by(error: BaseException) -> str:
    """Return a one-line description of an error and the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


WHAT_THERE_IS = (
    "name one of these: catch, an example game for one agent; race, one for several; "
    "MODULE:FACTORY, such as my_envs:make; gymnasium://ID, such as gymnasium://CartPole-v1; "
    "pettingzoo://FAMILY/NAME, for several agents; dm_control://DOMAIN/TASK; bsuite://NAME/NUMBER; "
    "gym-socket://HOST:PORT/NAME or dm-env-rpc://HOST:PORT, the environment of another server"
)


class Source(NamedTuple):
    """An environment's name and the factory that creates it.

    Attributes:
      name: the name of the environment, for protocols in which clients request environments by
        name.
      factory: a function that receives settings as keyword arguments and returns an environment.
        It can be pickled if the object that the source specifies can be pickled.
    """

    name: str
    factory: Callable[..., Any]


def find_source(reference: str, insecure: bool) -> Source:
    """Find the environment source that a string specifies.

    Args:
      reference: catch, race, MODULE:FACTORY, gymnasium://ID, pettingzoo://FAMILY/NAME,
        dm_control://DOMAIN/TASK, bsuite://ID, gym-socket://HOST:PORT/NAME (followed by
        ?dialect=latest for the dialect of that name), or dm-env-rpc://HOST:PORT.
      insecure: whether plaintext connections to other machines are allowed.

    Raises:
      SpecError: the source does not exist, or a package it needs is not installed.
    """
    if reference in _SHIPPED:
        return Source(reference, pkgutil.resolve_name(_SHIPPED[reference]))
    scheme, found, rest = reference.partition("://")
    if found:
        if scheme in _LIBRARIES:
            return _of_library(scheme, rest)
        if scheme in _SERVERS:
            return _SERVERS[scheme](rest, insecure)
        known = (*_LIBRARIES, *_SERVERS)
        meant = did_you_mean(scheme, known) or f"; known: {', '.join(known)}"
        raise SpecError(f"unknown scheme {scheme}://{meant}")
    if ":" not in reference:
        meant = did_you_mean(reference, _SHIPPED)
        if re.fullmatch(r"[\w/-]+-v\d+", reference):
            meant = f"; did you mean 'gymnasium://{reference}'?"
        raise SpecError(f"there is no environment {reference!r}{meant or '; ' + WHAT_THERE_IS}")
    try:
        factory = load_object(reference, "an environment")
    except SpecError as error:
        if reference.startswith((PROCESS, DOCKER, PYTHON)):
            raise _is_address(reference) from error
        raise
    if not callable(factory):
        raise SpecError(
            f"{reference} is not callable: it is an instance of {type(factory).__name__}; specify "
            "a callable that returns an environment, such as a class"
        )
    return Source(reference.partition(":")[2], factory)


def _is_address(reference: str) -> SpecError:
    scheme, _, rest = reference.partition(":")
    is_factory = f"{scheme}:" == PYTHON and all(rest.partition(":"))
    return SpecError(
        f"{reference} is an address that starts a server, for what connects to one; serve takes "
        f"{rest if is_factory else 'MODULE:FACTORY'}"
    )


def _call(function: str, *arguments: Any, **settings: Any) -> Any:
    """Call the named function with the given arguments. The first call imports its module."""
    return pkgutil.resolve_name(function)(*arguments, **settings)


def _of_library(library: str, rest: str) -> Source:
    """Return a library's environment source, or raise SpecError if it is not installed."""
    _check_installed(library, library)
    names = rest.split("/", 1) if library == "dm_control" else [rest]
    if library == "dm_control" and not (len(names) == 2 and all(names)):
        raise SpecError(
            "expected dm_control://DOMAIN/TASK, such as dm_control://cartpole/swingup, got "
            f"dm_control://{rest}"
        )
    return Source(rest, functools.partial(_call, _LIBRARIES[library], *names))


def _check_installed(library: str, scheme: str) -> None:
    if importlib.util.find_spec(library) is None:
        package = f"package: pip install {library.replace('_', '-')}"
        needed = f"extra: {install_command(library)}" if library in _EXTRAS else package
        raise SpecError(f"{scheme}:// requires the {needed}")


def _gym_socket(rest: str, insecure: bool) -> Source:
    address, _, path = rest.partition("/")
    name, _, query = path.partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    dialect = options.pop("dialect", "first")
    if not name or options:
        raise SpecError(
            "the address of a gym-socket-api environment must be gym-socket://HOST:PORT/NAME or "
            f".../NAME?dialect=latest, got gym-socket://{rest}"
        )
    _check_installed("gymnasium", "gym-socket")
    function = "dm_env_rpc_client.bridges.gym_socket:GymSocketEnvironment"
    keywords = {"dialect": dialect, "insecure": insecure}
    return Source(name, functools.partial(_call, function, address, name, **keywords))


def _dm_env_rpc(rest: str, insecure: bool) -> Source:
    return Source("environment", functools.partial(_connected, rest, insecure))


def _connected(address: str, insecure: bool, **settings: Any) -> Any:
    make = pkgutil.resolve_name("dm_env_rpc_client.environment.worlds:make")
    return make(address, settings, insecure=insecure)


_SHIPPED = {
    "catch": "dm_env_rpc_client.server.games.catch:Catch",
    "race": "dm_env_rpc_client.server.games.race:Race",
}

_LIBRARIES = {
    "gymnasium": "gymnasium:make",
    "pettingzoo": "dm_env_rpc_client.adaptors.pettingzoo.game:make",
    "dm_control": "dm_control.suite:load",
    "bsuite": "bsuite:load_from_id",
}

_EXTRAS = ("gymnasium", "pettingzoo")

_SERVERS = {"gym-socket": _gym_socket, "dm-env-rpc": _dm_env_rpc}
