"""Creating, joining, resetting, leaving and destroying worlds.

`async_worlds.py` is the same for asyncio; `tests/environment/test_same_requests.py` checks that
both send the same requests.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.connection import Connection, connect_with
from dm_env_rpc_client.environment.base_adaptor import NO_SETTINGS
from dm_env_rpc_client.environment.dm_env_adaptor import DmEnvAdaptor, Joined
from dm_env_rpc_client.environment.made_again import Making
from dm_env_rpc_client.environment.make_options import MakeOptions
from dm_env_rpc_client.environment.requested import check_adapting
from dm_env_rpc_client.environment.restarting import Restart
from dm_env_rpc_client.environment.sites import Address, Site
from dm_env_rpc_client.environment.world_ends import (
    checked_name,
    destroy,
    destroy_and_close,
    end_unclosed,
    leave,
    leave_destroy_and_close,
    received_name,
    undo,
)
from dm_env_rpc_client.errors import ConnectionClosedError
from dm_env_rpc_client.system.keywords import takes
from dm_env_rpc_client.tensors.settings import pack_settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dm_env_rpc_client.environment.make_options import (
        AdaptorKeywords,
        JoinKeywords,
        MakeKeywords,
    )

__all__ = [
    "DmEnvAndWorldName",
    "create_and_join_world",
    "create_world",
    "destroy_world",
    "join_world",
    "leave_world",
    "make",
    "make_on",
    "reset_world",
]

_log = logging.getLogger(__name__)


class DmEnvAndWorldName(NamedTuple):
    """What `create_and_join_world` returns."""

    env: DmEnvAdaptor
    world_name: str


def create_world(
    connection: Connection, create_world_settings: Mapping[str, Any] = NO_SETTINGS
) -> str:
    """Creates a world.

    Args:
      connection: a connection to the server.
      create_world_settings: values by name, nested or flat; see `pack_settings`.

    Returns:
      The name of the world.

    Raises:
      SpecError: a setting cannot be packed; nothing was sent.
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    request = dm_env_rpc_pb2.CreateWorldRequest(
        settings=pack_settings(create_world_settings, "create_world_settings")
    )
    return received_name(connection, connection.send(request))


def join_world(
    connection: Connection,
    world_name: str,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    *,
    adaptor_class: type[DmEnvAdaptor] = DmEnvAdaptor,
    **adaptor_kwargs: Unpack[AdaptorKeywords],
) -> DmEnvAdaptor:
    """Joins a world.

    Args:
      connection: a connection that is not joined to a world. It stays open when the
        environment is closed.
      world_name: the name of the world.
      join_world_settings: values by name, nested or flat; see `pack_settings`.
      adaptor_class: a subclass that computes rewards or discounts itself.
      **adaptor_kwargs: for the adaptor.

    Returns:
      The environment. If the adaptor raises an error, the world is left again.

    Raises:
      SpecError: a setting cannot be packed, or see `DmEnvAdaptor`.
      DmEnvRpcError: the server refused. Otherwise as `Connection.send`.
    """
    check_adapting({"adaptor_class": adaptor_class, **adaptor_kwargs})
    joined = _join(connection, world_name, join_world_settings)
    try:
        adaptor_kwargs.setdefault("rejoin", joined.rejoin)
        env = adaptor_class(connection, joined.specs, **adaptor_kwargs)
    except BaseException:
        if connection.is_usable:
            undo("leave the world", lambda: leave(connection))
        raise
    env.world_name = world_name
    return env


def _join(connection: Connection, world_name: str, settings: Mapping[str, Any]) -> Joined:
    request = dm_env_rpc_pb2.JoinWorldRequest(
        world_name=checked_name(world_name),
        settings=pack_settings(settings, "join_world_settings"),
    )

    def rejoin() -> dm_env_rpc_pb2.ActionObservationSpecs:
        # Part of a reset, so not by `send`, which the program may have replaced.
        connection.wait(connection.start(dm_env_rpc_pb2.LeaveWorldRequest()))
        specs: dm_env_rpc_pb2.ActionObservationSpecs
        specs = connection.wait(connection.start(request)).specs
        return specs

    return Joined(connection, connection.send(request).specs, world_name, rejoin)


def create_and_join_world(
    connection: Connection,
    create_world_settings: Mapping[str, Any] = NO_SETTINGS,
    join_world_settings: Mapping[str, Any] = NO_SETTINGS,
    **adaptor_kwargs: Unpack[JoinKeywords],
) -> DmEnvAndWorldName:
    """Creates a world and joins it.

    The arguments are those of `create_world` and `join_world`. If joining fails, the world is
    destroyed again.

    Returns:
      `(env, world_name)`. Closing the environment leaves the world; `destroy_world`
      destroys it.

    Raises:
      As `create_world` and `join_world`.
    """
    check_adapting(adaptor_kwargs)
    join_settings = pack_settings(join_world_settings, "join_world_settings")
    world_name = create_world(connection, create_world_settings)
    try:
        env = join_world(connection, world_name, join_settings, **adaptor_kwargs)
    except BaseException:
        destroy(connection, world_name)
        raise
    return DmEnvAndWorldName(env, world_name)


def reset_world(
    connection: Connection, world_name: str, settings: Mapping[str, Any] = NO_SETTINGS
) -> None:
    """Begins a new sequence for every agent of a world.

    Blocks until every other agent has taken a step, whose answer says that its sequence ended.

    Args:
      connection: a connection to the server, joined to the world or not.
      world_name: the name of the world.
      settings: values by name, nested or flat; see `pack_settings`.

    Raises:
      As `create_world`.
    """
    connection.send(
        dm_env_rpc_pb2.ResetWorldRequest(
            world_name=checked_name(world_name), settings=pack_settings(settings)
        )
    )


def leave_world(connection: Connection) -> None:
    """Leaves the world that a connection is joined to, if any.

    Raises:
      As `Connection.send`.
    """
    connection.send(dm_env_rpc_pb2.LeaveWorldRequest())


def destroy_world(connection: Connection, world_name: str) -> None:
    """Destroys a world, which the connection is not joined to.

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
    """Connects to a server, or launches one, creates a world and joins it.

    Args:
      address: as for `connect`, like `timeout`, `request_timeout`, `credentials`,
        `insecure`, `metadata`, `token` and `transport`. Or a server to launch, which ends with the
        environment: `process:COMMAND`, `docker:IMAGE` or `python:MODULE:NAME`, or a function
        that returns a `launch.Launch`; see `dm_env_rpc_client.launch`.
      create_world_settings: values by name, nested or flat; see `pack_settings`.
      join_world_settings: the same.
      timeout: seconds until there must be a connection, or until a launched server must answer,
        which has 60 if nothing is said; None for no limit.
      request_timeout: seconds that each answer may take; None for no limit.
      credentials: TLS credentials; None for plaintext.
      insecure: allow plaintext to an address other than loopback.
      metadata: sent with the call.
      token: sent with the call, for a server that requires one.
      transport: which transport carries the stream.
      limits: what an answer may contain; None for the defaults of `Limits`.
      record: a file to which all requests and answers are recorded; None for none.
      restart: how often the environment is started again, with the same settings, if its server or
        its connection is lost; None or False for never, True for `Restart()`. See `Restart`.
      python: for `python:MODULE:NAME`, the interpreter that makes the environment, from Python 3.6
        on; see `launch.from_python`. None for that of this process.
      **make_kwargs: for `join_world` and the adaptor, such as
        `requested_observations`.

    Returns:
      The environment. Its `close` leaves and destroys the world and closes the
      connection. If nobody calls it, that happens when the environment is garbage-collected or
      the interpreter exits.

    Raises:
      As `connect`, `create_world` and `join_world`. No world is left on the server then. An
        argument of another type or out of range is a SpecError, before anything is sent or started.
      LaunchError: the server was not started.
      TypeError: a keyword is none of `make` and of the adaptor, such as a setting.
    """
    options = MakeOptions.of({**make_kwargs, "restart": restart, "python": python})
    settings = (
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
        site.close()
        raise
    env.on_close(site.close)
    given = (address, dict(create_world_settings), dict(join_world_settings))
    env._making = Making.of(make, *given, **options.keywords)
    return env


Connect: TypeAlias = Callable[[dm_env_rpc_pb2.CreateWorldRequest], tuple[Connection, Any]]
"""Opens a connection with a first request; returns it, and what its `wait` takes."""


def _create(connect: Connect, request: dm_env_rpc_pb2.CreateWorldRequest) -> tuple[Connection, str]:
    """Opens a connection and creates a world over it, in one round trip if that is possible."""
    connection, pending = connect(request)
    try:
        return connection, received_name(connection, connection.wait(pending))
    except BaseException:
        connection.close()
        raise


def make_on(
    site: Site[Any],
    connect: Connect,
    create_world_settings: Mapping[str, Any],
    join_world_settings: Mapping[str, Any],
    options: MakeOptions,
    is_shared: bool = False,
) -> DmEnvAdaptor:
    """`make` on a connection that `connect` opens, after the settings have been checked.

    Args:
      site: the server, which stays as long as the environment; `close` does not end it.
      connect: opens a connection to it with a first request.
      create_world_settings: as for `make`.
      join_world_settings: the same.
      options: how to adapt, and whether to start it again.
      is_shared: whether other environments use the server.
    """
    join_settings = pack_settings(join_world_settings)
    request = dm_env_rpc_pb2.CreateWorldRequest(settings=pack_settings(create_world_settings))
    connection, world_name = _create(connect, request)
    try:
        env = join_world(connection, world_name, join_settings, **options.adapt.keywords)
    except BaseException:
        destroy_and_close(connection, world_name)
        raise
    env._site = site
    world = _OwnWorld(site, connection, world_name)
    env._end_world = world.end

    def join_again() -> Joined:
        world.give_up()
        site.renew(is_shared)
        connection, name = _create(connect, request)
        world.begin(connection, name)
        joined = _join(connection, name, join_settings)
        world.check_not_over()
        return joined

    if options.restart is not None:
        env._supervise(options.restart, join_again)
    return env


class _OwnWorld:
    """The world that an environment has created, and the connection to it."""

    def __init__(self, site: Site[Any], connection: Connection, name: str):
        self._site = site
        self._is_over = False
        site.use()
        self.begin(connection, name)

    def begin(self, connection: Connection, name: str) -> None:
        self._connection: Connection | None = connection
        self._name = name
        connection.if_not_closed(functools.partial(end_unclosed, name, self._site))

    def end(self) -> None:
        """Leaves and destroys the world and closes the connection; for the last time.

        It may be called again after an interrupt.
        """
        self._is_over = True
        self.give_up()

    def check_not_over(self) -> None:
        """Gives up the world, and raises ConnectionClosedError, if the environment was closed.

        Another thread may do that while this one joins.
        """
        if self._is_over:
            self.give_up()
            raise ConnectionClosedError("the environment was closed while it was restarted")

    def give_up(self) -> None:
        """Does the same for a world that is lost, or that an attempt to restart has joined."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                leave_destroy_and_close(connection, self._name)
            except BaseException:
                self._connection = connection
                raise
