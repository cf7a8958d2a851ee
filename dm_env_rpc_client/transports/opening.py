"""Functions that choose the transport for an endpoint and open a stream."""

from __future__ import annotations

import ssl
import weakref

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.waiting import release
from dm_env_rpc_client.transports.endpoint import Endpoint, is_for_http2
from dm_env_rpc_client.transports.grpc.async_stream import AsyncGrpcStream
from dm_env_rpc_client.transports.grpc.channel import open_channel, open_channel_async
from dm_env_rpc_client.transports.grpc.stream import GrpcStream
from dm_env_rpc_client.transports.http2.client.connecting import open_connection, opened_connection
from dm_env_rpc_client.transports.http2.client.connection import ClientConnection
from dm_env_rpc_client.transports.http2.client.stream import Http2Stream, Reopen
from dm_env_rpc_client.transports.net.credentials import GrpcCredentials, Tls
from dm_env_rpc_client.transports.net.sockets import IN_LOOP, Waits
from dm_env_rpc_client.transports.streams import Allocate, AsyncStream, Stream, plain_memory

_AGAIN_SECONDS = 5.0
"""The time limit, in seconds, for reopening a stream that the server did not process."""


def open_stream(
    endpoint: Endpoint,
    timeout: float | None,
    allocate: Allocate = plain_memory,
    first: bytes | None = None,
) -> Stream:
    """Open a stream for use by threads.

    Args:
      endpoint: the server and how to connect to it.
      timeout: the time limit for opening the stream, in seconds, or None for no limit.
      allocate: a function that returns memory for a large message.
      first: a first message. If the transport permits, it is sent before the server's greeting
        arrives.

    Raises:
      As `connect`.
    """
    if endpoint.tap is not None:  # Written through the tap, so that it is recorded.
        return _written(_tapped(_open_stream(endpoint, timeout, allocate, None), endpoint), first)
    return _open_stream(endpoint, timeout, allocate, first)


def _open_stream(
    endpoint: Endpoint, timeout: float | None, allocate: Allocate, first: bytes | None
) -> Stream:
    if _uses_http2(endpoint):
        connection = open_connection(endpoint, timeout, allocate, first=first)
        return Http2Stream(connection, None, _again(endpoint, allocate), first)
    channel = open_channel(
        endpoint.address, grpc_credentials(endpoint), timeout, endpoint.max_message_bytes
    )
    try:
        stream = GrpcStream(channel, endpoint.metadata, endpoint.address, owns_channel=True)
    except BaseException:
        # A channel has threads, and no stream will close it now.
        release(channel.close)
        raise
    return _written(stream, first)


async def open_stream_async(
    endpoint: Endpoint,
    timeout: float | None,
    allocate: Allocate = plain_memory,
    first: bytes | None = None,
) -> AsyncStream:
    """Open a stream for an event loop, as `open_stream` does for threads."""
    if endpoint.tap is None:
        return await _open_stream_async(endpoint, timeout, allocate, first)
    stream = await _open_stream_async(endpoint, timeout, allocate, None)
    try:
        recorded = endpoint.tap.recorded_async(stream, endpoint)
        if first is not None:
            recorded.write(first)
        return recorded
    except BaseException:
        stream.abort()
        await stream.closed()
        raise


async def _open_stream_async(
    endpoint: Endpoint, timeout: float | None, allocate: Allocate, first: bytes | None
) -> AsyncStream:
    if _uses_http2(endpoint):
        connection = await opened_connection(IN_LOOP, endpoint, timeout, allocate, first)
        return Http2Stream(connection, None, _again(endpoint, allocate), first)
    channel = await open_channel_async(
        endpoint.address, grpc_credentials(endpoint), timeout, endpoint.max_message_bytes
    )
    try:
        stream = AsyncGrpcStream(channel, endpoint.metadata, endpoint.address, owns_channel=True)
        if first is not None:
            stream.write(first)
        return stream
    except BaseException:
        await channel.close()
        raise


class StreamGroup:
    """Streams for use by one thread at a time, on as few connections as the server allows.

    Args:
      endpoint: the server and how to connect to it.
      allocate: a function that returns memory for a large message.
    """

    def __init__(self, endpoint: Endpoint, allocate: Allocate = plain_memory):
        self._endpoint = endpoint
        self._allocate = allocate
        self._again = _again(endpoint, allocate)
        # Weak: a connection lives only as long as one of its streams.
        self._connections: weakref.WeakSet[ClientConnection] = weakref.WeakSet()

    @property
    def is_possible(self) -> bool:
        """Whether the transport supports multiple streams on one connection."""
        return _uses_http2(self._endpoint)

    def open(self, timeout: float | None, first: bytes | None = None) -> Stream:
        """Open another stream, on an open connection if the server permits it.

        The arguments and errors are the same as those of `open_stream`.
        """
        if self._endpoint.tap is not None:
            return _written(_tapped(self._open(timeout, None), self._endpoint), first)
        return self._open(timeout, first)

    def _open(self, timeout: float | None, first: bytes | None) -> Stream:
        usable = [connection for connection in self._connections if connection.is_usable]
        # The least used one first, which spreads streams over connections evenly.
        for connection in sorted(usable, key=lambda each: each.stream_count):
            call = connection.open_call()
            if call is not None:
                return _written(Http2Stream(connection, call, self._again), first)
        connection = open_connection(self._endpoint, timeout, self._allocate, first=first)
        self._connections.add(connection)
        return Http2Stream(connection, None, self._again, first)

    def cork(self) -> None:
        """Hold back one thread's writes on all streams until `uncork` is called."""
        for connection in self._connections:
            connection.cork()

    def uncork(self) -> None:
        """Send the bytes held back since `cork`."""
        for connection in self._connections:
            connection.uncork()


def _again(endpoint: Endpoint, allocate: Allocate) -> Reopen:
    """Return a function that reconnects to reopen a stream that the server did not process."""

    async def reopen(waits: Waits) -> ClientConnection:
        return await opened_connection(waits, endpoint, _AGAIN_SECONDS, allocate)

    return reopen


def _written(stream: Stream, first: bytes | None) -> Stream:
    """Return the stream after writing a message to it."""
    if first is not None:
        stream.write(first)
    return stream


def _tapped(stream: Stream, endpoint: Endpoint) -> Stream:
    """Return the stream, or its recording wrapper if the endpoint has a tap."""
    if endpoint.tap is None:
        return stream
    try:
        return endpoint.tap.recorded(stream, endpoint)
    except BaseException:
        stream.close(0.0)
        raise


def _uses_http2(endpoint: Endpoint) -> bool:
    if endpoint.transport == "auto":
        return is_for_http2(endpoint.address, endpoint.credentials)
    return endpoint.transport == "http2"


def grpc_credentials(endpoint: Endpoint) -> GrpcCredentials | None:
    """Return an endpoint's credentials for grpcio, or raise SpecError if it cannot use them."""
    if isinstance(endpoint.credentials, Tls):
        return endpoint.credentials.channel_credentials()
    if isinstance(endpoint.credentials, ssl.SSLContext):
        raise SpecError(
            f"credentials for {endpoint.address}: got an ssl.SSLContext, but this address requires "
            "transport='grpc'; pass a Tls or grpc.ssl_channel_credentials(...)"
        )
    return endpoint.credentials
