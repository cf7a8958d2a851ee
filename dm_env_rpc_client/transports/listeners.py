"""Chooses the transport of a server and opens its listener."""

from __future__ import annotations

import select
import ssl

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.credentials import ServerCredentials
from dm_env_rpc_client.transports.endpoint import Transport, check_transport
from dm_env_rpc_client.transports.server_streams import Listener, OpenStream, Refused
from dm_env_rpc_client.transports.streams import Allocate, plain_memory
from dm_env_rpc_client.transports.tls import Tls

__all__ = ["open_listener"]


def open_listener(
    open_stream: OpenStream,
    address: str,
    credentials: ServerCredentials | None,
    transport: Transport,
    max_streams: int,
    max_message_bytes: int,
    allocate: Allocate = plain_memory,
    refused: Refused = lambda *_: None,
) -> Listener:
    """Opens a listener.

    Args:
      open_stream: makes the server's end of each stream.
      address: `host:port` or `unix:path`, or for grpcio any address that it listens on.
      credentials: TLS credentials; None for plaintext.
      transport: "http2", "grpc", or "auto" for http2 where that is possible.
      max_streams: streams beyond this are refused with RESOURCE_EXHAUSTED.
      max_message_bytes: the size of the largest request.
      allocate: gives the memory for large requests.
      refused: told of each stream beyond `max_streams`.

    Raises:
      SpecError: the transport is unknown, or it does not take the credentials or this system.
      OSError: the address is taken, or does not belong to this machine.
    """
    check_transport(transport)
    reason = _why_not_http2(address, credentials)
    if transport == "http2" and reason:
        raise SpecError(f"transport 'http2' of a server {reason}; use transport='grpc'")
    if transport == "grpc" or reason:
        from dm_env_rpc_client.transports.grpc.server import GrpcListener

        if isinstance(credentials, ssl.SSLContext):
            raise SpecError(
                f"credentials for {address}: the transport 'grpc' takes a Tls or "
                "grpc.ssl_server_credentials(...), got an ssl.SSLContext"
            )
        return GrpcListener(
            open_stream, address, credentials, max_streams, max_message_bytes, refused
        )
    from dm_env_rpc_client.transports.http2.listener import Http2Listener

    if isinstance(credentials, Tls):
        credentials = credentials.server_context()
    assert credentials is None or isinstance(credentials, ssl.SSLContext)
    if credentials is not None:
        if credentials.protocol is ssl.PROTOCOL_TLS_CLIENT:
            raise SpecError(
                f"credentials for {address}: got an ssl.SSLContext for clients; a server takes "
                "ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) with a certificate, or a Tls"
            )
        credentials.set_alpn_protocols(["h2"])
    return Http2Listener(
        open_stream, address, credentials, max_streams, max_message_bytes, allocate, refused
    )


def _why_not_http2(address: str, credentials: ServerCredentials | None) -> str:
    """Returns why a server cannot have the transport "http2"; "" if it can."""
    if not hasattr(select, "epoll"):
        return "takes Linux"
    if not (credentials is None or isinstance(credentials, ssl.SSLContext | Tls)):
        return f"takes a Tls or an ssl.SSLContext, got {type(credentials).__name__}"
    scheme, _, rest = address.partition(":")
    if scheme in ("unix-abstract", "ipv4", "ipv6", "dns", "vsock") and not rest.isdigit():
        return f"takes host:port or unix:path, got {address!r}"
    return ""
