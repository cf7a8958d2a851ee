"""The stream over grpc.aio, for coroutines."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from dm_env_rpc_client.transports import status
from dm_env_rpc_client.transports.grpc.stream import keep_for_ever
from dm_env_rpc_client.transports.metadata import Metadata, check_metadata

__all__ = ["AsyncGrpcStream"]


class AsyncGrpcStream:
    """An `AsyncStream` on a grpc.aio.Channel; the arguments are those of `GrpcStream`."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        metadata: Metadata | None = None,
        address: str = "the channel's target",
        owns_channel: bool = False,
    ):
        self.address = address
        self._channel = channel if owns_channel else None
        self._call: Any = channel.stream_stream(status.PROCESS)(metadata=check_metadata(metadata))

    async def write(self, message: bytes) -> None:
        """See `AsyncStream.write`."""
        try:
            await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            pass  # `read` raises it.

    async def read(self) -> bytes:
        """See `AsyncStream.read`."""
        try:
            message = await self._call.read()
        except grpc.RpcError as error:
            raise status.stream_error(self.address, error.code().name, error.details()) from None
        if isinstance(message, bytes):
            return message
        code, details = await self._call.code(), await self._call.details()
        raise status.stream_error(self.address, code.name, details)

    async def close(self, timeout: float) -> None:
        """See `AsyncStream.close`."""
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
        """See `AsyncStream.abandon`."""
        keep_for_ever(self._call, self._channel)

    def abort(self) -> None:
        """See `AsyncStream.abort`."""
        self._call.cancel()
