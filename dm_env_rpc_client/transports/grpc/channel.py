"""Open grpcio channels to dm_env_rpc servers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any

import grpc
import grpc.aio

from dm_env_rpc_client.errors import ConnectionLostError
from dm_env_rpc_client.system.waiting import release, uninterrupted
from dm_env_rpc_client.transports.grpc.forked import check_works
from dm_env_rpc_client.transports.net import status
from dm_env_rpc_client.transports.net.addresses import check_address, is_loopback
from dm_env_rpc_client.transports.net.attempts import (
    NAMELESS_ALERT,
    RETRY_SECONDS,
    Attempts,
    HandshakeError,
)
from dm_env_rpc_client.transports.net.credentials import is_local_credentials
from dm_env_rpc_client.transports.net.keepalive import PROBE_SECONDS
from dm_env_rpc_client.transports.net.reaching import explain_end
from dm_env_rpc_client.transports.net.sockets import (
    BLOCKING,
    IN_LOOP,
    UNREACHABLE_SECONDS,
    Waits,
    run,
)
from dm_env_rpc_client.transports.net.status import NO_HTTP2
from dm_env_rpc_client.transports.services import CHECK

_PING = CHECK
"""The method called to probe a server. Every gRPC server answers the call, at least with
UNIMPLEMENTED. Watching the channel's state instead would require a thread, which would delay
closing the channel by 0.2 s."""

_LEAST_PROBE_SECONDS = 0.25
"""The time, in seconds, that grpcio needs on a busy machine to report why it cannot connect."""

_NOT_CONNECTED = "failed to connect"
"""The beginning of grpcio's error message if no connection was made. Any other message comes from
a server or a proxy."""

_FINAL = re.compile(r"handshake failed|verification|verify|peer certificate", re.IGNORECASE)
_BROKEN_OFF = re.compile(r"closed|reset", re.IGNORECASE)
"""Words in grpcio's error messages that indicate why a connection failed. Nothing else in a status
indicates the cause."""

_NEVER_MS = (1 << 31) - 2
"""The longest interval, in milliseconds, that grpcio does not take for keepalive turned off."""

_ACKNOWLEDGE_MS = int((UNREACHABLE_SECONDS - PROBE_SECONDS) * 1000)
"""The time limit, in milliseconds, for the server's machine to acknowledge sent bytes.

grpcio sets it as the socket's TCP_USER_TIMEOUT. While an answer is awaited, bytes are sent at least
every `PROBE_SECONDS`.
"""

WINDOW_BYTES = 16 << 20
"""The number of bytes that a server can send before the client reads them."""

_DESCRIPTORS = 16
"""The number of file descriptors that must be free to open a channel, more than the channel needs.
grpcio aborts the process if it runs out of file descriptors."""

MAX_FRAME_BYTES = 1 << 20
"""The largest frame, in bytes, that a server is allowed to send. With frames of 16 KiB, sending a
1 MB message takes 1.3 times as long."""


def local_credentials(address: str) -> grpc.ChannelCredentials:
    """Return gRPC's local credentials, for a server with an `address` on this machine."""
    check_address(address, "a server address")
    unix = address.startswith("unix")
    kind = grpc.LocalConnectionType.UDS if unix else grpc.LocalConnectionType.LOCAL_TCP
    return grpc.local_channel_credentials(kind)


def open_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    timeout: float | None,
    max_message_bytes: int,
) -> grpc.Channel:
    """Open a channel and wait until it is connected.

    Args:
      address: `host:port`, `unix:path` or another gRPC target.
      credentials: gRPC credentials, or None for plaintext.
      timeout: the time to wait for the server, in seconds, or None for no limit.
      max_message_bytes: the maximum size of a received message, in bytes.

    Raises:
      ConnectionLostError: no connection was opened within `timeout`; the text states the reason.
      DeadlineExceededError: nothing was received within `timeout`.
    """
    channel: grpc.Channel = _channel(grpc, address, credentials, max_message_bytes)
    attempts = Attempts(address, timeout)
    try:
        uninterrupted(lambda: run(_until_answered(BLOCKING, channel, credentials, attempts)))
    except RuntimeError as error:
        # A call whose thread could not be started would have `channel.close` wait forever.
        raise ConnectionLostError(
            f"could not connect to {address}: transport 'grpc' needs a thread, but none can be "
            "started (Python 3.12.0 and 3.12.1 cannot start threads while the interpreter exits)"
        ) from error
    except BaseException:
        release(channel.close)  # It also ends an attempt that the interrupt has left running.
        raise
    return channel


async def open_channel_async(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    timeout: float | None,
    max_message_bytes: int,
) -> grpc.aio.Channel:
    """Open a channel for an event loop, as `open_channel` does for threads."""
    channel: grpc.aio.Channel = _channel(grpc.aio, address, credentials, max_message_bytes)
    try:
        await _until_answered(IN_LOOP, channel, credentials, Attempts(address, timeout))
    except BaseException:
        await channel.close()
        raise
    return channel


async def _until_answered(
    waits: Waits, channel: Any, credentials: grpc.ChannelCredentials | None, attempts: Attempts
) -> None:
    """Probe the server until it gives any answer."""
    ping: Any = channel.unary_unary(_PING)
    while True:
        failure = None
        seconds = _probe_seconds(attempts)
        try:
            answer = ping(b"", timeout=seconds)
            if isinstance(answer, Awaitable):  # Of grpc.aio.
                # An error that a signal's handler raises in a callback of grpcio loses the answer.
                await asyncio.wait_for(answer, seconds and seconds + _LEAST_PROBE_SECONDS)
        except grpc.RpcError as error:
            failure = await _failure(waits, error, credentials, attempts)
        except asyncio.TimeoutError:
            failure = TimeoutError()
        if failure is None:
            break
        attempts.failed(failure)
        await waits.pause(RETRY_SECONDS)


def _channel(
    module: Any,
    address: str,
    credentials: grpc.ChannelCredentials | None,
    max_message_bytes: int,
) -> Any:
    """Return a `grpc` or `grpc.aio` channel, or raise ConnectionLostError."""
    check_works(f"cannot connect to {address}")
    full = status.used_up(_DESCRIPTORS)
    if full:
        raise ConnectionLostError(f"could not connect to {address}: {full}", "UNAVAILABLE")
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", max_message_bytes),
        # A socket per connection: a shared one would share its backoff and its window.
        ("grpc.use_local_subchannel_pool", 1),
        # Short backoffs, so that a server that is just starting is found soon.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        # No PINGs (see `probes.py`); but without keepalive there is no TCP_USER_TIMEOUT.
        ("grpc.keepalive_time_ms", _NEVER_MS),
        ("grpc.keepalive_timeout_ms", _ACKNOWLEDGE_MS),
        # The PINGs by which grpcio measures the bandwidth go out with almost any request, and have
        # a timeout: a server that stands still for longer would be lost.
        ("grpc.http2.bdp_probe", 0),
        # Those pings would raise both; without them they are 64 KiB and 16 KiB.
        ("grpc.http2.lookahead_bytes", WINDOW_BYTES),
        ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
    ]
    if is_loopback(address):
        options.append(("grpc.enable_http_proxy", 0))
    if credentials is None:
        return module.insecure_channel(address, options)
    return module.secure_channel(address, credentials, options)


def _probe_seconds(attempts: Attempts) -> float | None:
    remaining = attempts.remaining
    return None if remaining is None else max(remaining, _LEAST_PROBE_SECONDS)


async def _failure(
    waits: Waits,
    answer: grpc.RpcError,
    credentials: grpc.ChannelCredentials | None,
    attempts: Attempts,
) -> OSError | None:
    """Return why a probe was not answered, or None if the server answered it."""
    details = answer.details() or ""
    if answer.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimeoutError()
    if answer.code() is not grpc.StatusCode.UNAVAILABLE:
        return None
    failure = ConnectionError(details)
    if not details.startswith(_NOT_CONNECTED):
        return failure
    if credentials is None or is_local_credentials(credentials):
        if not _BROKEN_OFF.search(details):
            return failure
        return await explain_end(waits, failure, attempts)
    if "ALPN" in details:
        return HandshakeError(NO_HTTP2)
    if "Unwrap failed" in details:
        return HandshakeError(NAMELESS_ALERT)
    if _FINAL.search(details):
        return HandshakeError(details)
    if _BROKEN_OFF.search(details):
        return HandshakeError(ConnectionResetError())
    return failure
