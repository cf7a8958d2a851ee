"""gRPC channels to dm_env_rpc servers: which may be opened, how, and what went wrong.

Plaintext is for this machine only: another address takes TLS credentials or an explicit
`insecure=True`.
"""

from __future__ import annotations

import asyncio
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
    "is_local_credentials",
    "local_credentials",
    "open_aio_channel",
    "open_channel",
    "stream_error",
]

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

PROCESS = "/dm_env_rpc.v1.Environment/Process"
"""The one method of the service Environment."""

MAX_MESSAGE_BYTES = 128 << 20
"""The largest answer taken, unpacked if it was compressed."""

_PROBE_SECONDS = 0.25
_KEEPALIVE_TIME_MS = 10_000
_KEEPALIVE_TIMEOUT_MS = 5_000


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
    ready = grpc.channel_ready_future(channel)
    try:
        ready.result(timeout)
    except grpc.FutureTimeoutError:
        error = _diagnose(channel, address, timeout or 0.0)
        channel.close()
        raise error from None
    except BaseException:
        channel.close()
        raise
    finally:
        ready.cancel()
    return channel


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
    try:
        await asyncio.wait_for(channel.channel_ready(), timeout)
    except asyncio.TimeoutError:
        call: Any = channel.stream_stream(PROCESS)(timeout=_PROBE_SECONDS)
        await call.done_writing()
        code, details = await call.code(), await call.details()
        await channel.close()
        raise _not_connected(address, timeout or 0.0, code, details) from None
    except BaseException:
        await channel.close()
        raise
    return channel


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
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
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


def _diagnose(channel: grpc.Channel, address: str, timeout: float) -> DmEnvRpcClientError:
    """Finds out why a channel did not connect: a call that does not wait gets the cause."""
    call: Any = channel.stream_stream(PROCESS)(iter(()), timeout=_PROBE_SECONDS)
    # Returns at once where the last attempt failed, else when the call times out.
    return _not_connected(address, timeout, call.code(), call.details())


def _not_connected(
    address: str, timeout: float, code: grpc.StatusCode, details: str | None
) -> DmEnvRpcClientError:
    prefix = f"could not connect to {address} within {timeout:g} s"
    if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return DeadlineExceededError(
            f"{prefix}: nothing there answers; is that the address of a dm_env_rpc server?"
        )
    hint = "check that the server runs and listens there"
    if "refused" not in (details or "").lower():
        hint = "check the address and that both ends use matching credentials"
    return ConnectionLostError(f"{prefix}: {details or code.name}; {hint}", code.name)
