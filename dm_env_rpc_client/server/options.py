"""How to serve, as one value."""

from __future__ import annotations

import dataclasses
import select
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from google.protobuf import message as protobuf_message

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.batches import AUTORESET_MODES
from dm_env_rpc_client.server.factories import Factory, Hosted, factories_of
from dm_env_rpc_client.server.instances import Instance
from dm_env_rpc_client.server.worlds.game import Game
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.system.polling import why_no_epoll
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits
from dm_env_rpc_client.transports.credentials import ServerCredentials
from dm_env_rpc_client.transports.endpoint import Transport, check_transport
from dm_env_rpc_client.transports.metadata import bearer
from dm_env_rpc_client.transports.server_streams import check_may_listen

ANYWHERE = "localhost:0"

_THIS_MACHINE = "None for clients on this machine"

UNNAMED = ""
"""The name of an environment that is the only one of its server."""

Handler: TypeAlias = Callable[[Any, World | None], protobuf_message.Message]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """How to serve: the arguments of `serve` but for `properties`, validated when it is made.

    It can be given to another process if its parts can.

    Raises:
      SpecError: as `serve`.
    """

    environment: Hosted | World | Game | Mapping[str, Hosted]
    address: str = ANYWHERE
    credentials: ServerCredentials | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    insecure: bool = False
    default_actions: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    extensions: Mapping[type[protobuf_message.Message], Handler] = dataclasses.field(
        default_factory=dict
    )
    step_timeout: float | None = None
    max_connections: int = 256
    max_worlds: int = 1024
    idle_world_seconds: float | None = None
    send_tracebacks: bool | None = None
    limits: Limits = DEFAULT
    transport: Transport = "auto"
    processes: int | None = None
    callable_names: Sequence[str] = ()
    settable_names: Sequence[str] = ()
    autoreset_mode: Any = None
    threads: Literal["world"] | None = None
    thread: Literal["main"] | None = None

    def __post_init__(self) -> None:
        self._check_values()
        self._check_connecting()
        factories = self.factories()
        processes = self.processes
        if processes is None:
            return
        existing = [each.name for each in factories.values() if isinstance(each, Instance)]
        if isinstance(self.environment, World | Game):
            existing.append(f"a {type(self.environment).__name__}")
        if existing:
            raise SpecError(
                f"processes={processes}: {existing[0]} that exists already belongs to this "
                "process; pass what makes one, such as its class"
            )
        if not hasattr(select, "epoll"):
            raise SpecError(f"a server with processes takes {why_no_epoll()}")

    def _check_values(self) -> None:
        """Checks types and ranges, and has numbers be those of Python."""
        for option in ("callable_names", "settable_names"):
            names = arguments.names(option, getattr(self, option))
            if not all(map(str.isidentifier, names)):
                raise arguments.refused(option, "a sequence of names", names)
        object.__setattr__(self, "autoreset_mode", _mode(self.autoreset_mode))
        arguments.mapping("default_actions", self.default_actions)
        arguments.mapping("extensions", self.extensions, expected="a mapping of classes")
        arguments.flag("send_tracebacks", self.send_tracebacks, none=_THIS_MACHINE)
        arguments.instance("limits", self.limits, Limits, "a Limits")
        numbers = {
            "step_timeout": arguments.seconds(
                "step_timeout", self.step_timeout, none=arguments.NO_LIMIT
            ),
            "idle_world_seconds": arguments.seconds(
                "idle_world_seconds", self.idle_world_seconds, least=0.0, none="None to keep worlds"
            ),
            "max_connections": arguments.count("max_connections", self.max_connections),
            "max_worlds": arguments.count("max_worlds", self.max_worlds),
            "processes": arguments.count("processes", self.processes, none="None for this one"),
        }
        for option, number in numbers.items():
            object.__setattr__(self, option, number)

    def _check_connecting(self) -> None:
        check_transport(self.transport)
        if self.threads is not None:
            arguments.one_of("threads", self.threads, ("world",))
        if self.thread is not None:
            arguments.one_of("thread", self.thread, ("main",))
        if self.threads is not None and self.thread is not None:
            raise SpecError(
                "thread='main' has one thread for all environments, and threads='world' one for "
                "each; pass one of them"
            )
        check_may_listen(self.address, self.credentials, self.insecure)
        if self.token is not None:
            bearer(self.token)

    def factories(self) -> dict[str, Factory]:
        """Returns what worlds are made of, by name; none if there is only one; see `hosted`."""
        return factories_of(self.hosted, self.insecure, self.autoreset_mode)

    @property
    def hosted(self) -> Mapping[str, Hosted]:
        """What is served, by name; nothing if there is one world that is made already."""
        if isinstance(self.environment, World | Game):
            return {}
        if isinstance(self.environment, Mapping):
            return self.environment
        return {UNNAMED: self.environment}


def _mode(given: Any) -> str | None:
    """Returns the name of a mode of Gymnasium's `AutoresetMode`; SpecError if there is none."""
    if given is None:
        return None
    for name, value in AUTORESET_MODES.items():
        if given in (name, value) or getattr(given, "value", None) == value:
            return name
    expected = f"one of {', '.join(map(repr, AUTORESET_MODES))}"
    none = "None for the mode that the environment declares"
    raise arguments.refused("autoreset_mode", expected, given, none)
