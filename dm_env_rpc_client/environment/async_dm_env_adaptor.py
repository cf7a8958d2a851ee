"""A joined connection as an environment that is awaited."""

from __future__ import annotations

import asyncio
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
from typing import Any, NamedTuple, TypeAlias

import dm_env

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.async_connection import AsyncConnection
from dm_env_rpc_client.environment.ahead import per_step, take
from dm_env_rpc_client.environment.base_adaptor import (
    AHEAD,
    CLEAN_UP_SECONDS,
    UNROLL_AHEAD,
    BaseAdaptor,
    Extensions,
)
from dm_env_rpc_client.environment.gymnasium_names import takes_settings
from dm_env_rpc_client.environment.requested import AutoObservations
from dm_env_rpc_client.environment.restarting import Restart, Supervision
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    DmEnvRpcClientError,
    DmEnvRpcError,
    SpecError,
)
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.tensors.settings import pack_settings

__all__ = ["AsyncDmEnvAdaptor", "AsyncJoined"]

_log = logging.getLogger(__name__)


AsyncRejoin: TypeAlias = Callable[[], Awaitable[dm_env_rpc_pb2.ActionObservationSpecs]]
"""Leaves and joins a world again."""


class AsyncJoined(NamedTuple):
    """A connection that has joined a world, for an adaptor."""

    connection: AsyncConnection
    specs: dm_env_rpc_pb2.ActionObservationSpecs
    world_name: str
    rejoin: AsyncRejoin


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
        rejoin: AsyncRejoin | None = None,
        unwrap_single: bool = False,
    ):
        self._rejoin = rejoin
        self._join_again: Callable[[], Awaitable[AsyncJoined]] | None = None
        self._restarting = asyncio.Lock()
        self._make_extensions = extensions if callable(extensions) else None
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

    @takes_settings
    async def reset(self, settings: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Begins a new sequence; see `DmEnvAdaptor.reset`."""
        connection = await self._ready()
        packed = pack_settings({} if settings is None else settings)
        # With pending steps the state is unknown; a superfluous Reset has no effect.
        if packed or connection.in_flight or connection.lifecycle.state is State.RUNNING:
            try:
                await self._end_sequence(connection, packed)
            except DmEnvRpcClientError as error:
                self._lose(error, connection)
                return await self.reset(settings)
        if self._supervision is not None:
            self._supervision.end_sequence()
        return await self.step({})

    async def _end_sequence(self, connection: AsyncConnection, packed: Mapping[str, Any]) -> None:
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

    async def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step, or begins a sequence if none is running; see `DmEnvAdaptor.step`."""
        connection = await self._ready()
        try:
            timestep: dm_env.TimeStep = await connection.send_with(
                self._request(action), self._interpret_step
            )
            return timestep
        except DmEnvRpcClientError as error:
            self._lose(error, connection)
            lost = self._lost_step()
            # It was to begin a sequence, or was sent after the step that was lost.
            return await self.step(action) if lost is None else lost

    def rollout(
        self, actions: Iterable[Any], ahead: int = AHEAD
    ) -> AsyncGenerator[dm_env.TimeStep, None]:
        """Takes a step for each of `actions`; see `DmEnvAdaptor.rollout`."""
        self._open_connection()
        return self._steps_ahead(
            map(self._request, per_step(actions)), arguments.count("ahead", ahead)
        )

    async def _steps_ahead(
        self, prepared: Iterator[EncodedRequest], ahead: int
    ) -> AsyncGenerator[dm_env.TimeStep, None]:
        connection = await self._ready()
        in_flight: collections.deque[Pending] = collections.deque()
        requests: collections.deque[EncodedRequest] = collections.deque()
        bad: Exception | None = None
        while True:
            if self._connection is not connection or self._is_lost:
                # Those after a lost step are taken in the sequence after it.
                connection = await self._ready()
                in_flight = collections.deque()
                await self._start_all(connection, requests, in_flight)
            if bad is None:
                more, bad = take(prepared, self._most_ahead(ahead) - len(in_flight))
                await self._start_all(connection, more, in_flight)
                if self._supervision is not None:
                    requests.extend(more)
            if not in_flight:
                if bad is not None:
                    raise bad
                return
            if requests:
                requests.popleft()
            try:
                timestep = await connection.wait(in_flight.popleft())
            except DmEnvRpcClientError as error:
                self._lose(error, connection)
                lost = self._lost_step()
                timestep = await self.step({}) if lost is None else lost
            yield timestep

    async def _start_all(
        self,
        connection: AsyncConnection,
        requests: Iterable[EncodedRequest],
        in_flight: collections.deque[Pending],
    ) -> None:
        """Sends requests and adds them to those in flight."""
        for request in requests:
            try:
                in_flight.append(await connection.start(request, self._interpret_step))
            except DmEnvRpcClientError as error:
                if self._supervision is None or connection.is_usable:
                    raise
                in_flight.append(Pending.failed(request, error))
            except BaseException as error:  # It was cancelled while it waited for room.
                connection.interrupted(error, in_flight)
                raise

    async def unroll(self, actions: Any, ahead: int = UNROLL_AHEAD) -> dm_env.TimeStep:
        """Takes many steps and stacks the TimeSteps along time; see `DmEnvAdaptor.unroll`."""
        prepared = iter([self._request(action) for action in per_step(actions)])
        steps = self._steps_ahead(prepared, arguments.count("ahead", ahead))
        return timesteps.stack([step async for step in steps])

    def _supervise(
        self, restart: Restart, join_again: Callable[[], Awaitable[AsyncJoined]]
    ) -> None:
        """Has the environment started again if it is lost; see `DmEnvAdaptor._supervise`."""
        self._supervision = Supervision(restart)
        self._join_again = join_again

    async def _restart(self) -> None:
        """Starts the environment again if it is lost; see `DmEnvAdaptor._restart`."""
        supervision = self._supervision
        if supervision is None:
            return
        async with self._restarting:
            while True:
                if supervision.due is None:
                    break
                self._open_connection()
                await asyncio.sleep(supervision.next_pause())
                try:
                    await self._move()
                except (SpecError, ConnectionClosedError):
                    raise
                except DmEnvRpcClientError as error:
                    supervision.failed(error)
                else:
                    supervision.check_specs(self._specs_by_kind())
                    supervision.succeeded(self._where())

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

    async def _ready(self) -> AsyncConnection:
        """Returns the connection; a lost environment is started again first."""
        if self._is_lost:
            await self._restart()
        return self._open_connection()

    async def _move(self) -> None:
        """Goes over to another connection, to a world like the former."""
        assert self._join_again is not None
        connection, specs, self.world_name, self._rejoin = await self._join_again()
        self._connection = connection
        self._lifecycle = connection.lifecycle
        self._adopt(specs)
        if self._make_extensions is not None:
            for name, extension in self._make_extensions(connection).items():
                setattr(self, name, extension)

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
