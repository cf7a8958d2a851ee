"""An environment for asyncio, on a connection that is joined to a world."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeAlias

import dm_env

from dm_env_rpc_client import arguments
from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.async_connection import AsyncConnection
from dm_env_rpc_client.environment.base_adaptor import AHEAD, UNROLL_AHEAD, per_step, take
from dm_env_rpc_client.environment.exchanges import adrive
from dm_env_rpc_client.environment.gymnasium_names import takes_settings
from dm_env_rpc_client.environment.joined_adaptor import JoinedAdaptor
from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.pipeline import Pending

_log = logging.getLogger(__name__)

AsyncRejoin: TypeAlias = Callable[[], Awaitable[dm_env_rpc_pb2.ActionObservationSpecs]]
"""The type of a coroutine function that leaves a world, joins it again and returns its specs."""


class AsyncDmEnvAdaptor(JoinedAdaptor[AsyncConnection, AsyncRejoin]):
    """A remote environment for use in an asyncio event loop.

    The methods `reset`, `step`, `unroll` and `close` are coroutines; their arguments, results and
    errors are the same as in `DmEnvAdaptor`. Steps of one environment are taken in the order in
    which they were sent, so that callers can use `asyncio.gather`.

    Args:
      connection: a connection that is joined to a world.
      specs: the specs in the JoinWorldResponse.
      requested_observations: names or patterns, or an `AutoObservations`.
      nested_tensors: False for flat dictionaries with the periods left in the names.
      extensions: objects to set as attributes of the adaptor, by name; or a function that makes
        them from the connection.
      rejoin: a coroutine function that leaves the world, joins it again and returns the specs, for
        servers that do not implement Reset.
      unwrap_single: as for `DmEnvAdaptor`.
      arrays: the library of the arrays in TimeSteps; as for `DmEnvAdaptor`.
      device: the device of these arrays.
    """

    # A cancelled coroutine gets no TimeStep, even if the answer has been read.
    _records_reading = False

    def _prepare(self) -> None:
        # Several coroutines may find the environment lost, but only one must restart it.
        self._restart_lock = asyncio.Lock()
        self._on_close = contextlib.AsyncExitStack()

    @takes_settings
    async def reset(self, settings: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Begin a new sequence; see `DmEnvAdaptor.reset`."""
        await adrive(self._resetting(settings))
        return await self.step({})

    async def step(self, action: Any) -> dm_env.TimeStep:
        """Take a step, or begin a sequence if none is running; see `DmEnvAdaptor.step`."""
        connection = await self._ready()
        try:
            timestep: dm_env.TimeStep = await connection.send_with(
                self._request(action), self._interpret_step
            )
        except DmEnvRpcClientError as error:
            self._lose(error, connection)
            lost = self._lost_step()
            # None for a step that would have begun a sequence, or was sent after the lost step.
            return await self.step(action) if lost is None else lost
        if self._supervision is not None:
            self._supervision.saw(timestep)
        return timestep

    def rollout(
        self, actions: Iterable[Any], ahead: int = AHEAD
    ) -> AsyncGenerator[dm_env.TimeStep, None]:
        """Take a step for each of `actions`; see `DmEnvAdaptor.rollout`."""
        self._open_connection()
        return self._steps_ahead(
            map(self._request, per_step(actions)), arguments.count("ahead", ahead)
        )

    async def _steps_ahead(
        self, prepared: Iterator[EncodedRequest], ahead: int
    ) -> AsyncGenerator[dm_env.TimeStep, None]:
        connection = await self._ready()
        in_flight: collections.deque[Pending] = collections.deque()
        # Kept for a restart: steps that were sent to the former server are sent again.
        requests: collections.deque[EncodedRequest] = collections.deque()
        bad: Exception | None = None
        while True:
            if self._connection is not connection or self._is_lost:
                # The steps after a lost one are taken in the next sequence.
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
            else:
                if self._supervision is not None:
                    self._supervision.saw(timestep)
            yield timestep

    async def _start_all(
        self,
        connection: AsyncConnection,
        requests: Iterable[EncodedRequest],
        in_flight: collections.deque[Pending],
    ) -> None:
        """Send requests, and add them to the requests in flight."""
        for request in requests:
            try:
                in_flight.append(await connection.start(request, self._interpret_step))
            except DmEnvRpcClientError as error:
                # Without a restart, the error is the caller's; with it, the step is lost like the
                # others in flight.
                if self._supervision is None or connection.is_usable:
                    raise
                in_flight.append(Pending.failed(request, error))
            except BaseException as error:  # Cancelled during the wait for room.
                connection.interrupted(error, in_flight)
                raise

    async def unroll(self, actions: Any, ahead: int = UNROLL_AHEAD) -> dm_env.TimeStep:
        """Take many steps and stack the TimeSteps along time; see `DmEnvAdaptor.unroll`."""
        prepared = iter([self._request(action) for action in per_step(actions)])
        steps = self._steps_ahead(prepared, arguments.count("ahead", ahead))
        supervision = self._supervision
        latest = None if supervision is None else supervision.latest
        try:
            return self._given(timesteps.stack([self._plain(step) async for step in steps]))
        except BaseException:
            if supervision is not None:
                supervision.latest = latest  # No caller gets the steps before the error.
            raise

    def on_close(self, callback: Callable[[], Awaitable[object]]) -> None:
        """Await `callback` at the end of `close`; see `DmEnvAdaptor.on_close`."""
        self._on_close.push_async_callback(callback)

    async def close(self) -> None:
        """Leave the world, and destroy it if `make_async` created it, without raising errors."""
        if self._connection is None:
            return
        try:
            await adrive(self._closing())
        finally:
            try:
                await self._on_close.aclose()
            except Exception:
                _log.warning("could not clean up after an environment", exc_info=True)

    async def _ready(self) -> AsyncConnection:
        """Return the connection, restarting the environment first if its connection was lost."""
        if self._supervision is not None and self._is_lost:
            async with self._restart_lock:
                await adrive(self._restarting())
        return self._open_connection()

    async def __aenter__(self) -> AsyncDmEnvAdaptor:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
