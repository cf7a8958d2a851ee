"""Opening a client's connection, with attempts repeated until the server accepts."""

from __future__ import annotations

import time

from dm_env_rpc_client.errors import ConnectionLostError
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.http2.client.connection import ClientConnection
from dm_env_rpc_client.transports.http2.client.keepalive import LOOK_SECONDS
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientHalf
from dm_env_rpc_client.transports.http2.protocol.headers import request_headers
from dm_env_rpc_client.transports.net.addresses import Target
from dm_env_rpc_client.transports.net.attempts import RETRY_SECONDS, Attempts, HandshakeError
from dm_env_rpc_client.transports.net.reaching import explain_end, reach
from dm_env_rpc_client.transports.net.sockets import BLOCKING, Waits, run, tls_context
from dm_env_rpc_client.transports.streams import Allocate


async def opened_connection(
    waits: Waits,
    endpoint: Endpoint,
    timeout: float | None,
    allocate: Allocate,
    first: bytes | None = None,
) -> ClientConnection:
    """Open a connection.

    Args:
      waits: how to wait.
      endpoint: the server; its address is `host:port`, `unix:path` or `unix-abstract:name`, its
        credentials are a Tls or an ssl.SSLContext, or None (or gRPC's local credentials) for
        plaintext.
      timeout: seconds until the server must have accepted the connection; None for no limit.
      allocate: gives the memory for large messages.
      first: a message for the first stream, which is sent with the client's greeting: HTTP/2 does
        not ask for the server's (RFC 9113, section 3.4).

    Raises:
      SpecError: an address or credentials that this transport does not support.
      ConnectionLostError: no connection within `timeout`; the text gives the reason.
      DeadlineExceededError: nothing at all came back within `timeout`.
      ProtocolError: something else than an HTTP/2 server listens there.
    """
    target = Target.parse(endpoint.address)
    tls = tls_context(endpoint.credentials, endpoint.address)
    request = request_headers(target, tls is not None, endpoint.metadata)
    attempts = Attempts(endpoint.address, timeout)
    while True:
        try:
            connected = await reach(
                waits, target, tls, attempts.deadline, endpoint.stays_on_loopback
            )
            half = ClientHalf(endpoint.address, endpoint.max_message_bytes, allocate)
            connection = ClientConnection(connected, half, request)
            try:
                await _until_accepted(waits, connection, attempts.deadline, first)
                return connection
            except ConnectionLostError as error:
                if tls is not None:
                    raise HandshakeError(connection.alert or error) from None
                raise await explain_end(waits, error, attempts) from None
        except OSError as error:
            attempts.failed(error)
        await waits.pause(RETRY_SECONDS)


def open_connection(
    endpoint: Endpoint, timeout: float | None, allocate: Allocate, first: bytes | None = None
) -> ClientConnection:
    """`opened_connection`, for which this thread waits."""
    return run(opened_connection(BLOCKING, endpoint, timeout, allocate, first))


async def _until_accepted(
    waits: Waits, connection: ClientConnection, deadline: float | None, first: bytes | None
) -> None:
    """Return when the server has accepted the connection; otherwise close the socket.

    Args:
      waits: how to wait.
      connection: the new connection.
      deadline: on the monotonic clock; None for no limit.
      first: a message that the first stream sends with the greeting; None for none.

    Raises:
      TimeoutError: not by the deadline.
      DmEnvRpcClientError: another one than an HTTP/2 server, or none any more.
    """
    try:
        connection.greet(first)
        has_more = False
        while True:
            if connection.is_accepted():
                break
            has_more = await _receive_some(waits, connection, deadline, has_more)
    except BaseException:
        connection.drop()
        raise


async def _receive_some(
    waits: Waits, connection: ClientConnection, deadline: float | None, has_more: bool
) -> bool:
    """Wait for the socket, unless TLS has buffered bytes; returns like `receive_ready`."""
    seconds = LOOK_SECONDS
    if deadline is not None:
        seconds = min(seconds, deadline - time.monotonic())
    if seconds <= 0:
        raise TimeoutError
    if has_more or await waits.ready(connection, connection.events(), seconds):
        has_more = connection.receive_ready()
        connection.uncork()
    elif seconds == LOOK_SECONDS:
        connection.judge()
    return has_more
