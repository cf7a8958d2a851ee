"""What every transport holds to: where plaintext may go, which metadata there is, limits.

Plaintext is for this machine only: another address takes TLS credentials or an explicit
`insecure=True`.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence
from typing import TypeAlias

import grpc

from dm_env_rpc_client.errors import (
    ConnectionLostError,
    DeadlineExceededError,
    DmEnvRpcClientError,
    SpecError,
)
from dm_env_rpc_client.transports.addresses import is_loopback

__all__ = [
    "KEEPALIVE_SECONDS",
    "KEEPALIVE_TIMEOUT_SECONDS",
    "MAX_MESSAGE_BYTES",
    "RETRY_SECONDS",
    "Credentials",
    "GrpcCredentials",
    "Metadata",
    "check_allowed",
    "check_metadata",
    "is_local_credentials",
    "not_connected",
]

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
GrpcCredentials: TypeAlias = grpc.ChannelCredentials
Credentials: TypeAlias = GrpcCredentials | ssl.SSLContext

MAX_MESSAGE_BYTES = 128 << 20
"""The largest answer taken, unpacked if it was compressed."""

# A frozen peer is noticed within 15 s. Servers may take offence at pings that come too often,
# so at most two are sent in a row while nothing is received: a long step is no flood.
KEEPALIVE_SECONDS = 10.0
KEEPALIVE_TIMEOUT_SECONDS = 5.0

RETRY_SECONDS = 0.05
"""Between two attempts to reach a server that is not there yet."""

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


def is_local_credentials(credentials: Credentials | None) -> bool:
    """Whether these are gRPC's local credentials, which are plaintext on TCP."""
    inner = getattr(credentials, "_credentials", None)
    return "Local" in type(inner).__name__


def check_allowed(address: str, credentials: Credentials | None, insecure: bool) -> None:
    """Raises SpecError where a server may not be reached like this."""
    if not address or not isinstance(address, str):
        raise SpecError(f"a server address looks like 'localhost:50051', got {address!r}")
    if is_loopback(address) or insecure:
        return
    if credentials is None:
        raise SpecError(
            f"{address} is not on this machine and no credentials are given; pass credentials="
            "ssl.create_default_context(), or insecure=True to send in the clear"
        )
    if is_local_credentials(credentials):
        raise SpecError(
            f"local credentials are for this machine, but {address} is not; pass credentials="
            "ssl.create_default_context()"
        )


def not_connected(
    address: str, timeout: float | None, code: str, details: str | None
) -> DmEnvRpcClientError:
    """Returns the error for a server that could not be reached in time."""
    prefix = f"could not connect to {address} within {timeout or 0:g} s"
    if code in ("DEADLINE_EXCEEDED", "CANCELLED"):
        return DeadlineExceededError(
            f"{prefix}: nothing there answers; is that the address of a dm_env_rpc server?"
        )
    hint = "check that the server runs and listens there"
    if "refused" not in (details or "").lower():
        hint = "check the address and that both ends use matching credentials"
    return ConnectionLostError(f"{prefix}: {details or code}; {hint}", code)
