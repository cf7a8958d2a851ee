"""The life cycle of a joined connection, from joining through restarts to `close`.

The module supports both threads and asyncio: the methods that wait for answers are written as
exchanges, which the adaptors drive.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.environment.base_adaptor import BaseAdaptor, Extensions
from dm_env_rpc_client.environment.exchanges import AnyConnection, Call, Exchange, Sleep
from dm_env_rpc_client.environment.requested import AutoObservations
from dm_env_rpc_client.environment.restarting import Restart, Supervision
from dm_env_rpc_client.environment.world_ends import leave
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    SpecError,
)
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.tensors.settings import pack_settings

_log = logging.getLogger(__name__)

Kind = TypeVar("Kind", bound=AnyConnection)
Rejoin = TypeVar("Rejoin", bound=Callable[[], Any])


class Joined(NamedTuple):
    """A connection that has joined a world, with everything else that an adaptor needs."""

    connection: Any
    specs: dm_env_rpc_pb2.ActionObservationSpecs
    world_name: str
    rejoin: Any
    """A function that leaves the world and joins it again. For asyncio, it is a coroutine
    function."""


JoinAgain: TypeAlias = Callable[[], Exchange[Joined]]
"""The type of a function that abandons a connection and joins a world over a new connection."""


class StartedReset(NamedTuple):
    """A reset request whose answer has not been read yet."""

    pending: Pending | None
    settings: Mapping[str, Any]


class JoinedAdaptor(BaseAdaptor, Generic[Kind, Rejoin]):
    """The base class of adaptors, without the steps. `DmEnvAdaptor` documents the arguments."""

    _connection: Kind | None
    _assigned: Kind | None = None

    def __init__(
        self,
        connection: Kind,
        specs: dm_env_rpc_pb2.ActionObservationSpecs,
        requested_observations: Sequence[str] | AutoObservations | None = None,
        nested_tensors: bool = True,
        extensions: Extensions[Kind] | None = None,
        rejoin: Rejoin | None = None,
        unwrap_single: bool = False,
        arrays: str = "numpy",
        device: Any = None,
    ):
        self._prepare()
        self._rejoin = rejoin
        self._join_again: JoinAgain | None = None
        self._on_restart: list[Callable[[Any], object]] = []
        self._make_extensions = extensions if callable(extensions) else None
        # Ends a world that is the environment's own; otherwise it is only left.
        self._end_world: Callable[[], Exchange[None]] | None = None
        by_name = extensions(connection) if callable(extensions) else extensions
        super().__init__(
            connection,
            specs,
            requested_observations,
            nested_tensors,
            by_name,
            unwrap_single,
            arrays,
            device,
        )

    def _prepare(self) -> None:
        """Create the objects that differ between the adaptors for threads and for asyncio."""
        raise NotImplementedError

    @property
    def connection(self) -> Kind:
        """The connection, for use by extensions and by callers that wait for answers.

        After `close`, the property raises ConnectionClosedError.

        A subclass can assign its own attribute to this name. Steps still use the connection passed
        to the constructor.
        """
        return self._open_connection() if self._assigned is None else self._assigned

    @connection.setter
    def connection(self, connection: Kind) -> None:
        self._assigned = connection

    def _open_connection(self) -> Kind:
        if self._connection is None:
            raise ConnectionClosedError("the environment is closed")
        return self._connection

    def _ready(self) -> Any:
        """Return the connection, restarting the environment first if it is lost.

        For asyncio, this is a coroutine method.
        """
        raise NotImplementedError

    def _supervise(self, restart: Restart, join_again: JoinAgain) -> None:
        """Enable restarts after the loss of the server or the connection.

        `make` calls this method.

        Args:
          restart: the number of attempts and the pauses between them.
          join_again: a function that joins a world over a new connection.
        """
        self._supervision = Supervision(restart)
        self._after_step()
        self._join_again = join_again

    def _restarting(self) -> Exchange[None]:
        """Restart the environment if its server or connection is lost.

        Raises:
          SpecError: the environment now has different specs.
          DmEnvRpcClientError: the error of the last attempt, if all attempts failed.
        """
        supervision = self._supervision
        while supervision is not None and supervision.due is not None:
            self._open_connection()
            # Longer after each failure, so that a crashing server is not started in a busy loop.
            yield Sleep(supervision.next_pause())
            try:
                yield from self._moving()
            # Another attempt would fail in the same way.
            except (SpecError, ConnectionClosedError):
                raise
            except DmEnvRpcClientError as error:
                supervision.failed(error)
            else:
                # A server that came back with other specs must not continue the former environment.
                supervision.check_specs(self._specs_by_kind())
                supervision.succeeded(self._where())

    def _moving(self) -> Exchange[None]:
        """Switch to a new connection, and to a world that is equivalent to the previous one."""
        assert self._join_again is not None
        assert self._supervision is not None
        connection, specs, self.world_name, self._rejoin = yield from self._join_again()
        self._connection = connection
        self._lifecycle = connection.lifecycle
        self._adopt(specs)
        if self._make_extensions is not None:
            for name, extension in self._make_extensions(connection).items():
                setattr(self, name, extension)
        # Callbacks may step the environment; a loss within them fails instead of recursing.
        self._supervision.is_joining = True
        try:
            for callback in self._on_restart:
                yield Call(callback, self)
        finally:
            self._supervision.is_joining = False

    def _starting_reset(self, settings: Mapping[str, Any] | None) -> Exchange[StartedReset]:
        """End the running sequence, if there is one, without waiting for the answer."""
        connection = yield Call(self._ready)
        packed = pack_settings({} if settings is None else settings)
        # With pending steps, the state is unknown; a superfluous Reset has no effect.
        if packed or connection.in_flight or connection.lifecycle.state is State.RUNNING:
            message = dm_env_rpc_pb2.ResetRequest(settings=packed)
            try:
                pending = yield Call(connection.start, message, self._interpret_reset)
            except DmEnvRpcClientError as error:
                self._lose(error, connection)
                return (yield from self._starting_reset(settings))
            return StartedReset(pending, packed)
        return StartedReset(None, packed)

    def _finishing_reset(self, started: StartedReset) -> Exchange[None]:
        """Wait for the answer to a reset. The next step begins a sequence."""
        if started.pending is not None:
            yield from self._waiting_for_reset(started.pending, started.settings)
        if self._supervision is not None:
            self._supervision.end_sequence()

    def _waiting_for_reset(self, pending: Pending, settings: Mapping[str, Any]) -> Exchange[None]:
        connection: Any = self._open_connection()
        try:
            yield Call(connection.wait, pending)
        except DmEnvRpcError as refusal:
            # Joining again would lose the settings, so the refusal is raised.
            if settings or self._rejoin is None:
                raise
            try:
                yield from self._rejoining(refusal)
            except DmEnvRpcClientError as error:
                self._lose(error, connection)
        except DmEnvRpcClientError as error:
            self._lose(error, connection)
            # A reset during which the server is lost is carried out on the new one.
            yield from self._resetting(settings)
        except BaseException as error:
            # The answer will still arrive, and would be mistaken for the next one.
            connection.interrupted(error, (pending,))
            raise

    def _resetting(self, settings: Mapping[str, Any] | None) -> Exchange[None]:
        """End the running sequence, if there is one."""
        started = yield from self._starting_reset(settings)
        yield from self._finishing_reset(started)

    def _rejoining(self, refusal: DmEnvRpcError) -> Exchange[None]:
        assert self._rejoin is not None
        try:
            specs = yield Call(self._rejoin)
        except DmEnvRpcError as error:
            # The first refusal names the cause; the second one is a consequence.
            raise refusal from error
        self._adopt(specs)

    def _closing(self) -> Exchange[None]:
        """Leave the world, and destroy it if `make` created it. Errors are logged."""
        # First, so that a second `close`, or one from a callback, does nothing.
        connection, self._connection = self._connection, None
        self._forget_extensions()
        if self._end_world is not None:
            yield from self._end_world()
        elif connection is not None:
            yield from leave(connection)
