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
from types import MappingProxyType, TracebackType
from typing import Any

import dm_env

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.client.async_connection import AsyncConnection, connect_async
from dm_env_rpc_client.environment.base_adaptor import (
    AHEAD,
    AutoObservations,
    BaseAdaptor,
    per_step,
    take,
)
from dm_env_rpc_client.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    DmEnvRpcError,
)
from dm_env_rpc_client.protocol import timesteps
from dm_env_rpc_client.protocol.envelopes import EncodedRequest
from dm_env_rpc_client.protocol.lifecycle import State
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.tensors.settings import pack_settings
from dm_env_rpc_client.transports.credentials import Credentials
from dm_env_rpc_client.transports.endpoint import Transport
from dm_env_rpc_client.transports.metadata import Metadata

__all__ = ["AsyncDmEnvAdaptor", "make_async"]

_log = logging.getLogger(__name__)

CLEAN_UP_SECONDS = 1.0
"""How long the server may take for each step of leaving and undoing."""


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
      extensions: objects to put on the adaptor as attributes, by name.
      rejoin: leaves and joins the world again and returns the specs, for servers that do
        not know Reset.
    """

    def __init__(
        self,
        connection: AsyncConnection,
        specs: dm_env_rpc_pb2.ActionObservationSpecs,
        requested_observations: Sequence[str] | AutoObservations | None = None,
        nested_tensors: bool = True,
        extensions: Mapping[str, Any] | None = None,
        rejoin: Callable[[], Awaitable[dm_env_rpc_pb2.ActionObservationSpecs]] | None = None,
    ):
        self._connection: AsyncConnection | None = connection
        self._rejoin = rejoin
        self._on_close = contextlib.AsyncExitStack()
        super().__init__(
            connection.lifecycle, specs, requested_observations, nested_tensors, extensions
        )

    def __repr__(self) -> str:
        return self._describe(self._where())

    def _repr_html_(self) -> str:
        return self._describe_html(self._where())

    def _where(self) -> str:
        return "closed" if self._connection is None else self._connection.address

    async def reset(self, settings: Mapping[str, Any] | None = None) -> dm_env.TimeStep:
        """Begins a new sequence; see `DmEnvAdaptor.reset`."""
        connection = self._open_connection()
        packed = pack_settings(settings or {})
        # What steps in flight will lead to is not known; a Reset too many does nothing.
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
        """Takes a step, or begins a sequence where none is running; see `DmEnvAdaptor.step`."""
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
        """Takes many steps, sending them ahead of the answers; see `DmEnvAdaptor.unroll`."""
        connection = self._open_connection()
        prepared = iter([self._request(action) for action in per_step(actions)])
        steps = self._steps_ahead(connection, prepared, ahead)
        return timesteps.stack([step async for step in steps])

    def on_close(self, callback: Callable[[], Awaitable[object]]) -> None:
        """Has `callback` awaited when the adaptor has left its world; the last comes first."""
        self._on_close.push_async_callback(callback)

    async def close(self) -> None:
        """Leaves the world; what `make_async` created is destroyed. Raises nothing."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        self._forget_extensions()
        if connection.is_usable:
            try:
                await connection.send(dm_env_rpc_pb2.LeaveWorldRequest(), CLEAN_UP_SECONDS)
            except DmEnvRpcClientError as error:
                _log.warning("did not leave the world properly: %s", error)
        try:
            await self._on_close.aclose()
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


async def make_async(
    address: str,
    create_world_settings: Mapping[str, Any] = MappingProxyType({}),
    join_world_settings: Mapping[str, Any] = MappingProxyType({}),
    *,
    timeout: float | None = 10.0,
    request_timeout: float | None = None,
    credentials: Credentials | None = None,
    insecure: bool = False,
    metadata: Metadata | None = None,
    transport: Transport = "auto",
    **adaptor_kwargs: Any,
) -> AsyncDmEnvAdaptor:
    """`make` for asyncio; arguments and errors are the same.

    Returns:
      The environment. Its `close` leaves and destroys the world and closes the
      connection.
    """
    create = dm_env_rpc_pb2.CreateWorldRequest(settings=pack_settings(create_world_settings))
    join_settings = pack_settings(join_world_settings)

    async def open_connection(timeout: float | None) -> AsyncConnection:
        return await connect_async(
            address,
            timeout=timeout,
            request_timeout=request_timeout,
            credentials=credentials,
            insecure=insecure,
            metadata=metadata,
            transport=transport,
        )

    connection = await open_connection(timeout)
    stack = contextlib.AsyncExitStack()
    stack.push_async_callback(connection.close)
    try:
        world_name = (await connection.send(create)).world_name
        stack.push_async_callback(_destroy, connection, world_name, open_connection)
        join = dm_env_rpc_pb2.JoinWorldRequest(world_name=world_name, settings=join_settings)

        async def rejoin() -> dm_env_rpc_pb2.ActionObservationSpecs:
            await connection.send(dm_env_rpc_pb2.LeaveWorldRequest())
            specs: dm_env_rpc_pb2.ActionObservationSpecs = (await connection.send(join)).specs
            return specs

        specs = (await connection.send(join)).specs
        env = AsyncDmEnvAdaptor(connection, specs, **{"rejoin": rejoin, **adaptor_kwargs})
    except BaseException:
        await stack.aclose()
        raise
    env.on_close(stack.pop_all().aclose)
    return env


async def _destroy(
    connection: AsyncConnection,
    world_name: str,
    open_connection: Callable[[float | None], Awaitable[AsyncConnection]],
) -> None:
    """Undoes the creation, in the wake of another error or of a close, which stands.

    It takes a connection of its own where this one is dead and the server need not be.
    """
    cause = connection.poisoned_by
    try:
        if cause is None:
            await connection.send(dm_env_rpc_pb2.LeaveWorldRequest(), CLEAN_UP_SECONDS)
            await _send_destroy(connection, world_name)
        elif not isinstance(cause, ConnectionLostError | DeadlineExceededError):
            async with await open_connection(CLEAN_UP_SECONDS) as fresh:
                await _destroy_when_left(fresh, world_name)
    except DmEnvRpcClientError as error:
        _log.warning("could not destroy the world: %s", error)


async def _destroy_when_left(connection: AsyncConnection, world_name: str) -> None:
    deadline = asyncio.get_running_loop().time() + CLEAN_UP_SECONDS
    while True:
        try:
            return await _send_destroy(connection, world_name)
        except DmEnvRpcError:
            # The server takes a moment to see that the other connection has gone.
            if asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.02)


async def _send_destroy(connection: AsyncConnection, world_name: str) -> None:
    request = dm_env_rpc_pb2.DestroyWorldRequest(world_name=world_name)
    await connection.send(request, CLEAN_UP_SECONDS)
