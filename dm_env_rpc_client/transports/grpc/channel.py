"""grpcio's channels to dm_env_rpc servers."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import grpc
import grpc.aio

from dm_env_rpc_client.transports.addresses import is_loopback
from dm_env_rpc_client.transports.credentials import is_local_credentials
from dm_env_rpc_client.transports.endpoint import RETRY_SECONDS
from dm_env_rpc_client.transports.http2.client.attempts import NO_HTTP2, Attempts, HandshakeError
from dm_env_rpc_client.transports.http2.client.keepalive import (
    KEEPALIVE_SECONDS,
    KEEPALIVE_TIMEOUT_SECONDS,
)
from dm_env_rpc_client.transports.http2.client.tls_probe import explain_end

_PING = "/grpc.health.v1.Health/Check"
"""Every gRPC server answers this, at least with UNIMPLEMENTED. The alternative, to watch the
state of the channel, takes a thread that makes closing the channel wait for 0.2 s."""

_LEAST_PROBE_SECONDS = 0.25
"""What grpcio needs, on a busy machine, to tell why there is no connection."""

_NOT_CONNECTED = "failed to connect"
"""How grpcio begins if there is no connection. Other texts are what a server or a proxy said."""

_FINAL = re.compile(r"handshake failed|verification|verify|peer certificate", re.IGNORECASE)
_BROKEN_OFF = re.compile(r"closed|reset", re.IGNORECASE)
"""What these texts contain; a status has no other trace of the cause."""

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
    attempts = Attempts(address, timeout)
    is_tls = credentials is not None and not is_local_credentials(credentials)
    try:
        while True:
            failure = None
            try:
                ping(b"", timeout=_probe_seconds(attempts))
            except grpc.RpcError as answer:
                failure = _failure(answer, is_tls)
            if failure is None:
                return channel
            if _is_broken_off(failure, is_tls):
                failure = explain_end(failure, address, attempts)
            attempts.failed(failure)
            time.sleep(RETRY_SECONDS)
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
    attempts = Attempts(address, timeout)
    is_tls = credentials is not None and not is_local_credentials(credentials)
    try:
        while True:
            failure = None
            try:
                await ping(b"", timeout=_probe_seconds(attempts))
            except grpc.RpcError as answer:
                failure = _failure(answer, is_tls)
            if failure is None:
                return channel
            if _is_broken_off(failure, is_tls):
                failure = await asyncio.to_thread(explain_end, failure, address, attempts)
            attempts.failed(failure)
            await asyncio.sleep(RETRY_SECONDS)
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


def _probe_seconds(attempts: Attempts) -> float | None:
    remaining = attempts.remaining
    return None if remaining is None else max(remaining, _LEAST_PROBE_SECONDS)


def _failure(answer: grpc.RpcError, is_tls: bool) -> OSError | None:
    """Returns why a probe was not answered; None if the server has answered it."""
    details = answer.details() or ""
    if answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimeoutError()
    if answer.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    if is_tls and details.startswith(_NOT_CONNECTED):
        if "ALPN" in details:
            return HandshakeError(NO_HTTP2)
        if "Unwrap failed" in details:
            return HandshakeError("the server ended the TLS connection with an alert")
        if _FINAL.search(details):
            return HandshakeError(details)
        if _BROKEN_OFF.search(details):
            return HandshakeError(ConnectionResetError())
    return ConnectionError(details)


def _is_broken_off(failure: OSError, is_tls: bool) -> bool:
    text = str(failure)
    return not is_tls and text.startswith(_NOT_CONNECTED) and bool(_BROKEN_OFF.search(text))
