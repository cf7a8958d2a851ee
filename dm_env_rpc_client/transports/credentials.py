"""Credentials, and the policy that plaintext stays on loopback unless the caller allows it."""

from __future__ import annotations

import ssl
from typing import TypeAlias

import grpc

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.addresses import is_loopback
from dm_env_rpc_client.transports.tls import Tls

GrpcCredentials: TypeAlias = grpc.ChannelCredentials
Credentials: TypeAlias = GrpcCredentials | ssl.SSLContext | Tls
ServerCredentials: TypeAlias = grpc.ServerCredentials | ssl.SSLContext | Tls


def is_local_credentials(credentials: Credentials | None) -> bool:
    """Whether these are gRPC's local credentials, which are plaintext on TCP."""
    inner = getattr(credentials, "_credentials", None)
    return "Local" in type(inner).__name__


def check_encryption(address: str, credentials: Credentials | None, insecure: bool) -> None:
    """Raises SpecError if the connection would be plaintext to another machine, unasked for."""
    if is_loopback(address) or insecure:
        return
    if credentials is None:
        raise SpecError(
            f"plaintext is allowed to loopback only, and {address} is not a loopback address; "
            "pass credentials=Tls(ca=FILE) or insecure=True"
        )
    if is_local_credentials(credentials):
        raise SpecError(
            f"local credentials are allowed for loopback only, and {address} is not a loopback "
            "address; pass credentials=Tls(ca=FILE)"
        )
