"""Serves worlds over gRPC. The one file of the server that touches grpc."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, cast

import dm_env
import grpc
from google.protobuf import message as protobuf_message

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.server.construction import construct
from dm_env_rpc_client.server.environment_world import EnvironmentWorld
from dm_env_rpc_client.server.extension_handlers import ExtensionHandlers, Handler
from dm_env_rpc_client.server.game import Game
from dm_env_rpc_client.server.offered_properties import Properties, answer_property_request
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.server.shared_world import STEP_TIMEOUT, SharedWorld
from dm_env_rpc_client.server.world import World
from dm_env_rpc_client.server.world_registry import UNNAMED, WorldRegistry
from dm_env_rpc_client.transports import conditions, status
from dm_env_rpc_client.transports.addresses import is_loopback
from dm_env_rpc_client.transports.listening import listen

__all__ = ["Server", "serve"]

_log = logging.getLogger(__name__)

Hosted = Callable[..., dm_env.Environment | Game | World]

STOP_SECONDS = 1.0
"""How long sessions may go on when the server stops."""


class Server:
    """A running server; made by `serve`.

    Attributes:
      address: where it listens, such as "localhost:40123".
      errors: exceptions that were the server's own fault, oldest first; the clients got
        each as an INTERNAL error.
    """

    def __init__(
        self,
        server: grpc.Server,
        worlds: WorldRegistry,
        address: str,
        errors: list[BaseException],
    ):
        self.address = address
        self.errors = errors
        self._server = server
        self._worlds = worlds
        # Runs when the server is forgotten, and at the exit of the interpreter.
        self._finalizer = weakref.finalize(self, server.stop, None)

    @property
    def world_count(self) -> int:
        """The number of worlds there are."""
        return len(self._worlds)

    @property
    def agent_count(self) -> int:
        """The number of agents joined to them."""
        return self._worlds.agent_count

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server stops, or `timeout` seconds; returns whether it stopped."""
        return not self._server.wait_for_termination(timeout)

    def stop(self, grace: float = STOP_SECONDS) -> None:
        """Stops serving; a second time does nothing.

        Args:
          grace: seconds until the streams that are still open are cut.
        """
        if self._finalizer.detach() is not None:
            self._server.stop(grace).wait()
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

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop(0.0)


def serve(
    environment: Hosted | World | Game | Mapping[str, Hosted],
    address: str = "localhost:0",
    *,
    credentials: grpc.ServerCredentials | None = None,
    insecure: bool = False,
    default_actions: Mapping[str, Any] | None = None,
    properties: Properties | None = None,
    extensions: Mapping[type[protobuf_message.Message], Handler] | None = None,
    step_timeout: float | None = STEP_TIMEOUT,
    max_connections: int = 256,
    max_worlds: int = 1024,
) -> Server:
    """Serves environments to dm_env_rpc clients.

    Every CreateWorld makes a world of its own: a dm_env.Environment, for one agent at a
    time, or a `Game`, for several.
    Nested specs are sent flat, with periods between levels; reward and discount are
    observations. The end of an episode with discount 0 is TERMINATED, any other
    INTERRUPTED. Settings that come with a Reset or ResetWorld are laid over those of the
    creation and the environment is made anew. A client that vanishes leaves its world.

    Args:
      environment: a callable that takes the settings of a CreateWorld as keyword
        arguments and returns a dm_env.Environment, a `Game` or a `World`; or a dict of
        such, by name, of which the setting "environment" picks one; or a `Game` or a
        `World` itself, which is the only one then and has the empty name.
      address: `host:port` or `unix:path`; port 0 takes a free one.
      credentials: TLS credentials; None for plaintext.
      insecure: allow plaintext on an address that other machines reach.
      default_actions: values, by flat name, of actions that a step may leave out.
      properties: what all clients may read and write, joined or not. An environment or a
        game with an attribute `properties` of this kind adds its own for those who joined;
        an environment that `HasStringProperties` is asked itself.
      extensions: by message class, what answers an extension of that type: it is called
        with the message and the `World` that is joined, or None, and returns a message.
      step_timeout: seconds that a step in a `Game` waits for the other agents.
      max_connections: clients beyond this are refused with RESOURCE_EXHAUSTED.
      max_worlds: worlds beyond this are refused with RESOURCE_EXHAUSTED.

    Returns:
      The running Server.

    Raises:
      SpecError: plaintext on an open address without `insecure`.
      OSError: the address cannot be listened on.
    """
    if credentials is None and not insecure and not is_loopback(address):
        raise SpecError(
            f"other machines reach {address} and no credentials are given; pass credentials="
            "grpc.ssl_server_credentials(...), or insecure=True to serve in the clear"
        )
    factories: Mapping[str, Hosted] = {}
    only: World | None = None
    if isinstance(environment, World):
        only = environment
    elif isinstance(environment, Game):
        only = SharedWorld(environment, step_timeout)
    else:
        factories = environment if isinstance(environment, Mapping) else {UNNAMED: environment}
    for name, factory in factories.items():
        if not callable(factory):
            raise SpecError(
                f"what makes environment {name!r} has to be callable, got {type(factory).__name__}"
            )
    makers = {
        name: functools.partial(_make_world, factory, default_actions or {}, step_timeout)
        for name, factory in factories.items()
    }
    worlds = WorldRegistry(makers, max_worlds, only)
    grpc_server = grpc.server(
        # grpc asks for a ThreadPoolExecutor and uses nothing but submit.
        cast("Any", _ThreadPerStream()),
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", conditions.MAX_MESSAGE_BYTES),
            # Clients ping through long steps; see the keepalive options of the channels.
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ],
        maximum_concurrent_rpcs=max_connections,
    )
    errors: list[BaseException] = []
    universal = properties or Properties()
    handlers = ExtensionHandlers(
        {
            properties_pb2.PropertyRequest: functools.partial(_answer_property, universal),
            **(extensions or {}),
        }
    )
    handler: Any = grpc.stream_stream_rpc_method_handler(
        functools.partial(_process, worlds, handlers, errors.append)
    )
    service, method = status.PROCESS.strip("/").split("/")
    grpc_server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    if credentials is None:
        bound = listen(grpc_server.add_insecure_port, address)
    else:
        bound = listen(lambda own: grpc_server.add_secure_port(own, credentials), address)
    grpc_server.start()
    return Server(grpc_server, worlds, bound, errors)


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
        return SharedWorld(made, step_timeout)
    return EnvironmentWorld(factory, made, settings, default_actions)


def _answer_property(
    universal: Properties, request: properties_pb2.PropertyRequest, world: World | None
) -> properties_pb2.PropertyResponse:
    if world is None:
        return answer_property_request([universal], request)
    with world.access() as own:
        return answer_property_request([universal] if own is None else [own, universal], request)


def _process(
    worlds: WorldRegistry,
    extensions: ExtensionHandlers,
    on_error: Callable[[BaseException], None],
    requests: Iterator[bytes],
    context: grpc.ServicerContext,
) -> Iterator[bytes]:
    session = Session(worlds, extensions, on_error)
    try:
        for message in requests:
            try:
                request = dm_env_rpc_pb2.EnvironmentRequest.FromString(message)
            except protobuf_message.DecodeError as error:
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"no EnvironmentRequest: {error}")
            yield session.handle(request).SerializeToString()
    finally:
        session.close()


class _ThreadPerStream(concurrent.futures.Executor):
    """Runs each stream in a daemon thread of its own.

    A stream keeps its thread as long as it lives, so a pool has nothing to reuse, and the
    threads of concurrent.futures would keep an interpreter with open streams from exiting.
    """

    def submit(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=run, name="dm_env_rpc session", daemon=True).start()
        return future
