"""Open a client's connection, retrying until the server accepts it."""

from __future__ import annotations

import time

from dm_env_rpc_client.errors import ConnectionLostError
from dm_env_rpc_client.transports.endpoint import Endpoint
from dm_env_rpc_client.transports.http2.client.connection import ClientConnection
from dm_env_rpc_client.transports.http2.protocol.client_half import ClientHalf
from dm_env_rpc_client.transports.http2.protocol.headers import request_headers
from dm_env_rpc_client.transports.net.addresses import Target
from dm_env_rpc_client.transports.net.attempts import RETRY_SECONDS, Attempts, HandshakeError
from dm_env_rpc_client.transports.net.keepalive import LOOK_SECONDS
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
      waits: the way of waiting, in a thread or in an event loop.
      endpoint: the server. Its address is `host:port`, `unix:path` or `unix-abstract:name`. Its
        credentials are a Tls or an ssl.SSLContext, or None (or gRPC's local credentials) for
        plaintext.
      timeout: the time limit, in seconds, for the server to accept the connection, or None for no
        limit.
      allocate: a function that returns memory for a large message.
      first: a message for the first stream, sent together with the client's greeting. HTTP/2 does
        not require a client to wait for the server's greeting (RFC 9113, section 3.4).

    Raises:
      SpecError: this transport does not support the address or the credentials.
      ConnectionLostError: no connection was opened within `timeout`; the text states the reason.
      DeadlineExceededError: the server sent nothing within `timeout`.
      ProtocolError: the program listening at the address is not an HTTP/2 server.
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
    """Open a connection as `opened_connection` does, but block the calling thread."""
    return run(opened_connection(BLOCKING, endpoint, timeout, allocate, first))


async def _until_accepted(
    waits: Waits, connection: ClientConnection, deadline: float | None, first: bytes | None
) -> None:
    """Wait until the server accepts the connection, and close the socket if it does not.

    Args:
      waits: the way of waiting, in a thread or in an event loop.
      connection: the new connection.
      deadline: the deadline on the monotonic clock, or None for no limit.
      first: a message to send on the first stream with the greeting, or None.

    Raises:
      TimeoutError: the deadline has passed.
      DmEnvRpcClientError: the peer is not an HTTP/2 server, or has closed the connection.
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
    """Receive some bytes, and wait for the socket first unless TLS has buffered bytes.

    Returns:
      Whether TLS still has buffered bytes.
    """
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
