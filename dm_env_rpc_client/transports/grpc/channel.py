"""grpcio's channels to dm_env_rpc servers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio

from dm_env_rpc_client.transports.addresses import is_loopback
from dm_env_rpc_client.transports.endpoint import RETRY_SECONDS
from dm_env_rpc_client.transports.http2.keepalive import (
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
)
from dm_env_rpc_client.transports.status import PROCESS, not_connected

__all__ = ["local_credentials", "open_channel", "open_channel_async"]

_PING = "/grpc.health.v1.Health/Check"
"""Every gRPC server answers this, at least with UNIMPLEMENTED. The alternative, to watch the
state of the channel, takes a thread that makes closing the channel wait for 0.2 s."""

_PROBE_SECONDS = 0.25
_KEEPALIVE_TIME_MS = int(KEEPALIVE_SECONDS * 1000)
_KEEPALIVE_TIMEOUT_MS = int(KEEPALIVE_TIMEOUT_SECONDS * 1000)


def local_credentials(address: str) -> grpc.ChannelCredentials:
    """Returns gRPC's credentials for a server on this machine."""
    unix = address.startswith("unix")
    kind = grpc.LocalConnectionType.UDS if unix else grpc.LocalConnectionType.LOCAL_TCP
    return grpc.local_channel_credentials(kind)


def open_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    timeout: float | None,
    max_message_bytes: int,
) -> grpc.Channel:
    """Opens a channel and waits until it is connected.

    Args:
      address: `host:port`, `unix:path` or another gRPC target.
      credentials: None for plaintext.
      timeout: seconds to wait for the server; None for no limit.
      max_message_bytes: the size of the largest message that is received.

    Raises:
      ConnectionLostError: there was no connection within `timeout`; says why.
      DeadlineExceededError: nothing was received within `timeout`.
    """
    options = _options(address, max_message_bytes)
    if credentials is None:
        channel = grpc.insecure_channel(address, options)
    else:
        channel = grpc.secure_channel(address, credentials, options)
    ping: Any = channel.unary_unary(_PING)
    deadline = _deadline(timeout)
    try:
        while True:
            try:
                ping(b"", timeout=_remaining(deadline), wait_for_ready=True)
            except grpc.RpcError as answer:
                if answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    # A call without wait_for_ready fails with the cause.
                    call: Any = channel.stream_stream(PROCESS)(iter(()), timeout=_PROBE_SECONDS)
                    raise not_connected(
                        address, timeout, call.code().name, call.details()
                    ) from None
                if answer.code() is grpc.StatusCode.UNAVAILABLE:
                    # The connection was lost in between; the server may be back soon.
                    time.sleep(RETRY_SECONDS)
                    continue
            return channel
    except BaseException:
        channel.close()
        raise


async def open_channel_async(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    timeout: float | None,
    max_message_bytes: int,
) -> grpc.aio.Channel:
    """`open_channel` for an event loop."""
    options = _options(address, max_message_bytes)
    if credentials is None:
        channel = grpc.aio.insecure_channel(address, options)
    else:
        channel = grpc.aio.secure_channel(address, credentials, options)
    ping: Any = channel.unary_unary(_PING)
    deadline = _deadline(timeout)
    try:
        while True:
            try:
                await ping(b"", timeout=_remaining(deadline), wait_for_ready=True)
            except grpc.RpcError as answer:
                if answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    call: Any = channel.stream_stream(PROCESS)(timeout=_PROBE_SECONDS)
                    code, details = await call.code(), await call.details()
                    raise not_connected(address, timeout, code.name, details) from None
                if answer.code() is grpc.StatusCode.UNAVAILABLE:
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
            return channel
    except BaseException:
        await channel.close()
        raise


def _options(address: str, max_message_bytes: int) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_message_bytes),
        # A socket per connection: a shared one would share its backoff and its window.
        ("grpc.use_local_subchannel_pool", 1),
        # Short backoffs, so that a server that is just starting is found soon.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        # With the default of the last, 60 s, a frozen peer is detected after 70 s, not 15.
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def _deadline(timeout: float | None) -> float | None:
    """When waiting for a server ends; leaves time to find out the cause."""
    if timeout is None:
        return None
    return time.monotonic() + max(timeout - _PROBE_SECONDS, timeout / 2)


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())
