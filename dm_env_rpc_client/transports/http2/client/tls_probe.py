"""Finds out whether a server that closes plaintext connections at once expects TLS.

Such a server and a proxy whose server has not started yet look the same to a client. The one is
a final error, the other is worth another attempt.
"""

from __future__ import annotations

import ssl

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.addresses import Target
from dm_env_rpc_client.transports.http2.client.attempts import Attempts, HandshakeError
from dm_env_rpc_client.transports.http2.sockets import connect_socket

_ANSWER_SECONDS = 1.0

_TLS_RECORDS = (b"\x15", b"\x16")
"""How an alert and an answer to a handshake begin (RFC 8446, section 5.1)."""


def explain_end(error: OSError, attempts: Attempts) -> OSError:
    """Returns the error for a server that closed a plaintext connection before it said anything.

    Args:
      error: the error without an explanation.
      attempts: to reach the server, with the time that is left.

    Returns:
      A HandshakeError, which is final, if the server answers the beginning of a TLS handshake;
      otherwise `error`.
    """
    try:
        target = Target.parse(attempts.address)
        is_tls = _answers_tls(target, attempts)
    except (OSError, SpecError):
        return error
    if not is_tls:
        return error
    return HandshakeError("the server expects TLS, and this connection is plaintext")


def _answers_tls(target: Target, attempts: Attempts) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(received, sent, server_hostname=target.host or "localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass  # It has written its first message.
    with connect_socket(target, None, attempts.deadline, loopback_only=False) as connected:
        connected.settimeout(min(_ANSWER_SECONDS, attempts.remaining or _ANSWER_SECONDS))
        connected.sendall(sent.read())
        first: bytes = connected.recv(1)
        return first in _TLS_RECORDS
