"""Which transport carries a stream, and opening it."""

from __future__ import annotations

import ssl
from typing import Literal, get_args

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports import conditions
from dm_env_rpc_client.transports.grpc import channel as grpc_channel
from dm_env_rpc_client.transports.grpc.async_stream import GrpcAioStream
from dm_env_rpc_client.transports.grpc.stream import GrpcStream
from dm_env_rpc_client.transports.http2.async_stream import open_http2_aio_stream
from dm_env_rpc_client.transports.http2.stream import Http2Stream
from dm_env_rpc_client.transports.http2.targets import can_reach
from dm_env_rpc_client.transports.streams import Allocate, AsyncStream, Stream, plain_memory

__all__ = ["Transport", "open_aio_stream", "open_stream"]

Transport = Literal["auto", "grpc", "http2"]


def open_stream(
    address: str,
    timeout: float | None,
    credentials: conditions.Credentials | None,
    insecure: bool,
    metadata: conditions.Metadata | None,
    transport: Transport,
    allocate: Allocate = plain_memory,
) -> Stream:
    """Opens a stream for threads; arguments and errors are those of `connect`.

    `allocate` gives the memory for large messages.
    """
    if _uses_http2(address, credentials, insecure, transport):
        return Http2Stream(address, credentials, metadata, timeout, allocate)
    opened = grpc_channel.open_channel(address, _for_grpcio(credentials, address), timeout)
    try:
        return GrpcStream(opened, metadata, address, owns_channel=True)
    except BaseException:
        opened.close()
        raise


async def open_aio_stream(
    address: str,
    timeout: float | None,
    credentials: conditions.Credentials | None,
    insecure: bool,
    metadata: conditions.Metadata | None,
    transport: Transport,
    allocate: Allocate = plain_memory,
) -> AsyncStream:
    """Opens a stream for an event loop; arguments and errors are those of `connect`."""
    if _uses_http2(address, credentials, insecure, transport):
        return await open_http2_aio_stream(address, credentials, metadata, timeout, allocate)
    opened = await grpc_channel.open_aio_channel(
        address, _for_grpcio(credentials, address), timeout
    )
    try:
        return GrpcAioStream(opened, metadata, address, owns_channel=True)
    except BaseException:
        await opened.close()
        raise


def _uses_http2(
    address: str,
    credentials: conditions.Credentials | None,
    insecure: bool,
    transport: Transport,
) -> bool:
    if transport not in get_args(Transport):
        names = ", ".join(map(repr, get_args(Transport)))
        raise SpecError(f"no transport {transport!r}; choose one of {names}")
    conditions.check_allowed(address, credentials, insecure)
    if transport == "auto":
        return can_reach(address, credentials)
    return transport == "http2"


def _for_grpcio(
    credentials: conditions.Credentials | None, address: str
) -> conditions.GrpcCredentials | None:
    if isinstance(credentials, ssl.SSLContext):
        raise SpecError(
            f"credentials for {address}: grpcio, which carries streams to such an address, takes "
            "grpc.ssl_channel_credentials(...), got an ssl.SSLContext"
        )
    return credentials
