"""gRPC channels to dm_env_rpc servers: which may be opened, how, and what went wrong.

Plaintext is for this machine only: another address takes TLS credentials or an explicit
`insecure=True`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc
import grpc.aio

from dm_env_rpc_client.addresses import is_loopback
from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    ProtocolError,
    SpecError,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "PROCESS",
    "Metadata",
    "check_metadata",
    "is_local_credentials",
    "local_credentials",
    "open_aio_channel",
    "open_channel",
    "stream_error",
]

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

PROCESS = "/dm_env_rpc.v1.Environment/Process"
"""The one method of the service Environment."""

_PING = "/grpc.health.v1.Health/Check"
"""Every gRPC server answers this, if only that it has no such method. Watching the state of
a channel instead takes a thread, which makes closing the channel wait for 0.2 s."""

MAX_MESSAGE_BYTES = 128 << 20
"""The largest answer taken, unpacked if it was compressed."""

_PROBE_SECONDS = 0.25
_RETRY_SECONDS = 0.05
_KEEPALIVE_TIME_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000


_METADATA_KEY = re.compile(r"[0-9a-z_.-]+")
_METADATA_TEXT = re.compile(r"[\x20-\x7e]*")


def check_metadata(metadata: Metadata | None) -> tuple[tuple[str, str | bytes], ...] | None:
    """Returns metadata as gRPC takes it, which itself only logs what it refuses.

    Raises:
      SpecError: a key or a value has characters that HTTP/2 headers cannot have.
    """
    if metadata is None:
        return None
    for key, value in metadata:
        if not isinstance(key, str) or not _METADATA_KEY.fullmatch(key):
            raise SpecError(
                f"metadata key {key!r}: keys are lower-case letters, digits and '_', '-', '.'"
            )
        is_binary = key.endswith("-bin")
        if is_binary != isinstance(value, bytes):
            expected = "bytes" if is_binary else "text"
            raise SpecError(f"metadata {key!r}: expected {expected}, got {type(value).__name__}")
        if isinstance(value, str) and not _METADATA_TEXT.fullmatch(value):
            raise SpecError(f"metadata {key!r}: expected printable ASCII, got {value!r}")
    return tuple((key, value) for key, value in metadata)


def is_local_credentials(credentials: grpc.ChannelCredentials) -> bool:
    """Whether these are gRPC's local credentials, which are plaintext on TCP."""
    inner = getattr(credentials, "_credentials", None)
    return "Local" in type(inner).__name__


def local_credentials(address: str) -> grpc.ChannelCredentials:
    """Returns gRPC's credentials for a server on this machine."""
    unix = address.startswith("unix")
    kind = grpc.LocalConnectionType.UDS if unix else grpc.LocalConnectionType.LOCAL_TCP
    return grpc.local_channel_credentials(kind)


def open_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    insecure: bool,
    timeout: float | None,
) -> grpc.Channel:
    """Opens a channel and waits until it is connected.

    Args:
      address: `host:port`, `unix:path` or another gRPC target.
      credentials: None for plaintext.
      insecure: whether plaintext may leave this machine.
      timeout: seconds to wait for the server; None for ever.

    Raises:
      SpecError: plaintext is not allowed for the address, or it is no address.
      ConnectionLostError: there was no connection within `timeout`; says why.
      DeadlineExceededError: nothing at all came back within `timeout`.
    """
    _check_allowed(address, credentials, insecure)
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
                    raise _not_connected(address, timeout, call.code(), call.details()) from None
                if answer.code() is grpc.StatusCode.UNAVAILABLE:
                    time.sleep(_RETRY_SECONDS)  # It went away in between; it may come back.
                    continue
            return channel
    except BaseException:
        channel.close()
        raise


async def open_aio_channel(
    address: str,
    credentials: grpc.ChannelCredentials | None,
    insecure: bool,
    timeout: float | None,
) -> grpc.aio.Channel:
    """`open_channel` for an event loop."""
    _check_allowed(address, credentials, insecure)
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
                    raise _not_connected(address, timeout, code, details) from None
                if answer.code() is grpc.StatusCode.UNAVAILABLE:
                    await asyncio.sleep(_RETRY_SECONDS)
                    continue
            return channel
    except BaseException:
        await channel.close()
        raise


def stream_error(address: str, code: grpc.StatusCode, details: str | None) -> DmEnvRpcClientError:
    """Returns the error for a stream that ended with a gRPC status."""
    text = details or "no details"
    if code is grpc.StatusCode.OK:
        return ConnectionLostError(f"the server at {address} ended the stream", code.name)
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return ProtocolError(
            f"what listens at {address} is no dm_env_rpc server, it has no {PROCESS} ({text})"
        )
    return ConnectionLostError(f"stream to {address} ended with {code.name}: {text}", code.name)


def _check_allowed(
    address: str, credentials: grpc.ChannelCredentials | None, insecure: bool
) -> None:
    if not address or not isinstance(address, str):
        raise SpecError(f"a server address looks like 'localhost:50051', got {address!r}")
    if is_loopback(address) or insecure:
        return
    if credentials is None:
        raise SpecError(
            f"{address} is not on this machine and no credentials are given; pass credentials="
            "grpc.ssl_channel_credentials(), or insecure=True to send in the clear"
        )
    if is_local_credentials(credentials):
        raise SpecError(
            f"local credentials are for this machine, but {address} is not; pass credentials="
            "grpc.ssl_channel_credentials()"
        )


def _options(address: str) -> list[tuple[str, Any]]:
    options: list[tuple[str, Any]] = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        # A socket per connection: a shared one would share its backoff and its window.
        ("grpc.use_local_subchannel_pool", 1),
        # A server that is just starting is found soon.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 200),
        # A frozen peer is noticed within 15 s. The default of the last, 60 s, would make it
        # 70. gRPC sends at most two such pings in a row, so that a long step does not look
        # like a flood to the server.
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


def _not_connected(
    address: str, timeout: float | None, code: grpc.StatusCode, details: str | None
) -> DmEnvRpcClientError:
    prefix = f"could not connect to {address} within {timeout or 0:g} s"
    if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return DeadlineExceededError(
            f"{prefix}: nothing there answers; is that the address of a dm_env_rpc server?"
        )
    hint = "check that the server runs and listens there"
    if "refused" not in (details or "").lower():
        hint = "check the address and that both ends use matching credentials"
    return ConnectionLostError(f"{prefix}: {details or code.name}; {hint}", code.name)
