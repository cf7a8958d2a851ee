"""Credentials, and the policy that plaintext stays on loopback unless the caller allows it."""

from __future__ import annotations

import ssl
from typing import TypeAlias

import grpc

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.addresses import is_loopback
from dm_env_rpc_client.transports.tls import Tls

GrpcCredentials: TypeAlias = grpc.ChannelCredentials
Credentials: TypeAlias = GrpcCredentials | ssl.SSLContext | Tls
ServerCredentials: TypeAlias = grpc.ServerCredentials | ssl.SSLContext | Tls


def check_credentials(credentials: Credentials | None) -> None:
    """Raises SpecError if these are not the credentials of a client, or None for plaintext."""
    _check(credentials, grpc.ChannelCredentials, "grpc.ssl_channel_credentials(...)", "ca={ca!r}")


def check_server_credentials(credentials: object) -> None:
    """Raises SpecError if these are not the credentials of a server, or None for plaintext."""
    files = "cert={ca!r}, key='server.key'"
    _check(credentials, grpc.ServerCredentials, "grpc.ssl_server_credentials(...)", files)


def _check(credentials: object, of_grpc: type, made_by: str, files: str) -> None:
    if credentials is None or isinstance(credentials, Tls | ssl.SSLContext | of_grpc):
        return
    # What is no name of a file may be the contents of one, and secret.
    is_file = isinstance(credentials, str) and credentials.endswith((".crt", ".pem", ".cer"))
    given = arguments.shown(credentials) if is_file or isinstance(credentials, type) else ""
    usual = "server.crt" if "cert" in files else "ca.crt"
    tls = f"Tls({files.format(ca=credentials if is_file else usual)})"
    raise SpecError(
        f"credentials must be a Tls, an ssl.SSLContext or {made_by}, or None for plaintext, got "
        f"{given or type(credentials).__name__}; did you mean credentials={tls}?"
    )


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
