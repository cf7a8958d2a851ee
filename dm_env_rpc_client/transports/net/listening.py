"""Listening sockets.

`listen` binds a server to an address. For `localhost`, `listen` binds to both the IPv4 and the
IPv6 address or raises an error.

The name `localhost` stands for an IPv4 and an IPv6 address, and gRPC binds to only one of them if
the other is in use. A client that tries the other address first would connect to a different
program.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import stat
from collections.abc import Callable
from typing import Any

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.net.addresses import parse_host_port

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""The pause, in seconds, before clients are accepted again after file descriptors have run out."""

_CLIENT_IS_GONE = (errno.ECONNABORTED, errno.EPROTO)

_GONE_AT_ONCE = 16
"""The maximum number of connections skipped at a time because their clients have closed them."""

_ATTEMPTS = 10
_FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


def listen(add_port: Callable[[str], int], address: str) -> str:
    """Bind a server to an address.

    Args:
      add_port: binds the server to one address in gRPC's syntax, and returns the port, or raises
        OSError if the address is in use.
      address: `host:port` or `unix:path`; port 0 selects any free port.

    Returns:
      The address with the actual port.

    Raises:
      OSError: the address is in use or is not an address of this machine; see `cannot_listen`.
    """
    host, _, port = address.rpartition(":")
    try:
        if address.startswith("unix:"):
            _clear(unix_path(address))
        if host != "localhost" or not port.isdigit():
            number = add_port(address)
            return address if address.startswith("unix") else f"{host}:{number}"
        places = [place for place in _FAMILIES if _has(place)]
        for attempt in range(_ATTEMPTS):
            chosen = int(port) or _free_port(places)
            try:
                for place in places:
                    add_port(f"[{place}]:{chosen}" if ":" in place else f"{place}:{chosen}")
            except OSError:
                # Another program took the port in between.
                if int(port) or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return f"localhost:{chosen}"
    except OSError as error:
        raise cannot_listen(address, error) from error
    raise AssertionError


def cannot_listen(address: str, error: OSError) -> OSError:
    """Return the error for a server that cannot listen, with the cause, the address and advice.

    Args:
      address: the address that the server could not listen on.
      error: the cause. The returned error has the same `errno`.
    """
    number = error.errno or 0  # Negative for names that cannot be resolved.
    cause = os.strerror(number) if number > 0 else error.strerror or error
    text = f"cannot listen on {address}: {cause}"
    if error.errno == errno.EADDRINUSE:
        text += _TAKEN_PATH if address.startswith("unix:") else _TAKEN_PORT
    return OSError(text) if error.errno is None else type(error)(error.errno, text)


_TAKEN_PORT = "; another program listens there: end it, or choose another port (0 is any free one)"
_TAKEN_PATH = "; another program listens there, or it is a file: choose another path"


def try_to_bind(address: str) -> None:
    """Bind a socket to an address and close it, to find out which error binding raises.

    Args:
      address: `host:port` or `unix:path`. Addresses of any other form are ignored.

    Raises:
      OSError: the address cannot be bound.
    """
    if address.startswith("unix:"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(unix_path(address))
        os.unlink(unix_path(address))
        return
    with contextlib.suppress(SpecError):
        host, port = parse_host_port(address)
        for family, kind, protocol, _, where in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)


def unix_path(address: str) -> str:
    """Return the path of an address of the form `unix:path` or `unix:///path`."""
    return address.removeprefix("unix:").removeprefix("//")


def _clear(path: str) -> None:
    """Remove the socket file of a server that was killed, or raise OSError for any other file."""
    with contextlib.suppress(FileNotFoundError):
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
        # grpcio would remove that of a server that runs.
        if not is_socket or not _is_stale(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        os.unlink(path)


def _is_stale(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A server that does not accept at the moment lets a blocking socket wait.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _has(place: str) -> bool:
    """Return whether the machine has the given loopback address."""
    try:
        with socket.socket(_FAMILIES[place]) as probe:
            probe.bind((place, 0))
    except OSError:
        return False
    return True


def _free_port(places: list[str]) -> int:
    """Return a port that is free on all of the given addresses."""
    while True:
        with contextlib.ExitStack() as stack:
            port = 0
            try:
                for place in places:
                    probe = stack.enter_context(socket.socket(_FAMILIES[place]))
                    probe.bind((place, port))
                    port = probe.getsockname()[1]
            except OSError:
                continue
            return port


def is_gone(connected: socket.socket) -> bool:
    """Return whether a client has closed its connection without sending anything."""
    try:
        return not connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


class ListeningSockets:
    """A server's listening sockets.

    Args:
      poll: the poll object that reports new clients.
    """

    def __init__(self, poll: select.epoll):
        self._poll = poll
        self._sockets: dict[int, socket.socket] = {}
        self._paths: list[str] = []
        self._is_paused = False

    def add(self, address: str) -> int:
        """Listen on one address, and return the port, or 0 for a unix socket.

        Raises:
          OSError: the address cannot be listened on. All sockets are closed, because the caller
            must start over with another port.
        """
        try:
            if address.startswith("unix:"):
                self._add_unix(unix_path(address))
                return 0
            host, port = parse_host_port(address)
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, kind, protocol, _, where in dict.fromkeys(found):
                listening = socket.socket(family, kind, protocol)
                self._open(listening, (where[0], port, *where[2:]))
                # The further addresses of a name have the port that the first one got.
                port = listening.getsockname()[1]
            return port
        except OSError:
            self.close()
            raise

    def accept(self, descriptor: int) -> tuple[socket.socket, Any] | None:
        """Return a connection and its client's address, or None if no client is waiting.

        Args:
          descriptor: the descriptor of the listening socket that is ready.

        Raises:
          OSError: a client is waiting, but no file descriptor is free for its connection.
        """
        listening = self._sockets[descriptor]
        # Not forever: clients may come and go all the time.
        for _ in range(_GONE_AT_ONCE):
            try:
                accepted = listening.accept()
                if not is_gone(accepted[0]):
                    return accepted
                accepted[0].close()
            except (BlockingIOError, InterruptedError):
                return None
            except OSError as error:
                if error.errno not in _CLIENT_IS_GONE:
                    raise
        return None

    def __contains__(self, descriptor: int) -> bool:
        return descriptor in self._sockets

    def pause(self) -> None:
        """Stop accepting clients while the machine is out of file descriptors."""
        self._is_paused = True
        for listening in self._sockets.values():
            self._poll.unregister(listening)

    def go_on(self) -> None:
        """Accept clients again after a pause."""
        if self._is_paused:
            self._is_paused = False
            for listening in self._sockets.values():
                self._poll.register(listening, select.EPOLLIN)

    def close(self) -> None:
        """Close all sockets and remove the files of unix sockets. A second call does nothing."""
        for listening in self._sockets.values():
            # A process forked from this one may have copies, which would keep them open.
            with contextlib.suppress(OSError, ValueError):
                self._poll.unregister(listening)
            with contextlib.suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)
        self.abandon()
        for path in self._paths:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._paths.clear()

    def abandon(self) -> None:
        """Close a forked child's copies of the sockets, without removing files."""
        for listening in self._sockets.values():
            listening.close()
        self._sockets.clear()

    def _open(self, listening: socket.socket, where: Any) -> None:
        self._sockets[listening.fileno()] = listening
        if listening.family == socket.AF_INET6:
            # As gRPC does it: [::] is both families.
            is_any = where[0] == "::"
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, not is_any)
        if listening.family != socket.AF_UNIX:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.setblocking(False)
        listening.listen(min(1024, socket.SOMAXCONN))
        self._poll.register(listening, select.EPOLLIN)

    def _add_unix(self, path: str) -> None:
        self._open(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path)
        self._paths.append(path)
