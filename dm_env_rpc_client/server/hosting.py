"""`serve`: puts worlds behind a listener and gives each of its streams a session."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import message as protobuf_message

from dm_env_rpc_client._proto import properties_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.server.activity import Activity, ServerStats
from dm_env_rpc_client.server.construction import construct
from dm_env_rpc_client.server.environment_world import EnvironmentWorld
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.extension_handlers import ExtensionHandlers, Handler
from dm_env_rpc_client.server.game import Game
from dm_env_rpc_client.server.idle_worlds import IDLE_WORLD_SECONDS
from dm_env_rpc_client.server.offered_properties import Properties, answer_property_request
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.server.shared_world import STEP_TIMEOUT, SharedWorld
from dm_env_rpc_client.server.world import World
from dm_env_rpc_client.server.world_registry import UNNAMED, WorldRegistry
from dm_env_rpc_client.tensors.limits import DEFAULT, Limits
from dm_env_rpc_client.transports.credentials import ServerCredentials
from dm_env_rpc_client.transports.endpoint import Transport
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.server_streams import (
    Listener,
    Peer,
    ServerStream,
    StreamStatusError,
    check_may_listen,
)
from dm_env_rpc_client.transports.tokens import requiring_token

__all__ = ["WAITING_FOR", "Server", "serve", "try_out"]

# A gymnasium.Env, too; its name is not written here, because Gymnasium is an extra.
Hosted = Callable[..., Any]

WAITING_FOR = "waiting_for."
"""Before the name of a world: the property with what the steps of its agents wait for, "" for
nothing. It is not listed. A client reads it over another connection than the one that waits."""

STOP_SECONDS = 1.0
"""How long open streams may continue when the server stops."""


class Server:
    """A running server; made by `serve`.

    Attributes:
      address: where it listens, such as "localhost:40123".
    """

    def __init__(
        self,
        listener: Listener,
        worlds: WorldRegistry,
        error_log: ErrorLog,
        activity: Activity,
    ):
        self.address = listener.address
        self._error_log = error_log
        self._activity = activity
        self._listener = listener
        self._worlds = worlds
        # Runs when the server is garbage-collected, and when the interpreter exits.
        self._finalizer = weakref.finalize(self, listener.abort)

    @property
    def errors(self) -> list[BaseException]:
        """The last 100 exceptions in the environments or the server itself, oldest first.

        The client that caused one received it as an INTERNAL error.
        """
        return self._error_log.kept

    @property
    def world_count(self) -> int:
        """The number of worlds."""
        return len(self._worlds)

    @property
    def agent_count(self) -> int:
        """The number of agents that are joined to worlds."""
        return self._worlds.agent_count

    def stats(self) -> ServerStats:
        """Returns what the server has done, and what there is now."""
        return self._activity.stats(self.world_count, self.agent_count, self._error_log.count)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server stops, or `timeout` seconds; returns whether it stopped."""
        return self._listener.wait(timeout)

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """Stops serving and closes the worlds; a second call does nothing.

        Args:
          grace: seconds after which streams that are still open are cancelled.
        """
        if self._finalizer.detach() is not None:
            self._listener.stop(grace)
            self._worlds.close()

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
    address: str = "localhost:0",
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
        a `Game` or a `World`; or a dict of such callables by name, from which the create setting
        "environment" selects one; or a `Game` or a `World` itself, which is then the only world
        and has the empty name.
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

    Returns:
      The running Server.

    Raises:
      SpecError: plaintext on an address that other machines can reach, without `insecure`;
        what makes an environment is not callable; `credentials` without a certificate, or with
        a file that cannot be read; a token of other characters than printable ASCII; or
        `idle_world_seconds` is negative or not finite.
      OSError: the address is taken, or does not belong to this machine.
    """
    check_may_listen(address, credentials, insecure)
    factories: Mapping[str, Hosted] = {}
    only: World | None = None
    if isinstance(environment, World):
        only = environment
    elif isinstance(environment, Game):
        only = SharedWorld(environment, step_timeout, default_actions or {})
    else:
        factories = environment if isinstance(environment, Mapping) else {UNNAMED: environment}
    for name, factory in factories.items():
        if not callable(factory):
            raise SpecError(
                f"environment {name!r} must be a callable that makes environments, got "
                f"{type(factory).__name__}"
            )
    makers = {
        name: functools.partial(_make_world, factory, default_actions or {}, step_timeout)
        for name, factory in factories.items()
    }
    error_log = ErrorLog()
    worlds = WorldRegistry(
        makers, max_worlds, error_log, only, limits.held_bytes, idle_world_seconds
    )
    universal = properties or Properties()
    handlers = ExtensionHandlers(
        {
            properties_pb2.PropertyRequest: functools.partial(_answer_property, universal, worlds),
            **(extensions or {}),
        }
    )

    activity = Activity()

    def open_session(peer: Peer) -> Session:
        return Session(worlds, handlers, error_log, activity, send_tracebacks, limits, peer.address)

    if token is not None:
        open_checked = requiring_token(token, open_session)

    def open_stream(peer: Peer) -> ServerStream:
        try:
            return open_session(peer) if token is None else open_checked(peer)
        except StreamStatusError as error:
            activity.refused_stream(peer.address, f"{error.code}: {error}")
            raise

    listener = open_listener(
        open_stream,
        address,
        credentials,
        transport,
        max_connections,
        limits.message_bytes,
        answer_memory,
        activity.refused_stream,
    )
    return Server(listener, worlds, error_log, activity)


def try_out(environment: Hosted, settings: Mapping[str, Any]) -> None:
    """Makes a world as for a client, and closes it.

    Args:
      environment: as for `serve`.
      settings: as of a CreateWorld: values by flat name.

    Raises:
      RequestError: the environment does not take these settings.
      Exception: whatever making or closing it raises; or what it made cannot be served.
    """
    _make_world(environment, {}, None, settings).close()


def _make_world(
    factory: Hosted,
    default_actions: Mapping[str, Any],
    step_timeout: float | None,
    settings: Mapping[str, Any],
) -> World:
    made = construct(factory, settings)
    if isinstance(made, World):
        return made
    if isinstance(made, Game):
        return SharedWorld(made, step_timeout, default_actions)
    if not hasattr(made, "step") or not hasattr(made, "reset"):
        raise RuntimeError(
            f"the factory returned {type(made).__name__}; expected a dm_env.Environment, Game or "
            "World"
        )
    return EnvironmentWorld(factory, made, settings, default_actions)


def _answer_property(
    universal: Properties,
    worlds: WorldRegistry,
    request: properties_pb2.PropertyRequest,
    world: World | None,
) -> properties_pb2.PropertyResponse:
    layers = [universal]
    key = request.read_property.key
    if key.startswith(WAITING_FOR) and not universal.knows(key):
        asked_for = worlds.get(key.removeprefix(WAITING_FOR))
        layers = [Properties.of_getters({key: asked_for.waiting_for})]
    if world is None:
        return answer_property_request(layers, request)
    with world.access() as own:
        return answer_property_request(layers if own is None else [own, *layers], request)
