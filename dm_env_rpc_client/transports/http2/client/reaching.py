"""Sockets that reach a server: names and their addresses, TCP or unix sockets, TLS."""

from __future__ import annotations

import errno
import functools
import ipaddress
import os
import select
import socket
import ssl
import time
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.addresses import check_resolved
from dm_env_rpc_client.transports.http2.client.attempts import (
    Attempts,
    HandshakeError,
    seconds_left,
)
from dm_env_rpc_client.transports.http2.client.target import Target
from dm_env_rpc_client.transports.http2.client.waits import Call, Ready, Sequence
from dm_env_rpc_client.transports.http2.sockets import HTTP2, set_options
from dm_env_rpc_client.transports.status import NO_HTTP2

_ACCEPT_SECONDS = 3.0
"""The longest that an address may take to accept a connection if the name has further ones."""

_PROBE_SECONDS = 1.0
"""How long a server may take to answer the beginning of a TLS handshake."""

_TLS_RECORDS = (b"\x15", b"\x16")
"""How an alert and an answer to a handshake begin (RFC 8446, section 5.1)."""


def reach(
    target: Target,
    tls: ssl.SSLContext | None,
    deadline: float | None,
    loopback_only: bool,
    alpn: str = HTTP2,
) -> Sequence[Any]:
    """Opens a socket to the first address of a name that takes it.

    Args:
      target: the server.
      tls: for an encrypted connection.
      deadline: on the monotonic clock; None for any time.
      loopback_only: whether the name must be resolved to loopback addresses.
      alpn: the protocol that the server must agree to in the handshake.

    Returns:
      A non-blocking socket.

    Raises:
      OSError: no address could be reached; that of the last one.
      TimeoutError: not in time.
      SpecError: the name has an address of another machine, and must not.
    """
    error: OSError = OSError(f"no address for {target.host}")
    places: list[tuple[int, Any]] = [(socket.AF_UNIX, target.path)]
    if not target.path:
        found = yield from _look_up(target, deadline)
        places = _places(target, found, loopback_only)
    for index, (family, where) in enumerate(places):
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            remaining = None if deadline is None else seconds_left(deadline)
            yield from _connect(
                connecting, where, seconds_to_accept(remaining, len(places) - index)
            )
            set_options(connecting)
            if tls is None:
                return connecting
            connecting = tls.wrap_socket(
                connecting,
                server_hostname=target.host or "localhost",
                do_handshake_on_connect=False,
            )
            yield from _encrypt(connecting, deadline, alpn)
            return connecting
        except OSError as caught:
            connecting.close()
            error = caught
        except BaseException:
            connecting.close()
            raise
    raise error


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


def explain_end(error: OSError, attempts: Attempts) -> Sequence[OSError]:
    """Finds out whether a server that closes plaintext connections at once expects TLS.

    Such a server and a proxy whose server has not started yet look the same to a client. The one is
    a final error, the other is worth another attempt.

    Args:
      error: the error without an explanation.
      attempts: to reach the server, with the time that is left.

    Returns:
      A HandshakeError, which is final, if the server answers the beginning of a TLS handshake;
      otherwise `error`.
    """
    try:
        is_tls = yield from _answers_tls(Target.parse(attempts.address), attempts)
    except (OSError, SpecError):
        return error
    if not is_tls:
        return error
    return HandshakeError("the server expects TLS, and this connection is plaintext")


def _answers_tls(target: Target, attempts: Attempts) -> Sequence[bool]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(received, sent, server_hostname=target.host or "localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass  # It has written its first message.
    connected = yield from reach(target, None, attempts.deadline, loopback_only=False)
    with connected:
        connected.send(sent.read())  # Into an empty buffer, which takes all of it.
        seconds = min(_PROBE_SECONDS, attempts.remaining or _PROBE_SECONDS)
        is_ready = yield Ready(connected, select.POLLIN, seconds)
        return bool(is_ready) and connected.recv(1) in _TLS_RECORDS


def _look_up(target: Target, deadline: float | None) -> Sequence[list[Any]]:
    """Resolves a name, in a thread of its own if that may take long: it has no timeout."""
    look_up = functools.partial(
        socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM
    )
    if target.host == "localhost" or _is_number(target.host):
        return look_up()
    try:
        found: list[Any] = yield Call(look_up, None if deadline is None else seconds_left(deadline))
    except TimeoutError:
        raise TimeoutError(f"the name {target.host} was not resolved in time") from None
    return found


def _places(target: Target, found: list[Any], loopback_only: bool) -> list[tuple[int, Any]]:
    """Returns the families and addresses that `getaddrinfo` has found for a name."""
    if loopback_only:
        for each in found:
            check_resolved(target.host, each[4][0])
    return [(int(each[0]), each[4]) for each in found]


def _connect(connecting: socket.socket, where: Any, seconds: float | None) -> Sequence[None]:
    """Connects a socket to an address that has to accept it within so many seconds."""
    code = connecting.connect_ex(where)
    if code in (errno.EINPROGRESS, errno.EINTR):
        if not (yield Ready(connecting, select.POLLOUT, seconds)):
            raise TimeoutError("no answer in time")
        code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _encrypt(connecting: ssl.SSLSocket, deadline: float | None, alpn: str) -> Sequence[None]:
    """Makes the TLS handshake on a connected socket."""
    while True:
        try:
            connecting.do_handshake()
            break
        except ssl.SSLWantReadError:
            events = select.POLLIN
        except ssl.SSLWantWriteError:
            events = select.POLLOUT
        except OSError as error:
            raise HandshakeError(error) from error
        seconds = None if deadline is None else deadline - time.monotonic()
        is_in_time = seconds is None or seconds > 0
        if not (is_in_time and (yield Ready(connecting, events, seconds))):
            raise TimeoutError("no answer in time")
    if connecting.selected_alpn_protocol() != alpn:
        raise HandshakeError(NO_HTTP2 if alpn == HTTP2 else f"it does not offer {alpn} in TLS")


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
