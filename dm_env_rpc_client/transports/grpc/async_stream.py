"""The stream over grpc.aio, for use in coroutines."""

from __future__ import annotations

import asyncio
import collections
import functools
import select
import time
from collections.abc import Coroutine
from typing import Any

import grpc
import grpc.aio

from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcClientError
from dm_env_rpc_client.system.polling import SelfPipe
from dm_env_rpc_client.transports.grpc.forked import check_works
from dm_env_rpc_client.transports.grpc.probes import Probes
from dm_env_rpc_client.transports.grpc.stream import explained, keep_for_ever
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.net.keepalive import KeepaliveSeconds
from dm_env_rpc_client.transports.net.metadata import Metadata, check_metadata
from dm_env_rpc_client.transports.streams import AsyncStream

_WRITE_FAILED = "Internal error from Core"
"""The error message that grpc.aio reports if a write fails before the status arrives."""

_STATUS_SECONDS = 1.0
"""The time limit, in seconds, for the status of a finished call to arrive."""

_LOOK_SECONDS = 0.005


class AsyncGrpcStream(AsyncStream):
    """An `AsyncStream` over a grpc.aio.Channel.

    The arguments are the same as those of `GrpcStream`. One task reads, and another task writes
    while there are messages to send.
    """

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
        # None ends the stream.
        self._outbound: collections.deque[bytes | None] = collections.deque()
        self._inbound: collections.deque[bytes] = collections.deque()
        self._failure: DmEnvRpcClientError | None = None
        self._arrivals = SelfPipe()
        self._probes = Probes(self._channel, address)
        self._probing: asyncio.Task[None] | None = None
        # Set while there is no answer that was not taken.
        self._taken = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None

    def fileno(self) -> int:
        if self._reader is None:
            self._reader = asyncio.get_running_loop().create_task(self._read_all())
        return self._arrivals.fileno()

    def events(self) -> int:
        return select.POLLIN

    def receive(self) -> bool:
        self._arrivals.drain()
        return False

    def has_unread(self) -> bool:
        return bool(self._inbound) or self._failure is not None

    def take(self) -> bytes | None:
        if self._inbound:
            self._taken.set()
            return self._inbound.popleft()
        if self._failure is not None:
            raise self._failure
        return None

    def keep_alive(self, seconds: KeepaliveSeconds) -> None:
        self._probes.keepalive = seconds

    def look(self) -> None:
        try:
            if not self._probes.must_probe():
                return
        except ConnectionLostError as error:
            self._failure = error
            raise
        if self._probing is None or self._probing.done():
            self._probing = asyncio.get_running_loop().create_task(self._probes.probe_async())

    def write(self, message: bytes | None, /) -> None:
        self._outbound.append(message)
        self._probes.sent += 1
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_all())

    def finish(self) -> None:
        self.write(None)

    async def _write_all(self) -> None:
        try:
            while True:
                if not self._outbound:
                    break
                message = self._outbound.popleft()
                await (self._call.done_writing() if message is None else self._call.write(message))
        except (grpc.RpcError, asyncio.InvalidStateError):
            self._outbound.clear()  # `take` raises the error.
        # Nothing was awaited since the queue was found empty, so the next write starts a new task.
        self._writer = None

    async def _read_all(self) -> None:
        while True:
            try:
                message = await self._call.read()
            except grpc.RpcError:
                break
            if not isinstance(message, bytes):
                break
            self._taken.clear()
            self._probes.received += 1
            self._inbound.append(message)
            self._arrivals.notify()
            await self._taken.wait()
        self._failure = await self._end_of_call()
        self._arrivals.notify()

    async def _end_of_call(self) -> DmEnvRpcClientError:
        if not self._status:
            self._status += [await self._call.code(), await self._call.details()]
        if self._status[1] == _WRITE_FAILED:
            await self._replace_status()
        code, details = self._status
        return status.stream_error(self.address, code.name, explained(details))

    async def _replace_status(self) -> None:
        ends_at = time.monotonic() + _STATUS_SECONDS
        while self._status[1] == _WRITE_FAILED and time.monotonic() < ends_at:
            await asyncio.sleep(_LOOK_SECONDS)  # Callbacks are called for the first status only.
            self._status[:] = await self._call.code(), await self._call.details()

    def abandon(self) -> None:
        keep_for_ever(self._call, self._channel)
        self._arrivals.abandon()

    def abort(self) -> None:
        self._call.cancel()
        for task in (self._reader, self._writer, self._probing):
            if task is not None:
                task.cancel()
        self._arrivals.close()

    async def closed(self) -> None:
        # A cancelled task refers to its frames, and these to what refers to this.
        tasks = [task for task in (self._reader, self._writer, self._probing) if task is not None]
        self._reader = self._writer = self._probing = None
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()


def _keep_status(kept: list[Any], call: Any) -> None:
    # The call is over, so neither waits. To await them would take a task, which runs too late.
    if not kept:
        kept += [_result(call.code()), _result(call.details())]


def _result(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as returned:
        return returned.value
    raise AssertionError("the call has ended, but its status is not available")
