"""grpcio's channels to dm_env_rpc servers."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import grpc.aio

from dm_env_rpc_client.transports import conditions
from dm_env_rpc_client.transports.addresses import is_loopback
from dm_env_rpc_client.transports.status import PROCESS

__all__ = ["local_credentials", "open_aio_channel", "open_channel"]

_PING = "/grpc.health.v1.Health/Check"
"""Every gRPC server answers this, if only that it has no such method. Watching the state of
a channel instead takes a thread, which makes closing the channel wait for 0.2 s."""

_PROBE_SECONDS = 0.25
_KEEPALIVE_TIME_MS = int(conditions.KEEPALIVE_SECONDS * 1000)
_KEEPALIVE_TIMEOUT_MS = int(conditions.KEEPALIVE_TIMEOUT_SECONDS * 1000)


def local_credentials(address: str) -> grpc.ChannelCredentials:
    """Returns gRPC's credentials for a server on this machine."""
    unix = address.startswith("unix")
    kind = grpc.LocalConnectionType.UDS if unix else grpc.LocalConnectionType.LOCAL_TCP
    return grpc.local_channel_credentials(kind)


def open_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    timeout: float | None,
) -> grpc.Channel:
    """Opens a channel and waits until it is connected.

    Args:
      address: `host:port`, `unix:path` or another gRPC target.
      credentials: None for plaintext.
      timeout: seconds to wait for the server; None for ever.

    Raises:
      ConnectionLostError: there was no connection within `timeout`; says why.
      DeadlineExceededError: nothing at all came back within `timeout`.
    """
    options = _options(address)
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
                    # A call that does not wait for the connection gets the cause.
                    call: Any = channel.stream_stream(PROCESS)(iter(()), timeout=_PROBE_SECONDS)
                    raise conditions.not_connected(
                        address, timeout, call.code().name, call.details()
                    ) from None
                if answer.code() is grpc.StatusCode.UNAVAILABLE:
                    time.sleep(
                        conditions.RETRY_SECONDS
                    )  # It went away in between; it may come back.
                    continue
            return channel
    except BaseException:
        channel.close()
        raise


async def open_aio_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    timeout: float | None,
) -> grpc.aio.Channel:
    """`open_channel` for an event loop."""
    options = _options(address)
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
                    raise conditions.not_connected(address, timeout, code.name, details) from None
                if answer.code() is grpc.StatusCode.UNAVAILABLE:
                    await asyncio.sleep(conditions.RETRY_SECONDS)
                    continue
            return channel
    except BaseException:
        await channel.close()
        raise


def _options(address: str) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", conditions.MAX_MESSAGE_BYTES),
        # A socket per connection: a shared one would share its backoff and its window.
        ("grpc.use_local_subchannel_pool", 1),
        # A server that is just starting is found soon.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        # The default of the last, 60 s, would make the 15 s until a frozen peer is noticed 70.
        ("grpc.keepalive_time_ms", _KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
        ("grpc.http2.ping_timeout_ms", _KEEPALIVE_TIMEOUT_MS),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    return options


def _deadline(timeout: float | None) -> float | None:
    """When waiting for a server ends, with time set aside to find out the cause."""
    if timeout is None:
        return None
    return time.monotonic() + max(timeout - _PROBE_SECONDS, timeout / 2)


def _remaining(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())
