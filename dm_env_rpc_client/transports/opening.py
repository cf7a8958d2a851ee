"""Chooses the transport for an endpoint and opens a stream."""

from __future__ import annotations

import ssl

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.credentials import GrpcCredentials
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.grpc.async_stream import AsyncGrpcStream
from dm_env_rpc_client.transports.grpc.channel import open_channel, open_channel_async
from dm_env_rpc_client.transports.grpc.stream import GrpcStream
from dm_env_rpc_client.transports.http2.async_stream import open_http2_stream_async
from dm_env_rpc_client.transports.http2.stream import Http2Stream
from dm_env_rpc_client.transports.http2.target import can_reach
from dm_env_rpc_client.transports.streams import Allocate, AsyncStream, Stream, plain_memory
from dm_env_rpc_client.transports.tls import Tls

__all__ = ["open_stream", "open_stream_async"]


def open_stream(
    endpoint: Endpoint, timeout: float | None, allocate: Allocate = plain_memory
) -> Stream:
    """Opens a stream for threads.

    Args:
      endpoint: the server and how to connect to it.
      timeout: seconds until the stream must be open; None for no limit.
      allocate: gives the memory for large messages.

    Raises:
      As `connect`.
    """
    if _uses_http2(endpoint):
        return Http2Stream(endpoint, timeout, allocate)
    channel = open_channel(
        endpoint.address, _grpc_credentials(endpoint), timeout, endpoint.max_message_bytes
    )
    try:
        return GrpcStream(channel, endpoint.metadata, endpoint.address, owns_channel=True)
    except BaseException:
        channel.close()
        raise


async def open_stream_async(
    endpoint: Endpoint, timeout: float | None, allocate: Allocate = plain_memory
) -> AsyncStream:
    """`open_stream` for an event loop."""
    if _uses_http2(endpoint):
        return await open_http2_stream_async(endpoint, timeout, allocate)
    channel = await open_channel_async(
        endpoint.address, _grpc_credentials(endpoint), timeout, endpoint.max_message_bytes
    )
    try:
        return AsyncGrpcStream(channel, endpoint.metadata, endpoint.address, owns_channel=True)
    except BaseException:
        await channel.close()
        raise


def _uses_http2(endpoint: Endpoint) -> bool:
    if endpoint.transport == "auto":
        return can_reach(endpoint.address, endpoint.credentials)
    return endpoint.transport == "http2"


def _grpc_credentials(endpoint: Endpoint) -> GrpcCredentials | None:
    if isinstance(endpoint.credentials, Tls):
        return endpoint.credentials.channel_credentials()
    if isinstance(endpoint.credentials, ssl.SSLContext):
        raise SpecError(
            f"credentials for {endpoint.address}: the transport 'grpc', which this address "
            "requires, takes a Tls or grpc.ssl_channel_credentials(...), got an ssl.SSLContext"
        )
    return endpoint.credentials
