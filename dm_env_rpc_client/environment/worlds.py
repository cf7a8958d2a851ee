"""Functions that create, join, reset, leave and destroy worlds.

Each operation is written once, as an exchange. The functions in this module drive the exchanges
in threads, and the functions in `async_worlds.py` drive them in asyncio.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.connecting import connect_with
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor
from dm_env_rpc_client.environment.exchanges import (
    AnyConnection,
    Blocking,
    Call,
    Exchange,
    closed_if_failing,
    drive,
    request,
)
from dm_env_rpc_client.environment.joined_adaptor import Joined
from dm_env_rpc_client.environment.made_again import Making
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.requested import check_adapting
from dm_env_rpc_client.environment.restarting import Restart
from dm_env_rpc_client.environment.server_location import Address, Site
from dm_env_rpc_client.environment.world_ends import (
    OwnWorld,
    Unclosed,
    checked_name,
    destroyed_if_failing,
    end_unclosed,
    leave_after,
    received_name,
)
from dm_env_rpc_client.errors import DmEnvRpcClientError, DmEnvRpcError
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.system.keywords import takes
from dm_env_rpc_client.tensors.settings import pack_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import (
        AdaptorKeywords,
        JoinKeywords,
        MakeKeywords,
    )


class DmEnvAndWorldName(NamedTuple):
    """The result of `create_and_join_world`."""

    env: DmEnvAdaptor
    world_name: str


def create_world(
    connection: Connection, create_world_settings: Mapping[str, Any] = NO_SETTINGS
) -> str:
    """Create a world.

    Args:
      connection: a connection to the server.
      create_world_settings: values by name, nested or flat; see `pack_settings`.

    Returns:
      The name of the world.

    Raises:
      SpecError: a setting cannot be packed; nothing was sent.
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    return drive(creating(connection, create_world_settings))


def join_world(
    connection: Connection,
    world_name: str,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    adaptor_class: type[DmEnvAdaptor] = DmEnvAdaptor,
    **adaptor_kwargs: Unpack[AdaptorKeywords],
) -> DmEnvAdaptor:
    """Join a world.

    Args:
      connection: a connection that is not joined to a world. It stays open when the
        environment is closed.
      world_name: the name of the world.
      join_world_settings: values by name, nested or flat; see `pack_settings`.
      adaptor_class: the class of the environment, such as a subclass of `DmEnvAdaptor` that
        computes rewards or discounts itself.
      **adaptor_kwargs: for the adaptor.

    Returns:
      The environment. If the adaptor raises an error, the client leaves the world.

    Raises:
      SpecError: a setting cannot be packed, or `DmEnvAdaptor` raises the error.
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    joining_it = joining(
        drive, connection, world_name, join_world_settings, adaptor_class, adaptor_kwargs
    )
    env: DmEnvAdaptor = drive(joining_it)
    return env


def create_and_join_world(
    connection: Connection,
    create_world_settings: Mapping[str, Any] = NO_SETTINGS,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    **adaptor_kwargs: Unpack[JoinKeywords],
) -> DmEnvAndWorldName:
    """Create a world and join it.

    The arguments are those of `create_world` and `join_world`. If joining fails, the world is
    destroyed again.

    Returns:
      `(env, world_name)`. Closing the environment leaves the world; `destroy_world`
      destroys it.

    Raises:
      As `create_world` and `join_world`.
    """
    adaptor_kwargs.setdefault("adaptor_class", DmEnvAdaptor)
    settings = (create_world_settings, join_world_settings)
    return DmEnvAndWorldName(
        *drive(creating_and_joining(drive, connection, *settings, adaptor_kwargs))
    )


def reset_world(
    connection: Connection, world_name: str, settings: Mapping[str, Any] = NO_SETTINGS
) -> None:
    """Begin a new sequence for every agent of a world.

    The call blocks until every other agent has taken a step that reports the end of its sequence.

    Args:
      connection: a connection to the server, joined to the world or not.
      world_name: the name of the world.
      settings: values by name, nested or flat; see `pack_settings`.

    Raises:
      As `create_world`.
    """
    drive(resetting(connection, world_name, settings))


def leave_world(connection: Connection) -> None:
    """Leave the world that a connection is joined to, if any.

    Raises:
      As `Connection.send`.
    """
    connection.send(dm_env_rpc_pb2.LeaveWorldRequest())


def destroy_world(connection: Connection, world_name: str) -> None:
    """Destroy a world that the connection is not joined to.

    Raises:
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    connection.send(dm_env_rpc_pb2.DestroyWorldRequest(world_name=checked_name(world_name)))


@takes(ConnectOptions, more=True)
def make(
    address: Address,
    create_world_settings: Mapping[str, Any] = NO_SETTINGS,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    restart: Restart | bool | None = None,
    python: str | os.PathLike[str] | None = None,
    **make_kwargs: Unpack[MakeKeywords],
) -> DmEnvAdaptor:
    """Connect to a server or launch one, then create a world and join it.

    Args:
      address: the address of a server, as for `connect`; or a server to launch, which ends with
        the environment: `process:COMMAND`, `docker:IMAGE` or `python:MODULE:NAME`, or a function
        that returns a `launch.Launch`; see `dm_env_rpc_client.launch`.
      create_world_settings: values by name, nested or flat; see `pack_settings`.
      join_world_settings: values by name, in the same form.
      credentials: TLS credentials, as for `connect`; None for plaintext.
      insecure: whether to allow plaintext to an address other than loopback.
      metadata: pairs of strings sent with the call, as for `connect`.
      token: a secret sent with the call, for a server that requires one.
      transport: the transport of the stream, as for `connect`.
      timeout: time limit, in seconds, for connecting or for a launched server to answer (default:
        60); None for no limit.
      request_timeout: the time limit for each answer in seconds; None for no limit.
      keepalive_timeout: how long the server may show no sign of life while an answer is awaited, in
        seconds, as for `connect`; None for 20 s in a step and 300 s while an environment is made,
        reset or closed.
      limits: the limits of an answer; None for the defaults of `Limits`.
      record: a file to which all requests and answers are recorded; None for no recording.
      restart: whether and how often to restart the environment, with the same settings, after the
        loss of its server or connection: a `Restart`, True for `Restart()`, None or False for
        never.
      python: for `python:MODULE:NAME`, the interpreter that makes the environment, of Python 3.6
        or later; see `launch.from_python`. None for the interpreter of this process.
      **make_kwargs: arguments of `join_world` and of the adaptor, such as
        `requested_observations`.

    Returns:
      The environment. Its `close` leaves and destroys the world and closes the
      connection. Without `close`, that happens when the environment is garbage-collected or
      the interpreter exits.

    Raises:
      As `connect`, `create_world` and `join_world`; no world is left on the server. An argument
        with a wrong type or out of range raises SpecError before anything is sent or started.
      LaunchError: the server was not started.
      TypeError: neither `make` nor the adaptor has such a keyword; it may be a setting.
    """
    options = MakeOptions.of({**make_kwargs, "restart": restart, "python": python})
    settings = (
        # Packed before a server is launched: a bad setting starts nothing.
        pack_settings(create_world_settings, "create_world_settings"),
        pack_settings(join_world_settings, "join_world_settings"),
    )
    site = Site(address, options.connect.endpoint, options.connect, python=python)
    try:
        env = make_on(
            site,
            lambda first: connect_with(first, site.target, options.connect),
            *settings,
            options,
        )
    except BaseException:
        # A server launched here has no other owner.
        site.close()
        raise
    # Called after the world is destroyed: the server ends last.
    env.on_close(site.close)
    given = (address, dict(create_world_settings), dict(join_world_settings))
    env._making = Making.of(make, *given, **options.keywords)
    return env


Connect: TypeAlias = Callable[[dm_env_rpc_pb2.CreateWorldRequest], Any]
"""The type of a function that opens a connection with a first request. The function returns the
connection and the argument for the connection's `wait`, which is None if the request has not been
sent yet."""


def make_on(
    site: Site[Any],
    connect: Connect,
    create_world_settings: Mapping[str, Any],
    join_world_settings: Mapping[str, Any],
    options: MakeOptions,
    is_shared: bool = False,
) -> DmEnvAdaptor:
    """Make an environment from checked settings, over a connection that `connect` opens.

    Args:
      site: the server, which lives as long as the environment; `close` does not end it.
      connect: a function that opens a connection to the server with a first request.
      create_world_settings: as for `make`.
      join_world_settings: the same.
      options: how to adapt the environment, and whether to restart it.
      is_shared: whether other environments use the server.
    """

    def if_not_closed(connection: Connection, name: str) -> None:
        connection.if_not_closed(functools.partial(end_unclosed, name, site))

    settings = (create_world_settings, join_world_settings)
    env: DmEnvAdaptor
    env = drive(making(drive, site, connect, *settings, options, if_not_closed, is_shared))
    return env


Run: TypeAlias = Callable[[Exchange[Any]], Any]
"""The type of an exchange driver: `drive` or `adrive`."""


def creating(connection: AnyConnection, settings: Mapping[str, Any]) -> Exchange[str]:
    """Create a world; see `create_world`."""
    message = dm_env_rpc_pb2.CreateWorldRequest(
        settings=pack_settings(settings, "create_world_settings")
    )
    return received_name(connection, (yield Call(connection.send, message)))


def joining(
    run: Run,
    connection: AnyConnection,
    world_name: str,
    settings: Mapping[str, Any],
    adaptor_class: Callable[..., Any],
    adaptor_kwargs: Mapping[str, Any],
    early: Pending | None = None,
) -> Exchange[Any]:
    """Join a world; see `join_world`.

    Args:
      run: the driver, also for joining again.
      connection: the connection.
      world_name: the name of the world.
      settings: the settings in the JoinWorld request.
      adaptor_class: makes the environment from the connection.
      adaptor_kwargs: the keyword arguments of `adaptor_class`.
      early: a request to join the world that was sent before; None if there was none.
    """
    # Before the request, so that a bad argument leaves no joined connection.
    check_adapting({"adaptor_class": adaptor_class, **adaptor_kwargs})
    joined = yield from _join(run, connection, world_name, settings, early)
    try:
        adapting = {"rejoin": joined.rejoin, **adaptor_kwargs}
        env = adaptor_class(connection, joined.specs, **adapting)
    except BaseException as error:
        # The world stays usable for others, and the connection for its owner.
        yield from leave_after(error, connection)
        raise
    env.world_name = world_name
    return env


def _join(
    run: Run,
    connection: AnyConnection,
    world_name: str,
    settings: Mapping[str, Any],
    early: Pending | None = None,
) -> Exchange[Joined]:
    """Join a world, unless `early`, a request to join it that was sent before, succeeds."""
    message = dm_env_rpc_pb2.JoinWorldRequest(
        world_name=checked_name(world_name),
        settings=pack_settings(settings, "join_world_settings"),
    )

    # For servers that do not implement Reset: leaving and joining again also ends the sequence.
    def rejoining() -> Exchange[dm_env_rpc_pb2.ActionObservationSpecs]:
        yield from request(connection, dm_env_rpc_pb2.LeaveWorldRequest())
        specs: dm_env_rpc_pb2.ActionObservationSpecs
        specs = (yield from request(connection, message)).specs
        return specs

    specs = None
    if early is not None:
        # The server may not know JoinWorld without a name.
        with contextlib.suppress(DmEnvRpcError):
            specs = (yield Call(connection.wait, early)).specs
    if specs is None:
        specs = (yield Call(connection.send, message)).specs
    return Joined(connection, specs, world_name, lambda: run(rejoining()))


def creating_and_joining(
    run: Run,
    connection: AnyConnection,
    create_settings: Mapping[str, Any],
    join_settings: Mapping[str, Any],
    join_kwargs: Mapping[str, Any],
) -> Exchange[tuple[Any, str]]:
    """Create a world and join it; see `create_and_join_world`."""
    check_adapting(join_kwargs)
    # Packed before the world is created: an invalid setting leaves none to destroy.
    join_settings = pack_settings(join_settings, "join_world_settings")
    world_name = yield from creating(connection, create_settings)
    adapting = dict(join_kwargs)
    adaptor_class = adapting.pop("adaptor_class")
    joins = joining(run, connection, world_name, join_settings, adaptor_class, adapting)
    return (yield from destroyed_if_failing(connection, world_name, joins)), world_name


def resetting(
    connection: AnyConnection, world_name: str, settings: Mapping[str, Any]
) -> Exchange[None]:
    """Begin a new sequence for every agent of a world; see `reset_world`."""
    message = dm_env_rpc_pb2.ResetWorldRequest(
        world_name=checked_name(world_name), settings=pack_settings(settings)
    )
    yield Call(connection.send, message)


def making(
    run: Run,
    site: Site[Any],
    connect: Connect,
    create_settings: Mapping[str, Any],
    join_settings: Mapping[str, Any],
    options: MakeOptions,
    if_not_closed: Unclosed,
    is_shared: bool = False,
) -> Exchange[Any]:
    """Create an environment that can be restarted after it is lost; see `make_on`.

    Args:
      run: the driver, also for the environment.
      site: the server.
      connect: a function that opens a connection to the server.
      create_settings: as for `make`.
      join_settings: the same.
      options: how to adapt the environment, and whether to restart it.
      if_not_closed: a function that arranges the end of a connection's world if the environment is
        not closed.
      is_shared: whether other environments use the server.
    """
    join_settings = pack_settings(join_settings)
    # Kept for restarts: a new world gets the settings of the first one, even if the mapping has
    # changed since.
    message = dm_env_rpc_pb2.CreateWorldRequest(settings=pack_settings(create_settings))
    unnamed = dm_env_rpc_pb2.JoinWorldRequest(settings=join_settings)
    join = unnamed if options.joins_created else None
    kind, adapting = options.adapt.adaptor_class, dict(options.adapt.arguments)
    connection, name, early = yield from _create(connect, message, join)
    joins = joining(run, connection, name, join_settings, kind, adapting, early)
    # Clean-up is nested like the resources: the world first, then its connection.
    joins = destroyed_if_failing(connection, name, joins)
    env = yield from closed_if_failing(connection, joins)
    world = OwnWorld(site, connection, name, if_not_closed)
    env._site = site
    env._end_world = world.end

    def join_again() -> Exchange[Joined]:
        # The former connection is unusable; its resources are released before new ones are opened.
        yield from world.give_up()
        # Starts a process, which may take seconds: an event loop does it in a thread.
        yield Blocking(site.renew, is_shared)
        connection, name, early = yield from _create(connect, message, join)
        world.begin(connection, name)
        joined = yield from _join(run, connection, name, join_settings, early)
        # `close` may have come during the wait; nothing would end the new world.
        yield from world.check_not_over()
        return joined

    if options.restart is not None:
        env._supervise(options.restart, join_again)
    return env


def _create(
    connect: Connect,
    message: dm_env_rpc_pb2.CreateWorldRequest,
    join: dm_env_rpc_pb2.JoinWorldRequest | None,
) -> Exchange[tuple[AnyConnection, str, Pending | None]]:
    """Open a connection and create a world over it, in one round trip if possible.

    Args:
      connect: a function that opens a connection to the server.
      message: the request that creates the world.
      join: a request to join the world, sent before its name is known; None for no such request.

    Returns:
      The connection, the name of the world, and the pending request to join it.
    """
    connection, pending = yield Call(connect, message)

    def name() -> Exchange[tuple[str, Pending | None]]:
        sent = (yield Call(connection.start, message)) if pending is None else pending
        early = None
        if join is not None:
            limit = connection._request_timeout
            # The server answers this request after the one before, which has a limit of its own.
            seconds = None if limit is None else 2 * limit
            early = yield Call(connection.start, join, None, seconds)
        try:
            created = yield Call(connection.wait, sent)
        except DmEnvRpcError:
            if early is not None:
                # Its answer, an error, follows at once; without it, the stream would be cancelled.
                with contextlib.suppress(DmEnvRpcClientError):
                    yield Call(connection.wait, early)
            raise
        return received_name(connection, created), early

    return connection, *(yield from closed_if_failing(connection, name()))
