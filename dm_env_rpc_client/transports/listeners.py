"""Functions that choose a server's transport and open its listener."""

from __future__ import annotations

import select
import ssl

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.polling import why_no_epoll
from dm_env_rpc_client.transports.endpoint import Transport, check_transport
from dm_env_rpc_client.transports.net.credentials import ServerCredentials, Tls
from dm_env_rpc_client.transports.net.sockets import server_tls_context
from dm_env_rpc_client.transports.server_streams import Listener, ListenerOptions


def open_listener(
    options: ListenerOptions,
    address: str,
    credentials: ServerCredentials | None,
    transport: Transport,
) -> Listener:
    """Open a listener.

    Args:
      options: the streams to serve, and their limits.
      address: `host:port` or `unix:path`, or any listening address that grpcio supports.
      credentials: TLS credentials; None for plaintext.
      transport: "http2", "grpc", or "auto" for http2 where possible.

    Raises:
      SpecError: the transport is unknown, or does not support the credentials or this system.
      OSError: the address is in use or is not an address of this machine.
    """
    check_transport(transport)
    reason = _why_not_http2(address, credentials)
    if transport == "http2" and reason:
        raise SpecError(f"a server with transport 'http2' {reason}; use transport='grpc'")
    if transport == "grpc" or reason:
        from dm_env_rpc_client.transports.grpc.server import GrpcListener

        if isinstance(credentials, ssl.SSLContext):
            raise SpecError(
                f"credentials for {address}: the transport 'grpc' accepts a Tls or "
                "grpc.ssl_server_credentials(...), got an ssl.SSLContext"
            )
        return GrpcListener(options, address, credentials)
    from dm_env_rpc_client.transports.http2.server.listener import Http2Listener

    assert credentials is None or isinstance(credentials, ssl.SSLContext | Tls)
    return Http2Listener(options, address, server_tls_context(credentials, address))


def _why_not_http2(address: str, credentials: ServerCredentials | None) -> str:
    """Return why a server cannot use the transport "http2", or an empty string if it can."""
    if not hasattr(select, "epoll"):
        return f"takes {why_no_epoll()}"
    if not (credentials is None or isinstance(credentials, ssl.SSLContext | Tls)):
        return f"accepts a Tls or an ssl.SSLContext, got {type(credentials).__name__}"
    scheme, _, rest = address.partition(":")
    if scheme in ("unix-abstract", "ipv4", "ipv6", "dns", "vsock") and not rest.isdigit():
        return f"takes host:port or unix:path, got {address!r}"
    return ""
