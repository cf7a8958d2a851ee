"""The stream over grpc.aio, for coroutines."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

from dm_env_rpc_client.transports.grpc.forked import check_works
from dm_env_rpc_client.transports.grpc.stream import explained, keep_for_ever
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.net.metadata import Metadata, check_metadata
from dm_env_rpc_client.transports.streams import AsyncStream

_WRITE_FAILED = "Internal error from Core"
"""What grpc.aio says in place of the status if a write fails before the status has arrived."""

_STATUS_SECONDS = 1.0
"""How long the status of a call that is over may take to arrive."""

_LOOK_SECONDS = 0.005


class AsyncGrpcStream(AsyncStream):
    """An `AsyncStream` on a grpc.aio.Channel; the arguments are those of `GrpcStream`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: Metadata | None = None,
        address: str = "the channel's target",
        owns_channel: bool = False,
    ):
        check_works(f"cannot connect to {address}")
        self.address = address
        self._channel = channel if owns_channel else None
        self._call: Any = channel.stream_stream(status.PROCESS)(metadata=check_metadata(metadata))
        # grpc.aio replaces the status by its own if a write fails after it: this is the first one.
        self._status: list[Any] = []
        self._call.add_done_callback(functools.partial(_keep_status, self._status))

    async def write(self, message: bytes) -> None:
        try:
            await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # `read` raises it.

    async def read(self) -> bytes:
        try:
            message = await self._call.read()
        except grpc.RpcError:
            message = None
        if isinstance(message, bytes):
            return message
        if not self._status:
            self._status += [await self._call.code(), await self._call.details()]
        if self._status[1] == _WRITE_FAILED:
            await self._replace_status()
        code, details = self._status
        raise status.stream_error(self.address, code.name, explained(details))

    async def _replace_status(self) -> None:
        ends_at = time.monotonic() + _STATUS_SECONDS
        while self._status[1] == _WRITE_FAILED and time.monotonic() < ends_at:
            await asyncio.sleep(_LOOK_SECONDS)  # Callbacks are called for the first status only.
            self._status[:] = await self._call.code(), await self._call.details()

    async def close(self, timeout: float) -> None:
        try:
            await asyncio.wait_for(self._end(), timeout)
        except (asyncio.TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            pass
        self._call.cancel()
        if self._channel is not None:
            await self._channel.close()

    async def _end(self) -> None:
        await self._call.done_writing()
        await self._call.code()

    def abandon(self) -> None:
        keep_for_ever(self._call, self._channel)

    def abort(self) -> None:
        self._call.cancel()


def _keep_status(kept: list[Any], call: Any) -> None:
    # The call is over, so neither waits. To await them would take a task, which runs too late.
    if not kept:
        kept += [_result(call.code()), _result(call.details())]


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    raise AssertionError("a call that is over has a status")
