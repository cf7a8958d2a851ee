"""A joined connection as an environment that is awaited."""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from types import TracebackType
from typing import Any

import dm_env

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.async_connection import AsyncConnection
from dm_env_rpc_client.environment.base_adaptor import (
    AHEAD,
    CLEAN_UP_SECONDS,
    AutoObservations,
    BaseAdaptor,
    Extensions,
    per_step,
    take,
)
from dm_env_rpc_client.errors import ConnectionClosedError, DmEnvRpcClientError, DmEnvRpcError
from dm_env_rpc_client.protocol import telemetry, timesteps
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.tensors.settings import pack_settings

__all__ = ["AsyncDmEnvAdaptor"]

_log = logging.getLogger(__name__)


class AsyncDmEnvAdaptor(BaseAdaptor):
    """Steps a remote environment from an event loop.

    `DmEnvAdaptor` with `reset`, `step`, `unroll` and `close` awaited; arguments, results
    and errors are the same. Steps of one environment are taken in the order in which
    they are sent, so they may be gathered.

    Args:
      connection: a connection that is joined to a world.
      specs: the specs in the JoinWorldResponse.
      requested_observations: names or patterns, or an `AutoObservations`.
      nested_tensors: False for flat dictionaries with the periods left in the names.
      extensions: objects to put on the adaptor as attributes, by name; or a function that makes
        them from the connection.
      rejoin: leaves and joins the world again and returns the specs, for servers that do
        not implement Reset.
      unwrap_single: as for `DmEnvAdaptor`.
    """

    _connection: AsyncConnection | None
    _assigned: AsyncConnection | None = None

    def __init__(
        self,
        connection: AsyncConnection,
        specs: dm_env_rpc_pb2.ActionObservationSpecs,
        requested_observations: Sequence[str] | AutoObservations | None = None,
        nested_tensors: bool = True,
        extensions: Extensions[AsyncConnection] | None = None,
        rejoin: Callable[[], Awaitable[dm_env_rpc_pb2.ActionObservationSpecs]] | None = None,
        unwrap_single: bool = False,
    ):
        self._rejoin = rejoin
        self._on_leave = contextlib.AsyncExitStack()
        self._on_close = contextlib.AsyncExitStack()
        by_name = extensions(connection) if callable(extensions) else extensions
        super().__init__(
            connection, specs, requested_observations, nested_tensors, by_name, unwrap_single
        )

    @property
    def connection(self) -> AsyncConnection:
        """The connection, for extensions; see `DmEnvAdaptor.connection`."""
        return self._open_connection() if self._assigned is None else self._assigned

    @connection.setter
    def connection(self, connection: AsyncConnection) -> None:
        self._assigned = connection

    async def reset(self, settings: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Begins a new sequence; see `DmEnvAdaptor.reset`."""
        connection = self._open_connection()
        with telemetry.span("reset_environment", connection.address):
            packed = pack_settings(settings or {})
            # With pending steps the state is unknown; a superfluous Reset has no effect.
            if packed or connection.in_flight or connection.lifecycle.state is State.RUNNING:
                try:
                    request = dm_env_rpc_pb2.ResetRequest(settings=packed)
                    await connection.send_with(request, self._interpret_reset)
                except DmEnvRpcError as refusal:
                    if packed or self._rejoin is None:
                        raise
                    try:
                        specs = await self._rejoin()
                    except DmEnvRpcError as error:
                        raise refusal from error
                    self._adopt(specs)
            return await self.step({})

    async def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step, or begins a sequence if none is running; see `DmEnvAdaptor.step`."""
        connection = self._open_connection()
        timestep: dm_env.TimeStep = await connection.send_with(
            self._request(action), self._interpret_step
        )
        return timestep

    def rollout(
        self, actions: Iterable[Any], ahead: int = AHEAD
    ) -> AsyncGenerator[dm_env.TimeStep, None]:
        """Takes a step for each of `actions`; see `DmEnvAdaptor.rollout`."""
        prepared = map(self._request, per_step(actions))
        return self._steps_ahead(self._open_connection(), prepared, ahead)

    async def _steps_ahead(
        self, connection: AsyncConnection, prepared: Iterator[EncodedRequest], ahead: int
    ) -> AsyncGenerator[dm_env.TimeStep, None]:
        in_flight: collections.deque[Pending] = collections.deque()
        bad: Exception | None = None
        while True:
            if bad is None:
                more, bad = take(prepared, self._most_ahead(ahead) - len(in_flight))
                for request in more:
                    in_flight.append(await connection.start(request, self._interpret_step))
            if not in_flight:
                if bad is not None:
                    raise bad
                return
            yield await connection.wait(in_flight.popleft())

    async def unroll(self, actions: Any, ahead: int = AHEAD) -> dm_env.TimeStep:
        """Takes many steps and stacks the TimeSteps along time; see `DmEnvAdaptor.unroll`."""
        connection = self._open_connection()
        prepared = iter([self._request(action) for action in per_step(actions)])
        steps = self._steps_ahead(connection, prepared, ahead)
        return timesteps.stack([step async for step in steps])

    def on_leave(self, callback: Callable[[], Awaitable[object]]) -> None:
        """Awaits `callback` when `close` has left the world; see `DmEnvAdaptor.on_leave`."""
        self._on_leave.push_async_callback(callback)

    def on_close(self, callback: Callable[[], Awaitable[object]]) -> None:
        """Awaits `callback` at the end of `close`; see `DmEnvAdaptor.on_close`."""
        self._on_close.push_async_callback(callback)

    async def close(self) -> None:
        """Leaves the world; a world that `make_async` created is destroyed. Raises nothing."""
        connection = self._connection
        if connection is None:
            return
        try:
            self._connection = None
            self._forget_extensions()
            await _leave(connection)
        except BaseException:  # It was cancelled, perhaps before the request was sent.
            await _leave(connection)
            raise
        finally:
            try:
                async with self._on_close, self._on_leave:
                    pass
            except Exception:
                _log.warning("could not clean up after an environment", exc_info=True)

    def _open_connection(self) -> AsyncConnection:
        if self._connection is None:
            raise ConnectionClosedError("the environment is closed")
        return self._connection

    async def __aenter__(self) -> AsyncDmEnvAdaptor:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def _leave(connection: AsyncConnection) -> None:
    """Leaves the world if that is possible; errors are logged."""
    if connection.is_usable:
        try:
            request = dm_env_rpc_pb2.LeaveWorldRequest()
            await connection.send_with(request, None, CLEAN_UP_SECONDS)
        except DmEnvRpcClientError as error:
            _log.warning("could not leave the world: %s", error)
