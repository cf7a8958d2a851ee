"""Functions shared by client and server sockets, and ways to wait while connecting.

The code for connecting consists of coroutines that await the methods of a `Waits` object. The
methods of `Blocking` never suspend, so `run` can execute the coroutines in the calling thread. An
interrupt or a cancellation is raised in the waiting coroutine, which then closes its sockets.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeAlias, TypeVar

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.waiting import in_thread
from dm_env_rpc_client.transports.net.credentials import (
    Credentials,
    Renewed,
    Tls,
    is_local_credentials,
)

WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""Errors that non-blocking sockets raise instead of waiting."""

ALPN = "h2"
"""The ALPN protocol name of HTTP/2 (RFC 9113, section 3.2)."""

_TCP_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 2}
"""TCP keepalive options, in seconds, with which the kernel detects an unreachable machine within
20 s if no sent bytes are unacknowledged. HTTP/2 PINGs are not needed for this."""

UNREACHABLE_SECONDS = 20.0
"""The time, in seconds, after which a machine that acknowledges nothing is considered unreachable.
"""

_TCP_INFO = struct.Struct("=24xI28xI")
"""`tcpi_unacked` and `tcpi_last_ack_recv`, in milliseconds, of Linux's struct tcp_info."""


def tls_context(credentials: Credentials | None, address: str) -> ssl.SSLContext | None:
    """Return a client's TLS context, or None for plaintext.

    Args:
      credentials: the same as for `connect`.
      address: the server's name in error messages.

    Raises:
      SpecError: the credentials are usable with grpcio only.
    """
    # Local credentials mean plaintext over TCP, and are refused beyond loopback elsewhere.
    if credentials is None or is_local_credentials(credentials):
        return None
    if isinstance(credentials, Tls):
        credentials = credentials.client_context()
    if not isinstance(credentials, ssl.SSLContext):
        raise SpecError(
            f"credentials for {address}: transport 'http2' accepts a Tls or an ssl.SSLContext, got "
            f"{type(credentials).__name__}; pass one of them, or use transport='grpc'"
        )
    # gRPC servers require that the client offers HTTP/2 in the handshake.
    credentials.set_alpn_protocols([ALPN])
    return credentials


ServerTls: TypeAlias = Callable[[], ssl.SSLContext]
"""A function that returns the TLS context for the next connection of a server."""


def server_tls_context(credentials: ssl.SSLContext | Tls | None, address: str) -> ServerTls | None:
    """Return the source of a server's TLS contexts, or None for plaintext.

    Args:
      credentials: the same as for `serve`, except those of grpcio.
      address: the server's name in error messages.

    Raises:
      SpecError: the argument is an ssl.SSLContext for clients, or a Tls without a certificate.
    """
    if credentials is None:
        return None
    if isinstance(credentials, Tls):
        return Renewed(credentials, credentials.server_context)
    # Otherwise every handshake would fail, with an alert that does not explain it.
    if credentials.protocol is ssl.PROTOCOL_TLS_CLIENT:
        raise SpecError(
            f"credentials for {address}: got an ssl.SSLContext for clients; a server requires "
            "ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) with a certificate, or a Tls"
        )
    credentials.set_alpn_protocols([ALPN])
    return lambda: credentials


def accepted_socket(accepted: socket.socket, tls: ServerTls | None) -> socket.socket:
    """Make an accepted socket non-blocking, and wrap it for TLS without starting the handshake.

    Raises:
      OSError, ValueError: the client has disconnected.
    """
    accepted.setblocking(False)
    set_options(accepted)
    if tls is None:
        return accepted
    # The handshake waits for the client, so it must not block the thread that accepts.
    return tls().wrap_socket(accepted, server_side=True, do_handshake_on_connect=False)


def set_options(connected: socket.socket) -> None:
    """Configure a TCP socket to send immediately and to detect a lost peer."""
    if connected.family == socket.AF_UNIX:
        return
    # Nagle's algorithm would delay small steps by up to 40 ms.
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _TCP_KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def unacknowledged_seconds(connected: socket.socket) -> float:
    """Return how long sent bytes have been unacknowledged, in seconds.

    The kernel of a reachable machine acknowledges bytes even if its process is frozen. If the
    process does not receive and its buffers are full, further bytes are not sent, so they do not
    count. TCP_USER_TIMEOUT would end the connection in that case, too.

    Returns:
      The time since the last acknowledgement, or 0.0 if all sent bytes are acknowledged, for a unix
      socket, and on systems other than Linux.
    """
    if sys.platform != "linux" or connected.family == socket.AF_UNIX:
        return 0.0
    try:
        info = connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return 0.0
    unacknowledged, milliseconds = _TCP_INFO.unpack(info)
    return milliseconds / 1e3 if unacknowledged else 0.0


def poll_for(polled: Any, events: int) -> Callable[[float], bool]:
    """Return a function that waits for a socket and returns whether the socket is ready."""
    poll = select.poll()
    poll.register(polled, events)

    def is_ready(seconds: float) -> bool:
        return bool(poll.poll(seconds * 1000 if seconds > 0 else 0))

    return is_ready


_T = TypeVar("_T")

_FOR_EVER = 1e6


class Waits(Protocol):
    """The interface for waiting, in a thread or in an event loop."""

    async def ready(self, polled: Any, events: int, seconds: float | None) -> bool:
        """Wait for a socket.

        Args:
          polled: the socket.
          events: `select.POLLIN`, `select.POLLOUT` or both.
          seconds: the maximum time to wait, or None for no limit.

        Returns:
          Whether the socket is ready.
        """

    async def pause(self, seconds: float) -> None:
        """Wait for the given number of seconds."""

    async def call(self, function: Callable[[], _T], seconds: float | None) -> _T:
        """Call a function that can block, in a separate thread that ends when it returns.

        Args:
          function: the function.
          seconds: the maximum time to wait for the result, or None for no limit.

        Raises:
          TimeoutError: the function did not return in time and continues to run.
        """


class Blocking(Waits):
    """An implementation of `Waits` that blocks the calling thread."""

    async def ready(self, polled: Any, events: int, seconds: float | None) -> bool:
        return poll_for(polled, events)(_FOR_EVER if seconds is None else seconds)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def call(self, function: Callable[[], _T], seconds: float | None) -> _T:
        if seconds is None:
            return function()
        outcomes: list[_T | Exception] = []

        def keep_outcome() -> None:
            try:
                outcomes.append(function())
            except Exception as error:
                outcomes.append(error)

        # A name look-up cannot be interrupted; after the deadline the thread is left to end by
        # itself.
        thread = threading.Thread(target=keep_outcome, daemon=True)
        thread.start()
        thread.join(seconds)
        if not outcomes:
            raise TimeoutError
        if isinstance(outcomes[0], Exception):
            raise outcomes[0]
        return outcomes[0]


class InLoop(Waits):
    """An implementation of `Waits` that lets the running event loop continue."""

    async def ready(self, polled: Any, events: int, seconds: float | None) -> bool:
        loop = asyncio.get_running_loop()
        process, descriptor = os.getpid(), polled.fileno()
        ready: asyncio.Future[bool] = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _settle, ready, False)
        try:
            if events & select.POLLIN:
                loop.add_reader(descriptor, _settle, ready, True)
            if events & select.POLLOUT:
                loop.add_writer(descriptor, _settle, ready, True)
            return await ready
        finally:
            # A forked child shares the selector with its parent, which waits on.
            if os.getpid() == process:
                loop.remove_reader(descriptor)
                loop.remove_writer(descriptor)
            if timer is not None:
                timer.cancel()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def call(self, function: Callable[[], _T], seconds: float | None) -> _T:
        try:
            return await asyncio.wait_for(in_thread(function), seconds)
        except asyncio.TimeoutError:
            raise TimeoutError from None


BLOCKING = Blocking()
IN_LOOP = InLoop()


def run(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that never suspends, such as one that was given `BLOCKING`."""
    try:
        coroutine.send(None)
    except StopIteration as returned:
        result: _T = returned.value
        return result
    finally:
        coroutine.close()
    raise AssertionError("the coroutine was suspended, but no event loop is running")


def _settle(future: asyncio.Future[bool], outcome: bool) -> None:
    if not future.done():
        future.set_result(outcome)
