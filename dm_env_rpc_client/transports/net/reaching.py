"""Open sockets to a server: resolve its name, connect by TCP or unix socket, and set up TLS."""

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
from dm_env_rpc_client.transports.net.addresses import Target, check_resolved
from dm_env_rpc_client.transports.net.attempts import (
    Attempts,
    HandshakeError,
    seconds_left,
)
from dm_env_rpc_client.transports.net.sockets import ALPN, Waits, set_options
from dm_env_rpc_client.transports.net.status import NO_HTTP2

_ACCEPT_SECONDS = 3.0
"""The time limit, in seconds, for each of a name's several addresses to accept a connection."""

_PROBE_SECONDS = 1.0
"""The time limit, in seconds, for a server to answer the beginning of a TLS handshake."""

_TLS_RECORDS = (b"\x15", b"\x16")
"""The first bytes of a TLS alert and a TLS handshake answer (RFC 8446, section 5.1)."""


async def reach(
    waits: Waits,
    target: Target,
    tls: ssl.SSLContext | None,
    deadline: float | None,
    loopback_only: bool,
) -> Any:
    """Open a socket to the first of a server's addresses that accepts the connection.

    Args:
      waits: the way of waiting, in a thread or in an event loop.
      target: the server.
      tls: the TLS context for an encrypted connection, or None for plaintext.
      deadline: the deadline on the monotonic clock, or None for no limit.
      loopback_only: whether the name must resolve to loopback addresses only.

    Returns:
      A non-blocking socket.

    Raises:
      OSError: no address could be reached. The error is that of the last address.
      TimeoutError: the deadline has passed.
      SpecError: the name resolved to an address of another machine despite `loopback_only`.
    """
    error: OSError = OSError(f"found no address for {target.host}")
    places: list[tuple[int, Any]] = [(socket.AF_UNIX, target.path)]
    if not target.path:
        found = await _look_up(waits, target, deadline)
        if loopback_only:
            for each in found:
                # A resolver may send "localhost" anywhere, and the connection is plaintext.
                check_resolved(target.host, each[4][0])
        places = [(int(each[0]), each[4]) for each in found]
    for index, (family, where) in enumerate(places):
        connecting = socket.socket(family, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            remaining = None if deadline is None else seconds_left(deadline)
            # An address that drops packets must not use up the time of the next one (IPv6 before
            # IPv4).
            seconds = seconds_to_accept(remaining, len(places) - index)
            await _connect(waits, connecting, where, seconds)
            set_options(connecting)
            if tls is None:
                return connecting
            connecting = tls.wrap_socket(
                connecting,
                server_hostname=target.host or "localhost",
                do_handshake_on_connect=False,
            )
            await _encrypt(waits, connecting, deadline)
            return connecting
        except OSError as caught:
            connecting.close()
            error = caught
        except BaseException:
            connecting.close()
            raise
    raise error


def seconds_to_accept(remaining: float | None, places: int) -> float | None:
    """Return the time limit, in seconds, for the next address to accept a connection.

    The addresses share the time, so an address that does not respond leaves time for the others.

    Args:
      remaining: the remaining time, in seconds, or None for no limit.
      places: the number of remaining addresses, including the next one.
    """
    if places == 1:
        return remaining
    return _ACCEPT_SECONDS if remaining is None else min(_ACCEPT_SECONDS, remaining / places)


async def explain_end(waits: Waits, error: OSError, attempts: Attempts) -> OSError:
    """Find out whether a server that immediately closes plaintext connections expects TLS.

    To a client, a server that expects TLS looks like a proxy whose server has not started yet. Only
    the proxy is worth another attempt.

    Args:
      waits: the way of waiting, in a thread or in an event loop.
      error: the error to explain.
      attempts: the attempts to connect to the server, which define the remaining time.

    Returns:
      A HandshakeError, which is final, if the server answers the beginning of a TLS handshake, or
      `error` otherwise.
    """
    try:
        is_tls = await _answers_tls(waits, Target.parse(attempts.address), attempts)
    except (OSError, SpecError):
        return error
    if not is_tls:
        return error
    return HandshakeError("the server expects TLS, but this connection is plaintext")


async def _answers_tls(waits: Waits, target: Target, attempts: Attempts) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols([ALPN])
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(received, sent, server_hostname=target.host or "localhost").do_handshake()
    except ssl.SSLWantReadError:
        pass  # It has written its first message.
    with await reach(waits, target, None, attempts.deadline, loopback_only=False) as connected:
        connected.send(sent.read())  # Into an empty buffer, which takes all of it.
        seconds = min(_PROBE_SECONDS, attempts.remaining or _PROBE_SECONDS)
        is_ready = await waits.ready(connected, select.POLLIN, seconds)
        return is_ready and connected.recv(1) in _TLS_RECORDS


async def _look_up(waits: Waits, target: Target, deadline: float | None) -> list[Any]:
    """Resolve a name by the deadline, in a separate thread if the lookup can block."""
    look_up = functools.partial(
        socket.getaddrinfo, target.host, target.port, type=socket.SOCK_STREAM
    )
    # These need no network, so no thread either.
    if target.host == "localhost" or _is_number(target.host):
        return look_up()
    try:
        return await waits.call(look_up, None if deadline is None else seconds_left(deadline))
    except TimeoutError:
        raise TimeoutError(f"could not resolve the name {target.host} in time") from None


async def _connect(
    waits: Waits, connecting: socket.socket, where: Any, seconds: float | None
) -> None:
    """Connect a socket to an address within a time limit, in seconds."""
    code = connecting.connect_ex(where)
    if code in (errno.EINPROGRESS, errno.EINTR):
        if not await waits.ready(connecting, select.POLLOUT, seconds):
            raise TimeoutError("no answer in time")
        code = connecting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


async def _encrypt(waits: Waits, connecting: ssl.SSLSocket, deadline: float | None) -> None:
    """Perform the TLS handshake on a connected socket."""
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
        if not (is_in_time and await waits.ready(connecting, events, seconds)):
            raise TimeoutError("no answer in time")
    if connecting.selected_alpn_protocol() != ALPN:
        raise HandshakeError(NO_HTTP2)


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
