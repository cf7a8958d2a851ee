"""Options for making and adapting environments, as keyword arguments and as objects.

Forwarded keyword arguments are declared in TypedDicts, so that type checkers report misspelt
arguments. At run time, such arguments raise a TypeError.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client.connect_options import ConnectKeywords, ConnectOptions
from dm_env_rpc_client.environment.base_adaptor import BaseAdaptor
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.requested import check_adapting
from dm_env_rpc_client.environment.restarting import Restart, restart_of
from dm_env_rpc_client.plain_text import did_you_mean

if TYPE_CHECKING:
    from dm_env_rpc_client.client.async_connection import AsyncConnection
    from dm_env_rpc_client.client.connection import Connection
    from dm_env_rpc_client.environment.async_dm_env_adaptor import AsyncDmEnvAdaptor, AsyncRejoin
    from dm_env_rpc_client.environment.base_adaptor import Extensions
    from dm_env_rpc_client.environment.dm_env_adaptor import Rejoin
    from dm_env_rpc_client.environment.requested import AutoObservations


class AdaptorKeywords(TypedDict, total=False):
    """Keyword arguments of `DmEnvAdaptor`."""

    requested_observations: Sequence[str] | AutoObservations | None
    nested_tensors: bool
    extensions: Extensions[Connection] | None
    rejoin: Rejoin | None
    unwrap_single: bool
    arrays: str
    device: Any


class JoinKeywords(AdaptorKeywords, total=False):
    """Keyword arguments of `join_world`."""

    adaptor_class: type[DmEnvAdaptor]


class AsyncAdaptorKeywords(TypedDict, total=False):
    """Keyword arguments of `AsyncDmEnvAdaptor`."""

    requested_observations: Sequence[str] | AutoObservations | None
    nested_tensors: bool
    extensions: Extensions[AsyncConnection] | None
    rejoin: AsyncRejoin | None
    unwrap_single: bool
    arrays: str
    device: Any


class AsyncJoinKeywords(AsyncAdaptorKeywords, total=False):
    """Keyword arguments of `join_world_async`."""

    adaptor_class: type[AsyncDmEnvAdaptor]


class MakeKeywords(ConnectKeywords, JoinKeywords, total=False):
    """Keyword arguments of `make` except `restart` and `python`, which are in its signature."""


class AsyncMakeKeywords(ConnectKeywords, AsyncJoinKeywords, total=False):
    """Keyword arguments of `make_async` except `restart` and `python`; see `MakeKeywords`."""


class PassedKeywords(ConnectKeywords, total=False):
    """Keyword arguments that adaptors for other libraries pass to `make`."""

    python: str | os.PathLike[str] | None
    adaptor_class: type[DmEnvAdaptor]
    extensions: Extensions[Connection] | None


class PlayersKeywords(PassedKeywords, total=False):
    """Keyword arguments that adaptors pass to `make`, including the requested observations."""

    requested_observations: Sequence[str] | AutoObservations | None


class RemoteKeywords(PassedKeywords, total=False):
    """Keyword arguments that adaptors pass to `make`, including those for restarts."""

    restart: Restart | bool | None


class BatchKeywords(RemoteKeywords, total=False):
    """Keyword arguments that batches pass to `make`."""

    requested_observations: Sequence[str] | AutoObservations | None


class VectorKeywords(BatchKeywords, total=False):
    """Keyword arguments that other vector environments pass to `RemoteVectorEnv`."""

    copy: bool
    num_batches: int | None
    unwrap_single: bool
    seed_setting: str | None
    render_mode: str | None


@dataclasses.dataclass(frozen=True)
class AdaptOptions:
    """Options for adaptors: the class and its arguments, except for the connection and specs.

    All arguments are kept as passed, since a subclass can accept arguments that `DmEnvAdaptor`
    does not accept.

    Raises:
      SpecError: an argument has a wrong type.
      TypeError: the class does not accept an argument; the message includes a hint.
    """

    adaptor_class: Callable[..., BaseAdaptor] = DmEnvAdaptor
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_adapting(self.keywords)
        parameters = inspect.signature(self.adaptor_class).parameters
        # A class with `**kwargs` checks its keywords itself.
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            return
        for name in self.arguments:
            if name not in parameters:
                # Settings as keywords are the usual mistake, so the error shows where they go.
                hint = did_you_mean(name, {*_MAKE, *parameters})
                setting = f"settings are passed in a dictionary: make(address, {{{name!r}: ...}})"
                raise TypeError(
                    f"make() got an unexpected keyword argument {name!r}{hint or f'; {setting}'}"
                )

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of `join_world`."""
        return {"adaptor_class": self.adaptor_class, **self.arguments}

    @property
    def is_for_batches(self) -> bool:
        """Whether environments with these options can share a stream."""
        # Extensions need a connection for each environment, and so does a custom rejoin.
        own = any(self.arguments.get(name) is not None for name in ("extensions", "rejoin"))
        return self.adaptor_class is DmEnvAdaptor and not own


@dataclasses.dataclass(frozen=True)
class MakeOptions:
    """Options for making environments: the arguments of `make` except the address and the settings.

    Attributes:
      joins_created: whether JoinWorld is sent together with CreateWorld, without the name of the
        world, to a server that is known to make batches.

    Raises:
      SpecError: an argument has a wrong type.
    """

    connect: ConnectOptions
    adapt: AdaptOptions
    restart: Restart | None = None
    python: str | os.PathLike[str] | None = None
    joins_created: bool = False

    def __post_init__(self) -> None:
        arguments.path("python", self.python, none="None for the interpreter of this process")

    @classmethod
    def of(cls, make_kwargs: Mapping[str, object]) -> MakeOptions:
        """Convert the keyword arguments of `make`, all of which are optional, to options.

        Args:
          make_kwargs: the keyword arguments, such as `MakeKeywords` or `BatchKeywords`, which type
            checkers have checked.

        Raises:
          SpecError: an argument has a wrong type or is out of range.
          TypeError: neither `make` nor the adaptor has such an argument.
        """
        given: dict[str, Any] = dict(make_kwargs)
        connecting = {name: given.pop(name) for name in _CONNECT & given.keys()}
        restart, python = restart_of(given.pop("restart", None)), given.pop("python", None)
        adapt = AdaptOptions(given.pop("adaptor_class", DmEnvAdaptor), given)
        return cls(ConnectOptions(**connecting), adapt, restart, python)

    def flat(self, adaptor_class: Callable[..., BaseAdaptor] | None = None) -> MakeOptions:
        """Return these options with flat actions and observations and, if given, another class."""
        adapt = self.adapt
        arguments = dict(nested_tensors=False, **adapt.arguments)
        return dataclasses.replace(
            self, adapt=AdaptOptions(adaptor_class or adapt.adaptor_class, arguments)
        )

    @property
    def keywords(self) -> dict[str, Any]:
        """The keyword arguments of `make`."""
        connecting = {name: getattr(self.connect, name) for name in _CONNECT}
        making = {"restart": self.restart, "python": self.python}
        return {**connecting, **making, **self.adapt.keywords}


_CONNECT = {field.name for field in dataclasses.fields(ConnectOptions)}

_MAKE = {
    *_CONNECT,
    *("create_world_settings", "join_world_settings", "restart", "python", "adaptor_class"),
}
