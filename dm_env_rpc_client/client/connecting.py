"""Functions that open connections for threads.

with dm_env_rpc_client.connect("localhost:50051") as connection:
    response = connection.send(dm_env_rpc_pb2.CreateWorldRequest())
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from dm_env_rpc_client.client.connect_options import ConnectOptions
from dm_env_rpc_client.client.connection import Connection
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.pipeline import Pending
from dm_env_rpc_client.protocol.step_codec import answer_memory
from dm_env_rpc_client.system.keywords import check_keywords, takes
from dm_env_rpc_client.transports.endpoint import Endpoint, Transport
from dm_env_rpc_client.transports.grpc.channel import local_credentials
from dm_env_rpc_client.transports.net.credentials import Tls
from dm_env_rpc_client.transports.net.metadata import Metadata
from dm_env_rpc_client.transports.opening import open_stream
from dm_env_rpc_client.transports.streams import Stream

if TYPE_CHECKING:
    import grpc
    from typing_extensions import Unpack

    from dm_env_rpc_client.client.connect_options import ConnectKeywords

__all__ = [
    "Tls",
    "Transport",
    "connect",
    "connect_with",
    "connection_on",
    "create_secure_channel_and_connect",
    "open_again",
    "open_connection",
]

_log = logging.getLogger(__name__)


@takes(ConnectOptions)
def connect(address: str, **connecting: Unpack[ConnectKeywords]) -> Connection:
    """Connect to a dm_env_rpc server.

    If the server does not listen yet, the attempt is repeated until `timeout`.

    Args:
      address: `host:port`, `unix:path` or another gRPC target.
      credentials: TLS credentials: a `Tls` for either transport (`Tls()` trusts the machine's
        certificate authorities); an ssl.SSLContext for the transport "http2", which sets its ALPN
        protocol to h2; or grpcio's credentials for the transport "grpc"; None for plaintext.
      insecure: whether to allow plaintext to an address other than loopback.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.
      token: a secret that the server requires, sent with the call as the metadata
        `authorization: Bearer <token>`. If the server refuses it, the first request fails with
        ConnectionLostError (UNAUTHENTICATED).
      transport: "http2" is this package's own transport over a socket, the fastest; "grpc" is
        grpcio, with all its features; "auto" selects http2 for `host:port` and `unix:path`,
        unless the credentials or a proxy require grpcio.
      timeout: time limit for connecting, in seconds, more than 0; None for no limit.
      request_timeout: time limit for each answer, in seconds, more than 0; None for no limit.
      keepalive_timeout: how long the server may show no sign of life while an answer is awaited,
        in seconds, more than 0; checked about once a second. None for 20 s while the answer to a
        step or an extension is awaited, and 300 s while a world is created, joined, reset, left or
        destroyed; a step that begins a sequence, and each step of a batch, counts as a reset. A
        server shows no sign of life if its process is frozen, or if its environment computes
        without releasing the GIL. An unreachable server machine is detected within 20 s.
      limits: limits for answers, which prevent a small message from expanding to use much memory;
        None for the defaults of `Limits`.
      record: a new file to record all requests and answers to, or a `recording.Recorder`; None
        for no recording. See the guide to recording.

    Returns:
      The Connection; closing it closes its channel.

    Raises:
      ConnectionLostError: no connection was made within `timeout`; the message gives the reason.
      DeadlineExceededError: nothing was received within `timeout`.
      SpecError: an argument has a wrong type or is out of range; plaintext to another machine
        without `insecure`; local credentials for another machine; an unknown transport; invalid
        metadata or an invalid token; a file of `credentials` that cannot be read. Nothing was sent.
      RecordingError: the file of `record` cannot be written, or exists.
    """
    check_keywords(connect, connecting)
    options = ConnectOptions(**connecting)
    return open_connection(options.endpoint(address), options)


def open_connection(endpoint: Endpoint, options: ConnectOptions) -> Connection:
    """Do what `connect` does, but take an Endpoint and a ConnectOptions as arguments."""
    return connect_with(None, endpoint, options)[0]


def connect_with(
    first: envelopes.Request | None, endpoint: Endpoint, options: ConnectOptions
) -> tuple[Connection, Pending | None]:
    """Open a connection and send a first request without waiting for the server's greeting.

    Returns:
      The connection, and the pending first request, to be passed to its `wait`, or None.
    """
    # Encoded before the connection is opened: an invalid request opens none.
    message = None if first is None else envelopes.encode_request(first).message
    stream = open_stream(endpoint, options.timeout, answer_memory, message)
    connection = connection_on(stream, endpoint, options)
    _log.debug("connected to %s", endpoint.address)
    return connection, None if first is None else connection._has_sent(first)


def connection_on(stream: Stream, endpoint: Endpoint, options: ConnectOptions) -> Connection:
    """Return a connection over a stream to an endpoint; its `reopen` uses the same options."""
    connection = Connection(
        stream,
        request_timeout=options.request_timeout,
        keepalive_timeout=options.keepalive_timeout,
        limits=options.limits,
    )
    connection._reopen = functools.partial(open_again, endpoint, options)
    connection._tap = endpoint.tap
    return connection


def open_again(endpoint: Endpoint, options: ConnectOptions, timeout: float | None) -> Connection:
    """Open another connection to an endpoint, with the same options except for the timeout."""
    return open_connection(endpoint, dataclasses.replace(options, timeout=timeout))


def create_secure_channel_and_connect(
    server_address: str,
    credentials: grpc.ChannelCredentials | None = None,
    timeout: float | None = None,
    metadata: Metadata | None = None,
) -> Connection:
    """Connect over a secure channel; the reference package's function has the same signature.

    Args:
      server_address: `host:port`, `unix:path` or another gRPC target.
      credentials: channel credentials; None for gRPC's local ones, which only servers on
        this machine accept.
      timeout: time limit for connecting, in seconds; None for no limit.
      metadata: pairs of strings (bytes for keys ending in `-bin`) sent with the call.

    Raises:
      As `connect`.
    """
    # The reference package has no `insecure`; local credentials are refused beyond loopback.
    if credentials is None:
        credentials = local_credentials(server_address)
    return connect(server_address, timeout=timeout, credentials=credentials, metadata=metadata)
