"""Sockets that lead to a server: names, addresses, options and TLS; what all sockets share."""

from __future__ import annotations

import ipaddress
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.net.addresses import Target, check_resolved
from dm_env_rpc_client.transports.net.attempts import Attempts, HandshakeError, seconds_left
from dm_env_rpc_client.transports.net.credentials import Credentials, Tls, is_local_credentials
from dm_env_rpc_client.transports.net.status import NO_HTTP2

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""What sockets raise instead of waiting."""

_ALPN = "h2"
"""The ALPN protocol (RFC 9113, section 3.2)."""

_ACCEPT_SECONDS = 3.0
"""The longest that an address may take to accept a connection if the name has further ones."""

_TCP_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}
"""A machine that has vanished is noticed by the kernel, whatever servers think of PINGs."""


KEEPALIVE_SECONDS = 10.0
KEEPALIVE_TIMEOUT_SECONDS = 5.0
"""After so much silence a client asks a server whether it is there, and how long it may take: a
frozen peer is detected within 15 s, over each transport."""

_ANSWER_SECONDS = 1.0

_TLS_RECORDS = (b"\x15", b"\x16")
"""How an alert and an answer to a handshake begin (RFC 8446, section 5.1)."""


def tls_context(credentials: Credentials | None, address: str) -> ssl.SSLContext | None:
    """Returns the context for TLS; None for plaintext.

    Args:
      credentials: as for `connect`.
      address: what error messages call the server.

    Raises:
      SpecError: these credentials are for grpcio only.
    """
    if credentials is None or is_local_credentials(credentials):
        return None
    if isinstance(credentials, Tls):
        credentials = credentials.client_context()
    if not isinstance(credentials, ssl.SSLContext):
        raise SpecError(
            f"credentials for {address}: transport 'http2' takes a Tls or an ssl.SSLContext, got "
            f"{type(credentials).__name__}; or use transport='grpc'"
        )
    # gRPC servers require that the client offers HTTP/2 in the handshake.
    credentials.set_alpn_protocols([_ALPN])
    return credentials


def server_tls_context(
    credentials: ssl.SSLContext | Tls | None, address: str
) -> ssl.SSLContext | None:
    """Returns the context of a server; None for plaintext.

    Args:
      credentials: as for `serve`, other than grpcio's.
      address: what error messages call the server.

    Raises:
      SpecError: it is a context for clients, or a Tls without a certificate.
    """
    if credentials is None:
        return None
    if isinstance(credentials, Tls):
        credentials = credentials.server_context()
    elif credentials.protocol is ssl.PROTOCOL_TLS_CLIENT:
        raise SpecError(
            f"credentials for {address}: got an ssl.SSLContext for clients; a server takes "
            "ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) with a certificate, or a Tls"
        )
    credentials.set_alpn_protocols([_ALPN])
    return credentials


def accepted_socket(accepted: socket.socket, tls: ssl.SSLContext | None) -> socket.socket:
    """Makes an accepted socket non-blocking, and with TLS an encrypted one before its handshake.

    Raises:
      OSError, ValueError: the client is gone.
    """
    accepted.setblocking(False)
    set_options(accepted)
    if tls is None:
        return accepted
    return tls.wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)


def connect_socket(
    target: Target,
    tls: ssl.SSLContext | None,
    deadline: float | None,
    loopback_only: bool,
) -> Any:
    """Opens a socket to the first address of a name that takes it.

    Args:
      target: the server.
      tls: for an encrypted connection.
      deadline: on the monotonic clock; None for any time.
      loopback_only: whether the name must be resolved to loopback addresses.

    Returns:
      A non-blocking socket.

    Raises:
      OSError: no address could be reached; that of the last one.
      TimeoutError: not in time.
    """
    error: OSError = OSError(f"no address for {target.host}")
    places: list[tuple[int, Any]] = [(socket.AF_UNIX, target.path)]
    if not target.path:
        places = resolved(target, _look_up(target, deadline), loopback_only)
    for index, (family, where) in enumerate(places):
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            remaining = None if deadline is None else seconds_left(deadline)
            connecting.settimeout(seconds_to_accept(remaining, len(places) - index))
            connecting.connect(where)
            set_options(connecting)
            if tls is None:
                connecting.setblocking(False)
                return connecting
            connecting.settimeout(None if deadline is None else seconds_left(deadline))
            return _encrypt(connecting, target, tls)
        except OSError as caught:
            connecting.close()
            error = caught
        except BaseException:
            connecting.close()
            raise
    raise error


def _encrypt(connected: socket.socket, target: Target, tls: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        encrypted = tls.wrap_socket(connected, server_hostname=target.host or "localhost")
    except TimeoutError:
        raise
    except OSError as error:
        raise HandshakeError(error) from error
    if encrypted.selected_alpn_protocol() != _ALPN:
        encrypted.close()
        raise HandshakeError(NO_HTTP2)
    encrypted.setblocking(False)
    return encrypted


def seconds_to_accept(remaining: float | None, places: int) -> float | None:
    """Returns how long an address of a name may take to accept a connection.

    Addresses share the time, so that one that does not respond leaves time for the next ones.

    Args:
      remaining: the seconds that are left; None for no limit.
      places: the number of addresses that are left, this one included.
    """
    if places == 1:
        return remaining
    return _ACCEPT_SECONDS if remaining is None else min(_ACCEPT_SECONDS, remaining / places)


def resolved(target: Target, found: list[Any], loopback_only: bool) -> list[tuple[int, Any]]:
    """Returns the families and addresses that `getaddrinfo` has found for a name.

    Raises:
      SpecError: one is of another machine, and must not be.
    """
    if loopback_only:
        for each in found:
            check_resolved(target.host, each[4][0])
    return [(int(each[0]), each[4]) for each in found]


def _look_up(target: Target, deadline: float | None) -> list[Any]:
    """Resolves a name, in a thread of its own if that may take long: it has no timeout."""
    outcome: list[Any] = []

    def look_up() -> None:
        try:
            outcome.append(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except OSError as error:
            outcome.append(error)

    if target.host == "localhost" or _is_number(target.host) or deadline is None:
        look_up()
    else:
        thread = threading.Thread(target=look_up, name=f"look up {target.host}", daemon=True)
        thread.start()
        thread.join(seconds_left(deadline))
    if not outcome:
        raise TimeoutError(f"the name {target.host} was not resolved in time")
    if isinstance(outcome[0], OSError):
        raise outcome[0]
    found: list[Any] = outcome[0]
    return found


def explain_end(error: OSError, attempts: Attempts) -> OSError:
    """Returns the error for a server that closed a plaintext connection before it said anything.

    A server that expects TLS and a proxy whose server has not started yet look the same to a
    client. The one is a final error, the other is worth another attempt.

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


def set_options(connected: socket.socket) -> None:
    """Makes a TCP socket send at once and notice when the other machine has gone."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def poll_for(polled: Any, events: int) -> Callable[[float], bool]:
    """Returns what waits up to so many seconds for the socket, and says whether it is ready."""
    poll = select.poll()
    poll.register(polled, events)

    def is_ready(seconds: float) -> bool:
        return bool(poll.poll(seconds * 1000 if seconds > 0 else 0))

    return is_ready
