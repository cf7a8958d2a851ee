"""The life of a joined connection: it begins joined, may be replaced by another, and is closed."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.environment.base_adaptor import (
    CLEAN_UP_SECONDS,
    BaseAdaptor,
    Extensions,
)
from dm_env_rpc_client.environment.requested import AutoObservations
from dm_env_rpc_client.environment.restarting import Restart, Supervision
from dm_env_rpc_client.errors import ConnectionClosedError, DmEnvRpcClientError, SpecError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Joined", "JoinedAdaptor", "Rejoin"]

_log = logging.getLogger(__name__)

Rejoin: TypeAlias = Callable[[], dm_env_rpc_pb2.ActionObservationSpecs]
"""Leaves and joins a world again."""


class Joined(NamedTuple):
    """A connection that has joined a world, for an adaptor."""

    connection: Connection
    specs: dm_env_rpc_pb2.ActionObservationSpecs
    world_name: str
    rejoin: Rejoin


class JoinedAdaptor(BaseAdaptor):
    """The part of `DmEnvAdaptor` that takes no steps; for its arguments see there."""

    _connection: Connection | None
    _assigned: Connection | None = None

    def __init__(
        self,
        connection: Connection,
        specs: dm_env_rpc_pb2.ActionObservationSpecs,
        requested_observations: Sequence[str] | AutoObservations | None = None,
        nested_tensors: bool = True,
        extensions: Extensions[Connection] | None = None,
        rejoin: Rejoin | None = None,
        unwrap_single: bool = False,
    ):
        self._rejoin = rejoin
        self._join_again: Callable[[], Joined] | None = None
        self._on_restart: list[Callable[[Any], object]] = []
        self._make_extensions = extensions if callable(extensions) else None
        # Leaves and destroys a world that is the environment's own; otherwise it is only left.
        self._end_world: Callable[[], None] | None = None
        self._on_leave = contextlib.ExitStack()
        self._on_close = contextlib.ExitStack()
        by_name = extensions(connection) if callable(extensions) else extensions
        super().__init__(
            connection, specs, requested_observations, nested_tensors, by_name, unwrap_single
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def connection(self) -> Connection:
        """The connection, for extensions and for waiting; ConnectionClosedError after `close`.

        A subclass may assign the attribute, which is its own then; steps go over the connection of
        the constructor.
        """
        return self._open_connection() if self._assigned is None else self._assigned

    @connection.setter
    def connection(self, connection: Connection) -> None:
        self._assigned = connection

    def _supervise(self, restart: Restart, join_again: Callable[[], Joined]) -> None:
        """Has the environment started again if its server or connection is lost; see `Restart`.

        `make` calls it.

        Args:
          restart: how often.
          join_again: gives up the former connection and joins a world over another.
        """
        self._supervision = Supervision(restart)
        self._join_again = join_again

    def _restart(self) -> None:
        """Starts the environment again if its server or connection is lost; otherwise nothing.

        `step` and `reset` do that themselves.

        Raises:
          SpecError: it has other specs now.
          DmEnvRpcClientError: all attempts have failed; what the last one failed with.
        """
        supervision = self._supervision
        while supervision is not None and supervision.due is not None:
            self._open_connection()
            time.sleep(supervision.next_pause())
            try:
                self._move()
            except (SpecError, ConnectionClosedError):
                raise
            except DmEnvRpcClientError as error:
                supervision.failed(error)
            else:
                supervision.check_specs(self._specs_by_kind())
                supervision.succeeded(self._where())

    def on_restart(self, callback: Callable[[Self], object]) -> None:
        """Calls `callback` when the environment was started again, before its specs are compared.

        Args:
          callback: called with the environment, for what has to be asked of it again. What it
            raises makes the attempt fail.
        """
        self._on_restart.append(callback)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Calls `callback` at the end of `close`; the last added is called first.

        A world that `make` created is destroyed and its connection is closed by then, so the
        callback may stop the server.

        Args:
          callback: called without arguments, whatever `close` meets.
        """
        self._on_close.callback(callback)

    def close(self) -> None:
        """Leaves the world; a world that `make` created is destroyed. A second call does nothing.

        Raises nothing, so that an error in the body of a `with` is not replaced; errors are
        logged.
        """
        connection = self._connection
        if connection is None:
            return
        end = self._end_world or functools.partial(_leave, connection)
        try:
            self._connection = None
            self._forget_extensions()
            end()
        except BaseException:  # Ctrl-C, perhaps before the request was sent
            end()
            raise
        finally:
            try:
                with self._on_close, self._on_leave:
                    pass
            except Exception:
                _log.warning("could not clean up after an environment", exc_info=True)

    def _ready(self) -> Connection:
        """Returns the connection; a lost environment is started again first."""
        if self._supervision is not None and self._is_lost:
            self._restart()
        if self._connection is None:
            raise ConnectionClosedError("the environment is closed")
        return self._connection

    def _move(self) -> None:
        """Goes over to another connection, to a world like the former."""
        assert self._join_again is not None
        connection, specs, self.world_name, self._rejoin = self._join_again()
        self._connection = connection
        self._lifecycle = connection.lifecycle
        self._adopt(specs)
        if self._make_extensions is not None:
            for name, extension in self._make_extensions(connection).items():
                setattr(self, name, extension)
        assert self._supervision is not None
        self._supervision.is_joining = True
        try:
            for callback in self._on_restart:
                callback(self)
        finally:
            self._supervision.is_joining = False

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise ConnectionClosedError("the environment is closed")
        return self._connection


def _leave(connection: Connection) -> None:
    """Leaves the world if that is possible; errors are logged."""
    if connection.is_usable:
        try:
            request = dm_env_rpc_pb2.LeaveWorldRequest()
            connection.wait(connection.start(request, None, CLEAN_UP_SECONDS))
        except DmEnvRpcClientError as error:
            _log.warning("could not leave the world: %s", error)
