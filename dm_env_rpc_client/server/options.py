"""The options of `serve`, as keyword arguments and as one dataclass.

The command line takes the defaults, checks and help texts of its options from this module. To keep
the command line fast, slow modules are imported only in the functions that need them.
"""

from __future__ import annotations

import dataclasses
import functools
import select
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Union, get_args

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.memory_limits import DEFAULT, Limits

if TYPE_CHECKING:
    from google.protobuf import message as protobuf_message

    from dm_env_rpc_client.server.factories import Factory, Hosted
    from dm_env_rpc_client.server.properties import Properties
    from dm_env_rpc_client.server.worlds.world import Game, World
    from dm_env_rpc_client.system.foreign_environments import Conversion
    from dm_env_rpc_client.transports.endpoint import Transport
    from dm_env_rpc_client.transports.net.credentials import ServerCredentials

ANYWHERE = "localhost:0"

UNNAMED = ""
"""The name given to the only environment on a server."""

Handler: TypeAlias = Callable[[Any, Union["World", None]], "protobuf_message.Message"]

Threads: TypeAlias = Literal["world"]
Thread: TypeAlias = Literal["main"]
Arrays: TypeAlias = Literal["auto", "numpy", "torch", "jax"]


class HostKeywords(TypedDict, total=False):
    """The keyword arguments of `serve` that can also be passed to another process."""

    credentials: ServerCredentials | None
    token: str | None
    insecure: bool
    default_actions: Mapping[str, Any] | None
    extensions: Mapping[type[protobuf_message.Message], Handler] | None
    step_timeout: float | None
    max_connections: int
    max_worlds: int
    idle_world_seconds: float | None
    send_tracebacks: bool | None
    limits: Limits
    transport: Transport
    processes: int | None
    callable_names: Sequence[str]
    settable_names: Sequence[str]
    autoreset_mode: Any
    arrays: Arrays
    threads: Threads | None
    thread: Thread | None
    singleton: bool


class ServeKeywords(HostKeywords, total=False):
    """The keyword arguments of `serve`: the fields of `ServeOptions`, and `properties`."""

    properties: Properties | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """The arguments of `serve` except `properties`, validated on creation.

    It can be sent to another process if its values can.

    Attributes:
      environment: as for `serve`.
      address: as for `serve`.
      credentials: TLS credentials: a `Tls` with `cert` and `key`, and with `ca` if clients need a
        certificate; an ssl.SSLContext; or a grpc.ServerCredentials. None for plaintext.
      token: a secret that clients must send as the metadata `authorization: Bearer <token>`, as
        `connect(token=...)` does. A stream without the token ends immediately with
        UNAUTHENTICATED. None admits every client.
      insecure: allow plaintext on an address that other machines can reach.
      default_actions: values, by flat name, of actions that a step may omit; they take precedence
        over the environment's or game's own attribute `default_actions`.
      extensions: handlers by message class. A handler is called with a message of its class and
        the joined `World`, or None if no world is joined, and returns a message as the answer.
      step_timeout: maximum time, in seconds, that a step in a `Game` waits for the other agents;
        more than 0, or None for no limit.
      max_connections: clients beyond this number are refused with RESOURCE_EXHAUSTED, unless one of
        the others has had no world and has sent nothing for 10 s: it is dropped instead.
      max_worlds: worlds beyond this number are refused with RESOURCE_EXHAUSTED.
      idle_world_seconds: seconds after which a world is destroyed if it has no agents and the
        connection that created it has ended; 0 destroys it immediately, None keeps it.
      send_tracebacks: whether an INTERNAL error includes the environment's traceback, which shows
        paths and code on this machine; None sends it only to clients on this machine.
      limits: limits on requests, so that a small request cannot take up much memory, and on the
        settings of all worlds together.
      transport: "http2", the fastest, is this package's own transport over sockets; "grpc" is
        grpcio's server; "auto" selects http2 unless the credentials or the address require grpcio,
        or the system is not Linux.
      processes: the number of processes that host the worlds, for environments that compute in
        Python; see "Several processes" in the guide. By default, the server's own process hosts
        them.
      callable_names: the methods of Gymnasium environments that clients may call, and the
        attributes that they may read, as `RemoteVectorEnv.call` and `get_attr` do. Only data is
        transferred, not objects.
      settable_names: the attributes of Gymnasium environments that clients may set.
      autoreset_mode: when the rows of a vector environment begin their next episodes, as a mode of
        Gymnasium's `AutoresetMode` or its name: in the step that ends an episode (SAME_STEP), in
        the step after it (NEXT_STEP), or in a `reset` with the option `reset_mask` (DISABLED). It
        is meant for environments without a mode in their `metadata`; the modes of Gymnasium's own,
        ALE and EnvPool environments are known.
      arrays: the library whose arrays Gymnasium environments receive as actions and masks: "auto"
        selects the library and device of their first observation; pass "numpy", "torch" or "jax"
        if that observation does not show the library. Environments may return arrays of any of
        these libraries; see "Tensors" in the guide.
      threads: "world" gives each environment, including each row of a batch, a thread of its own;
        it is meant for environments that wait in their steps. By default, cheap environments share
        the thread that reads requests; see "Threads" in the guide.
      thread: "main" runs all environments, from their constructors on, in the thread that waits
        for the end of the server (`Server.wait`); it is meant for environments that need the main
        thread, such as some simulators and those that open windows. By default, environments run
        in threads of the server. Either way, each environment stays in one thread for its
        lifetime.
      singleton: allow only one environment at a time, for simulators that can exist only once in a
        process: `max_worlds` is 1 and `idle_world_seconds` is 0, a reset with new settings closes
        the environment before it creates another, and batches require a factory that makes batches
        itself.

    Raises:
      SpecError: as `serve`.
    """

    environment: Hosted | World | Game | Mapping[str, Hosted]
    address: str = ANYWHERE
    credentials: ServerCredentials | None = None
    # Not in the repr, which may reach a log.
    token: str | None = dataclasses.field(default=None, repr=False)
    insecure: bool = False
    default_actions: Mapping[str, Any] | None = None
    extensions: Mapping[type[protobuf_message.Message], Handler] | None = None
    step_timeout: float | None = 60.0
    max_connections: int = 256
    max_worlds: int = 1024
    idle_world_seconds: float | None = 60.0
    send_tracebacks: bool | None = None
    limits: Limits = DEFAULT
    transport: Transport = "auto"
    processes: int | None = None
    callable_names: Sequence[str] = ()
    settable_names: Sequence[str] = ()
    autoreset_mode: Any = None
    arrays: Arrays = "auto"
    threads: Threads | None = None
    thread: Thread | None = None
    singleton: bool = False

    def __post_init__(self) -> None:
        from dm_env_rpc_client.transports.endpoint import check_transport
        from dm_env_rpc_client.transports.net.metadata import bearer
        from dm_env_rpc_client.transports.server_streams import check_may_listen

        # The checks convert values to Python's own types, hence the assignments despite `frozen`.
        for option, check in _CHECKS.items():
            object.__setattr__(self, option, check(option, getattr(self, option)))
        check_transport(self.transport)
        if self.threads is not None and self.thread is not None:
            raise SpecError(
                "thread='main' uses one thread for all environments, but threads='world' uses one "
                "thread per world; pass only one of these arguments"
            )
        if self.singleton:
            self._check_singleton()
        check_may_listen(self.address, self.credentials, self.insecure)
        if self.token is not None:
            bearer(self.token)
        # `factories` checks the environments, also of a server without `processes`.
        self._check_processes(self.factories())

    def _check_singleton(self) -> None:
        if self.processes is not None:
            raise SpecError(
                f"singleton=True allows only one environment, but processes={self.processes} is "
                "for hosting several; omit processes, and start a server for each simulator"
            )
        # The world of a client that was killed must not keep the next one waiting.
        object.__setattr__(self, "max_worlds", 1)
        object.__setattr__(self, "idle_world_seconds", 0.0)

    def _check_processes(self, factories: Mapping[str, Factory]) -> None:
        from dm_env_rpc_client.server.single_instance import Instance
        from dm_env_rpc_client.system.polling import why_no_epoll

        if self.processes is None:
            return
        existing = [each.name for each in factories.values() if isinstance(each, Instance)]
        if self.made is not None:
            existing.append(f"a {type(self.made).__name__}")
        if existing:
            raise SpecError(
                f"processes={self.processes}: {existing[0]} already exists in this process and "
                "cannot be moved to another; pass a factory, such as its class, instead"
            )
        if not hasattr(select, "epoll"):
            raise SpecError(f"processes={self.processes} requires {why_no_epoll()}")

    def factories(self) -> dict[str, Factory]:
        """Return the factories of worlds by name; see `hosted`.

        The result is empty if the server hosts a single world that already exists.
        """
        from dm_env_rpc_client.server.factories import factories_of

        return factories_of(self.hosted, self.insecure, self.conversion)

    @property
    def conversion(self) -> Conversion:
        """The options for converting environments from other libraries."""
        from dm_env_rpc_client.system.foreign_environments import Conversion

        return Conversion(self.autoreset_mode, self.arrays)

    @property
    def made(self) -> World | Game | None:
        """The existing world or game to serve, or None if there is none."""
        from dm_env_rpc_client.server.worlds.world import Game, World

        return self.environment if isinstance(self.environment, World | Game) else None

    @property
    def hosted(self) -> Mapping[str, Hosted]:
        """The factories by name, or {} if the only world already exists."""
        if self.made is not None:
            return {}
        hosted: Any = self.environment
        return hosted if isinstance(hosted, Mapping) else {UNNAMED: hosted}


def checked(option: str, value: Any) -> Any:
    """Return the value of a single option, checked and converted to a built-in type.

    Raises:
      SpecError: the value is of another type or out of range.
    """
    return _CHECKS[option](option, value)


def _names(option: str, value: Any) -> Any:
    names = arguments.names(option, value)
    if not all(map(str.isidentifier, names)):
        raise arguments.refused(option, "a sequence of names", names)
    return names


def _mode(option: str, value: Any) -> str | None:
    """Return the name of a Gymnasium `AutoresetMode`, or raise SpecError if it is unknown."""
    from dm_env_rpc_client.protocol.autoreset import MODES

    if value is None:
        return None
    for name, own in MODES.items():
        if value in (name, own) or getattr(value, "value", None) == own:
            return name
    expected = f"one of {', '.join(map(repr, MODES))}"
    raise arguments.refused(
        option, expected, value, "None for the mode that the environment declares"
    )


def _one_of(known: Sequence[str], option: str, value: Any) -> Any:
    return value if value is None else arguments.one_of(option, value, known)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = MappingProxyType(
    {
        "callable_names": _names,
        "settable_names": _names,
        "autoreset_mode": _mode,
        "default_actions": functools.partial(arguments.mapping, none="None"),
        "extensions": functools.partial(
            arguments.mapping, expected="a mapping of classes", none="None"
        ),
        "send_tracebacks": functools.partial(
            arguments.flag, none="None for clients on this machine"
        ),
        "limits": functools.partial(arguments.instance, kind=Limits, expected="a Limits"),
        "step_timeout": functools.partial(arguments.seconds, none=arguments.NO_LIMIT),
        "idle_world_seconds": functools.partial(
            arguments.seconds, least=0.0, none="None to keep worlds"
        ),
        "max_connections": arguments.count,
        "max_worlds": arguments.count,
        "processes": functools.partial(arguments.count, none="None for this one"),
        "singleton": arguments.flag,
        "arrays": lambda option, value: arguments.one_of(option, value, get_args(Arrays)),
        "threads": functools.partial(_one_of, get_args(Threads)),
        "thread": functools.partial(_one_of, get_args(Thread)),
    }
)
