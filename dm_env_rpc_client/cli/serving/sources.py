"""The environments that `dm-env-rpc serve` can serve, by the text that names them."""

from __future__ import annotations

import functools
import importlib.util
import pathlib
import pkgutil
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dm_env

from dm_env_rpc_client import server
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.environment.worlds import make
from dm_env_rpc_client.errors import DmEnvRpcClientError, install_command
from dm_env_rpc_client.plain_text import did_you_mean
from dm_env_rpc_client.server.hosting import try_out
from dm_env_rpc_client.system.objects import load_object, raised_by
from dm_env_rpc_client.tensors import nesting

WHAT_THERE_IS = (
    "name one of these: catch, an example game for one agent; race, one for several; "
    "MODULE:FACTORY, such as my_envs:make; gymnasium://ID, such as gymnasium://CartPole-v1; "
    "pettingzoo://FAMILY/NAME, for several agents; dm_control://DOMAIN/TASK; bsuite://NAME/NUMBER; "
    "gym-socket://HOST:PORT/NAME or dm-env-rpc://HOST:PORT, the environment of another server; "
    "--c-library PATH:CONNECT, a library with the C interface"
)


class Source(NamedTuple):
    """A factory of environments.

    Attributes:
      name: the name of the environment, for protocols in which clients ask by name.
      factory: takes settings as keyword arguments and returns an environment. It can be
        pickled if the named object can.
    """

    name: str
    factory: Callable[..., Any]

    def with_settings(self, settings: Mapping[str, Any]) -> Source:
        """Returns a source that makes all environments with settings, by name, nested or flat."""
        if not settings:
            return self
        arguments = nesting.unflatten_dict(settings, nesting.SEPARATOR)
        return Source(self.name, functools.partial(self.factory, **arguments))


def find_source(reference: str, insecure: bool) -> Source:
    """Finds the source that a command line names.

    Args:
      reference: catch, race, MODULE:FACTORY, gymnasium://ID, pettingzoo://FAMILY/NAME,
        dm_control://DOMAIN/TASK, bsuite://ID, gym-socket://HOST:PORT/NAME (with ?dialect=latest
        at the end for that dialect), or dm-env-rpc://HOST:PORT.
      insecure: whether plaintext connections to other machines are allowed.

    Raises:
      UsageError: the source does not exist, or its extra is not installed.
      SpecError: the module of MODULE:FACTORY, or the factory in it, does not exist.
    """
    if reference in _SHIPPED:
        return Source(reference, _SHIPPED[reference])
    scheme, found, rest = reference.partition("://")
    if found:
        if scheme in _LIBRARIES:
            return _of_library(scheme, rest)
        if scheme in _SERVERS:
            return _SERVERS[scheme](rest, insecure)
        known = (*_LIBRARIES, *_SERVERS)
        meant = did_you_mean(scheme, known) or f"; known: {', '.join(known)}"
        raise UsageError(f"unknown scheme {scheme}://{meant}")
    if ":" not in reference:
        meant = did_you_mean(reference, _SHIPPED)
        raise UsageError(f"there is no environment {reference!r}{meant or '; ' + WHAT_THERE_IS}")
    factory = load_object(reference, "an environment")
    if not callable(factory):
        raise UsageError(f"{reference} is not callable; it must return an environment")
    return Source(reference.partition(":")[2], factory)


def try_source(source: Source, settings: Mapping[str, Any], what: str) -> None:
    """Makes an environment of a source, and closes it.

    Args:
      source: the source.
      settings: by name, nested or flat.
      what: how error messages name the source.

    Raises:
      UsageError: the environment cannot be made with these settings, or is none.
      DmEnvRpcClientError: that of another server cannot be made.
    """
    try:
        try_out(source.factory, nesting.flatten_dict(settings, nesting.SEPARATOR))
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
    """Returns the source of the environments of a library with the C interface.

    Args:
      library: PATH:CONNECT.
      version: of the interface.
      params: C strings for the connect function.

    Raises:
      UsageError: `library` has another form.
      SpecError: as `environment_factory`.
    """
    from dm_env_rpc_client.bridges.env_c_api import environment_factory

    path, _, connect = library.rpartition(":")
    if not path or not connect:
        raise UsageError(
            f"--c-library looks like PATH:CONNECT, such as ./libfoo.so:foo_connect, got {library!r}"
        )
    factory = environment_factory(path, connect, version=version, launch_params=params)
    return Source(pathlib.Path(path).stem, factory)


def _call(function: str, *arguments: str, **settings: Any) -> Any:
    """Calls a function of a library, which is imported when it makes its first environment."""
    return pkgutil.resolve_name(function)(*arguments, **settings)


def _of_library(library: str, rest: str) -> Source:
    """Returns an environment of a library; UsageError if that is not installed."""
    function, needed = _LIBRARIES[library]
    if importlib.util.find_spec(library) is None:
        raise UsageError(f"{library}:// needs the {needed}")
    names = rest.split("/", 1) if library == "dm_control" else [rest]
    if library == "dm_control" and not (len(names) == 2 and all(names)):
        raise UsageError(
            "an environment of dm_control looks like dm_control://DOMAIN/TASK, such as "
            f"dm_control://cartpole/swingup; got dm_control://{rest}"
        )
    return Source(rest, functools.partial(_call, function, *names))


def _gym_socket(rest: str, insecure: bool) -> Source:
    address, _, path = rest.partition("/")
    name, _, query = path.partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    dialect: Any = options.pop("dialect", "first")
    if not name or options:
        raise UsageError(
            "the address of a gym-socket-api environment looks like gym-socket://HOST:PORT/NAME or "
            f".../NAME?dialect=latest, got gym-socket://{rest}"
        )
    make_one = functools.partial(
        gym_socket.GymSocketEnvironment, address, name, dialect=dialect, insecure=insecure
    )
    return Source(name, make_one)


def _dm_env_rpc(rest: str, insecure: bool) -> Source:
    return Source("environment", functools.partial(_connected, rest, insecure))


def _connected(address: str, insecure: bool, **settings: Any) -> dm_env.Environment:
    return make(address, settings, insecure=insecure)


_SHIPPED: dict[str, Callable[..., Any]] = {"catch": server.Catch, "race": server.Race}

_LIBRARIES = {
    "gymnasium": ("gymnasium:make", f"extra: {install_command('gymnasium')}"),
    "pettingzoo": (
        "dm_env_rpc_client.adaptors.pettingzoo.game:make",
        f"extra: {install_command('pettingzoo')}",
    ),
    "dm_control": ("dm_control.suite:load", "package: pip install dm-control"),
    "bsuite": ("bsuite:load_from_id", "package: pip install bsuite"),
}

_SERVERS = {"gym-socket": _gym_socket, "dm-env-rpc": _dm_env_rpc}
