"""The worlds of a process and the state shared by all its sessions."""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf import message as protobuf_message

from dm_env_rpc_client._proto import properties_pb2
from dm_env_rpc_client.protocol.batches import MAX_NUM_ENVS
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.server.activity import Activity, Counts
from dm_env_rpc_client.server.batch import properties_of_batches
from dm_env_rpc_client.server.errors import ErrorLog, refusal_of
from dm_env_rpc_client.server.options import Handler, ServeOptions
from dm_env_rpc_client.server.properties import Properties, answer_property_request
from dm_env_rpc_client.server.worlds.world import World
from dm_env_rpc_client.server.worlds.world_registry import Share, WorldRegistry
from dm_env_rpc_client.system.owner_threads import MainOwner
from dm_env_rpc_client.transports.server_streams import (
    ListenerOptions,
    OpenStream,
    Peer,
    ServerStream,
    StreamStatusError,
    requiring_token,
)

WAITING_FOR = "waiting_for."
"""A key prefix that, followed by a world's name, forms the key of an unlisted property. The
property's value lists the players missing from the world's pending steps, or is "" if none is
missing. Clients read the property over a connection that is not itself waiting for a step."""


class Host:
    """The worlds of a process, and the state shared by its sessions.

    Args:
      options: what is hosted, and how.
      error_log: collects exceptions that are not the fault of a client.
      properties: the properties that all clients have.
      share: counts the worlds against the server's limits; None for a server of one process.
      counts: counters of client activity; None for new ones.

    Attributes:
      options: as the argument.
      error_log: as the argument.
      worlds: the worlds.
      activity: counts and logs the clients' activity.
      main: the owner of all worlds if they belong to the thread in `Server.wait`; otherwise None.
      extensions: message classes and their handlers, by the name of the type.
    """

    def __init__(
        self,
        options: ServeOptions,
        error_log: ErrorLog,
        properties: Properties,
        share: Share | None = None,
        counts: Counts | None = None,
    ):
        self.options = options
        self.error_log = error_log
        self.main = MainOwner("the environments") if options.thread == "main" else None
        self.activity = Activity(counts)
        report = functools.partial(_report, error_log, self.activity)
        self.worlds = WorldRegistry(options, error_log, share or Share(), self.main, report)
        of_batches = properties_of_batches()
        answer: Any = functools.partial(_answer_property, of_batches, properties, self.worlds)
        handlers: dict[type[protobuf_message.Message], Handler] = {
            # An extension of the user's may replace the handler of properties.
            properties_pb2.PropertyRequest: answer,
            **(options.extensions or {}),
        }
        self.extensions = {
            message_class.DESCRIPTOR.full_name: (message_class, handler)
            for message_class, handler in handlers.items()
        }


def listener_options(
    options: ServeOptions, activity: Activity, open_stream: OpenStream
) -> ListenerOptions:
    """Return the options for a listener that refuses streams without the token.

    Args:
      options: how to serve.
      activity: records refused streams.
      open_stream: makes the server's end of each admitted stream.
    """
    token = options.token
    return ListenerOptions(
        open_stream if token is None else _admitting(token, activity, open_stream),
        options.max_connections,
        options.limits.message_bytes,
        answer_memory,
        activity.refused_stream,
    )


def _admitting(token: str, activity: Activity, open_stream: OpenStream) -> OpenStream:
    open_checked = requiring_token(token, open_stream)

    def open_admitted(peer: Peer) -> ServerStream:
        try:
            return open_checked(peer)
        except StreamStatusError as error:
            # Counted and logged: someone may be guessing tokens.
            if error.code == "UNAUTHENTICATED":
                activity.refused_stream(peer.address, f"{error.code}: {error}")
            raise

    return open_admitted


def _report(error_log: ErrorLog, activity: Activity, error: Exception, text: str) -> None:
    """Record an error of a batch's row, just as sessions record the errors of their requests."""
    # The environment's fault is kept in `errors`; a client's is only counted.
    if refusal_of(error) is None:
        error_log.add(error, text)
    else:
        activity.refused("a client", "step", f"{text}: {error}")


def _answer_property(
    of_batches: Properties,
    universal: Properties,
    worlds: WorldRegistry,
    request: properties_pb2.PropertyRequest,
    world: World | None,
) -> properties_pb2.PropertyResponse:
    layers = [universal]
    key = request.read_property.key
    # Neither belongs to an environment, so neither is listed. A user's property goes first.
    if key == MAX_NUM_ENVS and not universal.knows(key):
        layers = [of_batches]
    if key.startswith(WAITING_FOR) and not universal.knows(key):
        asked_for = worlds.get(key.removeprefix(WAITING_FOR))
        layers = [Properties.of_getters({key: asked_for.waiting_for})]
    if world is None:
        return answer_property_request(layers, request)
    with world.access() as own:
        return answer_property_request(layers if own is None else [own, *layers], request)
