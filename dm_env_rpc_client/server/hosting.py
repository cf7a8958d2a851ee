"""`serve`: puts worlds behind a listener and gives each of its streams a session."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from typing import Any, Protocol

from google.protobuf import message as protobuf_message

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.server.activity import ServerStats
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.extension_handlers import Handler
from dm_env_rpc_client.server.offered_properties import Properties
from dm_env_rpc_client.server.processes.worker import Setup
from dm_env_rpc_client.server.processes.workers import Workers
from dm_env_rpc_client.server.site import Host, Hosted, Site, factories_of, make_world
from dm_env_rpc_client.server.worlds.game import Game
from dm_env_rpc_client.server.worlds.idle_worlds import IDLE_WORLD_SECONDS, check_idle_seconds
from dm_env_rpc_client.server.worlds.shared_world import STEP_TIMEOUT, SharedWorld
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.server.worlds.world_registry import UNNAMED
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits
from dm_env_rpc_client.transports.credentials import ServerCredentials
from dm_env_rpc_client.transports.endpoint import Transport
from dm_env_rpc_client.transports.http2.dial_in.greeting import Dial
from dm_env_rpc_client.transports.listeners import (
    check_may_dial,
    check_processes,
    open_dialing,
    open_listener,
)
from dm_env_rpc_client.transports.server_streams import (
    Listener,
    check_may_listen,
)
from dm_env_rpc_client.transports.tokens import bearer

__all__ = ["Server", "serve", "try_out"]

_log = logging.getLogger(__name__)

_ANYWHERE = "localhost:0"

STOP_SECONDS = 1.0
"""How long open streams may continue when the server stops."""


class _Serving(Protocol):
    """What does the work of a `Server`, whose attributes and methods these are."""

    @property
    def address(self) -> str: ...

    @property
    def errors(self) -> list[BaseException]: ...

    @property
    def world_count(self) -> int: ...

    @property
    def agent_count(self) -> int: ...

    def stats(self) -> ServerStats: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def stop(self, grace: float) -> bool: ...

    def abort(self) -> None:
        """Stops without waiting."""


class _InThisProcess:
    """Serves with the threads of this process."""

    def __init__(self, listener: Listener, host: Host):
        self.address = listener.address
        self.wait = listener.wait
        self.abort = listener.abort
        self._listener = listener
        self._host = host

    @property
    def errors(self) -> list[BaseException]:
        return self._host.error_log.kept

    @property
    def world_count(self) -> int:
        return len(self._host.worlds)

    @property
    def agent_count(self) -> int:
        return self._host.worlds.agent_count

    def stats(self) -> ServerStats:
        host = self._host
        return host.activity.stats(self.world_count, self.agent_count, host.error_log.count)

    def stop(self, grace: float) -> bool:
        self._listener.stop(grace)
        return self._host.worlds.close()


class Server:
    """A running server; made by `serve`.

    Attributes:
      address: where it listens, such as "localhost:40123"; or which program it dials.
    """

    def __init__(self, serving: _Serving):
        self.address = serving.address
        self._serving = serving
        self._is_clean = True
        # Runs when the server is garbage-collected, and when the interpreter exits.
        self._finalizer = weakref.finalize(self, serving.abort)
        _log.info("serving at %s", self.address)

    @property
    def errors(self) -> list[BaseException]:
        """The last 100 exceptions in the environments or the server itself, oldest first.

        The client that caused one received it as an INTERNAL error.
        """
        return self._serving.errors

    @property
    def world_count(self) -> int:
        """The number of worlds."""
        return self._serving.world_count

    @property
    def agent_count(self) -> int:
        """The number of agents that are joined to worlds."""
        return self._serving.agent_count

    def stats(self) -> ServerStats:
        """Returns what the server has done, and what there is now."""
        return self._serving.stats()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server stops, or `timeout` seconds; returns whether it stopped."""
        return self._serving.wait(timeout)

    def stop(self, grace: float = STOP_SECONDS) -> bool:
        """Stops serving and closes the worlds; a second call does nothing.

        Args:
          grace: seconds after which streams that are still open are cancelled.

        Returns:
          Whether all environments were closed. Not, if one was still in a step, if `close` of one
          raised, or if a process had to be killed; `errors` says what happened.
        """
        if self._finalizer.detach() is not None:
            self._is_clean = self._serving.stop(grace)
            _log.info("stopped serving at %s", self.address)
        return self._is_clean

    def __repr__(self) -> str:
        return f"<Server at {self.address}: {self.world_count} worlds, {self.agent_count} agents>"

    def _repr_html_(self) -> str:
        from dm_env_rpc_client.displays.connections import show_facts

        facts = {
            "address": self.address,
            "worlds": self.world_count,
            "agents": self.agent_count,
            "errors": "; ".join(map(repr, self.errors)) or "none",
        }
        return show_facts("Server", facts)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop(0.0)


def serve(
    environment: Hosted | World | Game | Mapping[str, Hosted],
    address: str = _ANYWHERE,
    *,
    credentials: ServerCredentials | None = None,
    token: str | None = None,
    insecure: bool = False,
    default_actions: Mapping[str, Any] | None = None,
    properties: Properties | None = None,
    extensions: Mapping[type[protobuf_message.Message], Handler] | None = None,
    step_timeout: float | None = STEP_TIMEOUT,
    max_connections: int = 256,
    max_worlds: int = 1024,
    idle_world_seconds: float | None = IDLE_WORLD_SECONDS,
    send_tracebacks: bool | None = None,
    limits: Limits = DEFAULT,
    transport: Transport = "auto",
    processes: int | None = None,
    dial: str | None = None,
    dial_environments: int = 1,
) -> Server:
    """Serves environments to dm_env_rpc clients.

    Each CreateWorld creates a new world: a dm_env.Environment, for one agent at a time, or a
    `Game`, for several agents.

    Nested specs are sent as flat names with periods between levels; reward and discount are
    observations. An episode that ends with discount 0 is TERMINATED, any other INTERRUPTED.
    The settings of a Reset or a ResetWorld override those of the creation, and the
    environment is made again with them; a `Game` applies those of a ResetWorld itself, and an
    environment with `reset_settings` and `configure` those of a Reset that it names. When a
    client disconnects, its agent leaves. A world without agents stays until it is destroyed, or
    `idle_world_seconds` beyond the connection that created it.

    Args:
      environment: a callable that takes the settings of a CreateWorld as keyword
        arguments and returns a dm_env.Environment, a gymnasium.Env, an environment of PettingZoo,
        a `Game` or a `World`, or the text "module:factory", which names one; or a dict of those by
        name, from which the create setting "environment" selects one; or a `Game` or a `World`
        itself, which is then the only world and has the empty name.
      address: `host:port` or `unix:path`; port 0 selects a free port.
      credentials: TLS credentials: a `Tls` with `cert` and `key`, and with `ca` if clients need a
        certificate; an ssl.SSLContext; or grpcio's; None for plaintext.
      token: a secret that clients have to send as the metadata `authorization: Bearer <token>`, as
        `connect(token=...)` does. A stream without it ends at once with UNAUTHENTICATED. None
        lets everybody in.
      insecure: allow plaintext on an address that other machines can reach.
      default_actions: values, by flat name, of actions that a step may leave out; they go before
        those of an attribute of this name that the environment or game has.
      properties: properties that all clients can read and write, joined or not. If an
        environment or a game has an attribute `properties` of this type, the clients joined
        to it have those too; of an environment it may also be a mapping from key to a function
        that returns the value. If an environment has the methods of `HasStringProperties`, they
        are called.
      extensions: functions by message class. Each answers extensions of its class: it is
        called with the message and the joined `World`, or None, and returns a message.
      step_timeout: seconds that a step in a `Game` waits for the other agents; None for no
        limit.
      max_connections: clients beyond this number are refused with RESOURCE_EXHAUSTED.
      max_worlds: worlds beyond this number are refused with RESOURCE_EXHAUSTED.
      idle_world_seconds: seconds after which a world is destroyed if it has no agents and the
        connection that created it has ended; None to keep it.
      send_tracebacks: whether the INTERNAL error of an environment carries its traceback, which
        shows paths and code of this machine; None sends it to clients on this machine only.
      limits: what a request may contain, so that a small one cannot take much memory, and what
        the settings of all worlds may take together.
      transport: "http2" is this package's own transport over sockets, the fastest; "grpc" is
        grpcio's server; "auto" selects http2 unless the credentials or the address require
        grpcio, or the system is not Linux.
      processes: the number of processes that the worlds live in, for environments that compute in
        Python; see "Several processes" in the guide. None: this one.
      dial: the address of a program that takes environments with `dm_env_rpc_client.listen`. The
        server connects to it, again and again, and listens nowhere. `credentials` are those of a
        client then, with the `ca` that the program's certificate was issued by; `token` is sent
        to the program; and `address` is not used. None: the server listens.
      dial_environments: how many environments the program may have at a time.

    Returns:
      The running Server.

    Raises:
      SpecError: plaintext on an address that other machines can reach, without `insecure`;
        what makes an environment is not callable; `credentials` without a certificate, or with
        a file that cannot be read; a token of other characters than printable ASCII;
        `idle_world_seconds` is negative or not finite; `dial` together with `address`, or with
        what a client cannot use; or what `processes` need is not given: the
        transport http2, no other credentials than a Tls, and environments that another process
        can import.
      OSError: the address is taken, or does not belong to this machine; or a worker process ended
        while it started (ChildProcessError).
    """
    dialed = None
    if dial is None:
        check_may_listen(address, credentials, insecure)
    elif address != _ANYWHERE:
        raise SpecError(f"a server either listens at {address} or dials {dial}, not both")
    elif transport == "grpc":
        raise SpecError("a server that dials takes transport 'http2' or 'auto', got 'grpc'")
    else:
        dialed = Dial(dial, credentials, insecure, token, dial_environments)
        token = None
    factories: Mapping[str, Hosted] = {}
    only: World | None = None
    if isinstance(environment, World):
        only = environment
    elif isinstance(environment, Game):
        only = SharedWorld(environment, step_timeout, default_actions or {})
    else:
        factories = environment if isinstance(environment, Mapping) else {UNNAMED: environment}
    factories_of(factories)
    if token is not None:
        bearer(token)
    check_idle_seconds(idle_world_seconds)
    site = Site(
        factories,
        default_actions or {},
        extensions or {},
        step_timeout,
        max_connections,
        max_worlds,
        idle_world_seconds,
        send_tracebacks,
        limits,
        token,
    )
    if processes is not None:
        if isinstance(processes, bool) or not isinstance(processes, int) or processes < 1:
            raise SpecError(f"processes must be a number from 1 on, or None, got {processes!r}")
        if only is not None:
            raise SpecError(
                f"processes={processes}: a {type(environment).__name__} that exists already "
                "belongs to this process; pass what makes one, such as its class"
            )
    if dialed is not None:
        check_may_dial(dialed, processes)
        if dial_environments > max_connections:
            raise SpecError(
                f"dial_environments={dial_environments} are more than max_connections="
                f"{max_connections}"
            )
    if processes is not None:
        tls = None if dialed else check_processes(address, credentials, transport)
        setup = Setup(site, tls, processes, dialed)
        return Server(Workers(setup, address, properties))
    host = Host(site, ErrorLog(), properties or Properties(), only)

    admitting = host.admitting(host.open_session)
    limited = (max_connections, limits.message_bytes, answer_memory, host.activity.refused_stream)
    listener: Listener
    if dialed is None:
        listener = open_listener(admitting, address, credentials, transport, *limited)
    else:
        listener = open_dialing(admitting, dialed, *limited)
    return Server(_InThisProcess(listener, host))


def try_out(environment: Hosted, settings: Mapping[str, Any]) -> None:
    """Makes a world as for a client, and closes it.

    Args:
      environment: as for `serve`.
      settings: as of a CreateWorld: values by flat name.

    Raises:
      RequestError: the environment does not take these settings.
      Exception: whatever making or closing it raises; or what it made cannot be served.
    """
    (factory,) = factories_of({UNNAMED: environment}).values()
    make_world(factory, {}, None, settings).close()
