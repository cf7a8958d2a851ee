"""The environments that `dm-env-rpc serve` can serve, by the text that names them."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import pkgutil
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dm_env

from dm_env_rpc_client import server
from dm_env_rpc_client.bridges import gym_socket
from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.displays.plain_text import did_you_mean
from dm_env_rpc_client.environment.worlds import make
from dm_env_rpc_client.errors import DmEnvRpcClientError, install_command
from dm_env_rpc_client.server.hosting import try_out
from dm_env_rpc_client.system.objects import load_object, raised_by
from dm_env_rpc_client.tensors import nesting

__all__ = ["WHAT_THERE_IS", "Source", "find_source", "try_source"]

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
        if scheme not in _SCHEMES:
            meant = did_you_mean(scheme, _SCHEMES)
            raise UsageError(
                f"unknown scheme {scheme}://{meant or '; known: ' + ', '.join(_SCHEMES)}"
            )
        return _SCHEMES[scheme](rest, insecure)
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
        if _lacks_settings(source.factory, settings):
            hint = "; give it with --create NAME=VALUE, or pass --no-try if the clients send it"
        raise UsageError(f"cannot make {what}: {error}{hint}") from error
    except (Exception, SystemExit) as error:
        raise UsageError(f"cannot make {what}: {raised_by(error)}") from error


def _lacks_settings(factory: Callable[..., Any], settings: Mapping[str, Any]) -> bool:
    """Whether all that is wrong with some settings is that there are too few."""
    signature = inspect.signature(factory)
    arguments = nesting.unflatten_dict(settings, nesting.SEPARATOR)
    try:
        signature.bind_partial(**arguments)
    except TypeError:
        return False
    try:
        signature.bind(**arguments)
    except TypeError:
        return True
    return False


def _gymnasium(rest: str, insecure: bool) -> Source:
    _check_installed("gymnasium", f"extra: {install_command('gymnasium')}")
    return Source(rest, _LibrarySource("gymnasium:make", (rest,)))


def _pettingzoo(rest: str, insecure: bool) -> Source:
    _check_installed("pettingzoo", f"extra: {install_command('pettingzoo')}")
    made_by = "dm_env_rpc_client.adaptors.pettingzoo.game:make"
    return Source(rest, _LibrarySource(made_by, (rest,)))


def _dm_control(rest: str, insecure: bool) -> Source:
    domain, found, task = rest.partition("/")
    if not found or not domain or not task:
        raise UsageError(
            "an environment of dm_control looks like dm_control://DOMAIN/TASK, such as "
            f"dm_control://cartpole/swingup; got dm_control://{rest}"
        )
    _check_installed("dm_control", "package: pip install dm-control")
    return Source(rest, _LibrarySource("dm_control.suite:load", (domain, task)))


def _bsuite(rest: str, insecure: bool) -> Source:
    _check_installed("bsuite", "package: pip install bsuite")
    return Source(rest, _LibrarySource("bsuite:load_from_id", (rest,)))


def _check_installed(library: str, needed: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise UsageError(f"{library}:// needs the {needed}")


def _gym_socket(rest: str, insecure: bool) -> Source:
    address, found, path = rest.partition("/")
    name, _, query = path.partition("?")
    options = dict(urllib.parse.parse_qsl(query))
    dialect: Any = options.pop("dialect", "first")
    if not found or not name or options:
        raise UsageError(
            "the address of a gym-socket-api environment looks like gym-socket://HOST:PORT/NAME or "
            f".../NAME?dialect=latest, got gym-socket://{rest}"
        )
    return Source(name, _GymSocketSource(address, name, dialect, insecure))


def _dm_env_rpc(rest: str, insecure: bool) -> Source:
    return Source("environment", _DmEnvRpcSource(rest, insecure))


_SHIPPED: dict[str, Callable[..., Any]] = {"catch": server.Catch, "race": server.Race}

_SCHEMES = {
    "gymnasium": _gymnasium,
    "pettingzoo": _pettingzoo,
    "dm_control": _dm_control,
    "bsuite": _bsuite,
    "gym-socket": _gym_socket,
    "dm-env-rpc": _dm_env_rpc,
}


# Classes instead of closures, because a session in its own process gets its factory pickled.


@dataclasses.dataclass(frozen=True)
class _LibrarySource:
    """Calls a function of a library, which is imported when it makes its first environment."""

    function: str
    arguments: tuple[str, ...]

    def __call__(self, **settings: Any) -> Any:
        return pkgutil.resolve_name(self.function)(*self.arguments, **settings)


@dataclasses.dataclass(frozen=True)
class _GymSocketSource:
    address: str
    name: str
    dialect: Any
    insecure: bool

    def __call__(self) -> dm_env.Environment:
        return gym_socket.GymSocketEnvironment(
            self.address, self.name, dialect=self.dialect, insecure=self.insecure
        )


@dataclasses.dataclass(frozen=True)
class _DmEnvRpcSource:
    address: str
    insecure: bool

    def __call__(self, **settings: Any) -> dm_env.Environment:
        return make(self.address, settings, insecure=self.insecure)
