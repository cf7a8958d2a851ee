"""What a server hosts: worlds, and what answers the streams that reach them.

`Site` is what `serve` was told. It can be pickled if its parts can. `Host` is what a process makes
of it.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pkgutil
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from google.protobuf import message as protobuf_message

from dm_env_rpc_client._proto import properties_pb2
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol import telemetry
from dm_env_rpc_client.protocol.batches import MAX_NUM_ENVS
from dm_env_rpc_client.server.activity import Activity, Counts
from dm_env_rpc_client.server.batch import OF_BATCHES
from dm_env_rpc_client.server.construction import construct
from dm_env_rpc_client.server.error_log import ErrorLog
from dm_env_rpc_client.server.extension_handlers import ExtensionHandlers, Handler
from dm_env_rpc_client.server.observed_session import ObservedSession
from dm_env_rpc_client.server.offered_properties import Properties, answer_property_request
from dm_env_rpc_client.server.session import Session
from dm_env_rpc_client.server.worlds.environment_world import EnvironmentWorld
from dm_env_rpc_client.server.worlds.game import Game
from dm_env_rpc_client.server.worlds.shared_world import SharedWorld
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.server.worlds.world_registry import Share, WorldRegistry
from dm_env_rpc_client.tensors.limits import Limits
from dm_env_rpc_client.transports.server_streams import (
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
)
from dm_env_rpc_client.transports.tokens import requiring_token

__all__ = ["WAITING_FOR", "Host", "Hosted", "Site", "factories_of", "make_world"]

WAITING_FOR = "waiting_for."
"""Before the name of a world: the property with what the steps of its agents wait for, "" for
nothing. It is not listed. A client reads it over another connection than the one that waits."""

# A factory returns a gymnasium.Env, too; its name is not written here, because Gymnasium is an
# extra.
Hosted: TypeAlias = Callable[..., Any] | str


@dataclasses.dataclass(frozen=True)
class Site:
    """What `serve` was told; see its arguments of the same names.

    Attributes:
      factories: what makes environments, by name.
    """

    factories: Mapping[str, Hosted]
    default_actions: Mapping[str, Any]
    extensions: Mapping[type[protobuf_message.Message], Handler]
    step_timeout: float | None
    max_connections: int
    max_worlds: int
    idle_world_seconds: float | None
    send_tracebacks: bool | None
    limits: Limits
    token: str | None


class Host:
    """The worlds of a process, and the sessions of the streams that reach them.

    Args:
      site: what is hosted.
      error_log: takes exceptions that are not the fault of a client.
      properties: those that all clients have.
      only: the only world, if there are no factories.
      share: what the worlds of other processes take.
      prefix: what the names of worlds begin with.
      counts: where what the clients do is counted; None for new ones.

    Attributes:
      worlds: the worlds.
      activity: counts and logs what the clients do.
      error_log: as the argument.
    """

    def __init__(
        self,
        site: Site,
        error_log: ErrorLog,
        properties: Properties,
        only: World | None = None,
        share: Share | None = None,
        prefix: str = "world-",
        counts: Counts | None = None,
    ):
        makers = {
            name: functools.partial(make_world, factory, site.default_actions, site.step_timeout)
            for name, factory in factories_of(site.factories).items()
        }
        self.error_log = error_log
        self.worlds = WorldRegistry(
            makers,
            site.max_worlds,
            error_log,
            only,
            site.limits.held_bytes,
            site.idle_world_seconds,
            share,
            prefix,
        )
        self.activity = Activity(counts)
        takes_reports = telemetry.installed()
        if takes_reports is not None:
            takes_reports.serve(functools.partial(_count, weakref.ref(self.worlds)))
        self._site = site
        self._handlers = ExtensionHandlers(
            {
                properties_pb2.PropertyRequest: functools.partial(
                    _answer_property, properties, self.worlds
                ),
                **site.extensions,
            }
        )

    def open_session(self, peer: Peer, activity: Activity | None = None) -> Session:
        """Returns what answers a stream.

        Args:
          peer: the client.
          activity: what counts the stream, if this process does not have its connection; None for
            that of this host.
        """
        site = self._site
        parts = (
            self.worlds,
            self._handlers,
            self.error_log,
            activity or self.activity,
            site.send_tracebacks,
            site.limits,
            peer.address,
        )
        takes_reports = telemetry.installed()
        if takes_reports is None:
            return Session(*parts)
        reports = takes_reports.server(peer.address, peer.metadata, activity is None)
        return ObservedSession(*parts, reports=reports)

    def admitting(self, open_stream: OpenStream) -> OpenStream:
        """Returns what opens streams for those that may have one, and counts the refused."""
        if self._site.token is None:
            return open_stream
        open_checked = requiring_token(self._site.token, open_stream)

        def open_admitted(peer: Peer) -> ServerStream:
            try:
                return open_checked(peer)
            except StreamStatusError as error:
                if error.code == "UNAUTHENTICATED":
                    self.activity.refused_stream(peer.address, f"{error.code}: {error}")
                raise

        return open_admitted


def factories_of(named: Mapping[str, Hosted]) -> dict[str, Callable[..., Any]]:
    """Returns what makes environments, by name; a text `module:factory` is imported.

    Raises:
      SpecError: it cannot be imported, or cannot be called.
    """
    factories = {}
    for name, hosted in named.items():
        factory: Any = hosted
        if isinstance(hosted, str):
            try:
                factory = pkgutil.resolve_name(hosted)
            except (ImportError, AttributeError, ValueError) as error:
                raise SpecError(
                    f"{_named(name)}: cannot import {hosted!r} ({error}); a text looks like "
                    "module:factory"
                ) from error
        _check_makes(factory, _named(name))
        factories[name] = factory
    return factories


def _named(name: str) -> str:
    return f"environment {name!r}" if name else "the environment"


def _check_makes(factory: Any, what: str) -> None:
    """Raises SpecError for what makes no environment, whatever the settings. Nothing is made."""
    found = type(factory).__name__
    if not isinstance(factory, type) and hasattr(factory, "step") and hasattr(factory, "reset"):
        raise SpecError(
            f"{what} is an instance of {found}; pass the class, or a function that makes one, "
            f"since each world has one of its own: serve({found}), not serve({found}(...))"
        )
    if not callable(factory):
        raise SpecError(
            f"{what} must be a callable that makes environments, or a text module:factory, got "
            f"{found}"
        )
    if inspect.isabstract(factory):
        missing = ", ".join(sorted(factory.__abstractmethods__))
        raise SpecError(f"{what}: {factory.__name__} is abstract; it lacks {missing}")
    if inspect.iscoroutinefunction(factory) or inspect.isgeneratorfunction(factory):
        raise SpecError(f"{what}: {factory.__name__} returns no environment when it is called")
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return  # Of an extension module.
    for each in parameters:
        if each.kind is each.POSITIONAL_ONLY and each.default is each.empty:
            raise SpecError(
                f"{what}: {factory} needs the positional argument {each.name!r}; settings of "
                "worlds are passed by name"
            )


def make_world(
    factory: Callable[..., Any],
    default_actions: Mapping[str, Any],
    step_timeout: float | None,
    settings: Mapping[str, Any],
) -> World:
    """Makes a world of what a factory makes.

    Args:
      factory: makes an environment, a game or a world.
      default_actions: see `serve`.
      step_timeout: see `serve`.
      settings: of the CreateWorld, by flat name.

    Raises:
      RequestError: the factory does not take these settings.
      Exception: whatever the factory raises; or what it made cannot be served.
    """
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


def _count(worlds: weakref.ref[WorldRegistry]) -> int | None:
    found = worlds()
    return None if found is None else len(found)


def _answer_property(
    universal: Properties,
    worlds: WorldRegistry,
    request: properties_pb2.PropertyRequest,
    world: World | None,
) -> properties_pb2.PropertyResponse:
    layers = [universal]
    key = request.read_property.key
    # Neither of these is listed, as they are of no environment.
    if key == MAX_NUM_ENVS and not universal.knows(key):
        layers = [OF_BATCHES]
    if key.startswith(WAITING_FOR) and not universal.knows(key):
        asked_for = worlds.get(key.removeprefix(WAITING_FOR))
        layers = [Properties.of_getters({key: asked_for.waiting_for})]
    if world is None:
        return answer_property_request(layers, request)
    with world.access() as own:
        return answer_property_request(layers if own is None else [own, *layers], request)
