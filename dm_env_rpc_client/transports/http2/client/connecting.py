"""Opens a client's connections: again and again until the server has accepted one."""

from __future__ import annotations

import time

from dm_env_rpc_client.errors import ConnectionLostError
from dm_env_rpc_client.transports.addresses import Target
from dm_env_rpc_client.transports.endpoint import RETRY_SECONDS, Endpoint
from dm_env_rpc_client.transports.http2.client.attempts import Attempts, HandshakeError
from dm_env_rpc_client.transports.http2.client.connection import ClientConnection
from dm_env_rpc_client.transports.http2.client.tls_probe import explain_end
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientHalf
from dm_env_rpc_client.transports.http2.protocol.headers import request_headers
from dm_env_rpc_client.transports.http2.sockets import connect_socket, tls_context
from dm_env_rpc_client.transports.streams import Allocate


def open_connection(
    endpoint: Endpoint,
    timeout: float | None,
    allocate: Allocate,
    first: bytes | None = None,
) -> ClientConnection:
    """Opens a connection.

    Args:
      endpoint: the server; its address is `host:port`, `unix:path` or `unix-abstract:name`, its
        credentials are a Tls or an ssl.SSLContext, or None (or gRPC's local credentials) for
        plaintext.
      timeout: seconds until the server must have accepted the connection; None for no limit.
      allocate: gives the memory for large messages.
      first: a message for the first stream, which is sent with the client's greeting: HTTP/2 does
        not ask for the server's (RFC 9113, section 3.4).

    Raises:
      SpecError: an address or credentials that this transport does not support.
      ConnectionLostError: there was no connection within `timeout`; says why.
      DeadlineExceededError: nothing at all came back within `timeout`.
      ProtocolError: something else than an HTTP/2 server listens there.
    """
    target = Target.parse(endpoint.address)
    tls = tls_context(endpoint.credentials, endpoint.address)
    request = request_headers(target, tls is not None, endpoint.metadata)
    attempts = Attempts(endpoint.address, timeout)
    while True:
        try:
            connection = ClientConnection(
                connect_socket(target, tls, attempts.deadline, endpoint.stays_on_loopback),
                ClientHalf(endpoint.address, endpoint.max_message_bytes, allocate),
                request,
            )
            try:
                connection.wait_until_accepted(attempts.deadline, first)
                return connection
            except ConnectionLostError as error:
                if tls is not None:
                    raise HandshakeError(connection.alert or error) from None
                raise explain_end(error, attempts) from None
        except OSError as error:
            attempts.failed(error)
        time.sleep(RETRY_SECONDS)
