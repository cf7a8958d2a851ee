"""Sockets that listen."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
from typing import Any

from dm_env_rpc_client.transports.addresses import parse_host_port
from dm_env_rpc_client.transports.listening import unix_path

_log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""How long clients wait when there are no descriptors for them."""

_JOIN_SECONDS = 5.0

_CLIENT_IS_GONE = (errno.ECONNABORTED, errno.EPROTO)

_GONE_AT_ONCE = 16
"""Connections that are passed over at a time, because their clients have closed them."""


def is_gone(connected: socket.socket) -> bool:
    """Whether a client has closed its connection, and has said nothing before."""
    try:
        return not connected.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except (BlockingIOError, InterruptedError):
        return False
    except OSError:
        return True


class ListeningSockets:
    """Sockets that listen.

    Args:
      poll: tells when a client has come.
    """

    def __init__(self, poll: select.epoll):
        self._poll = poll
        self._sockets: dict[int, socket.socket] = {}
        self._paths: list[str] = []
        self._is_paused = False

    def add(self, address: str) -> int:
        """Listens on one address, and returns the port; 0 for a unix socket.

        Raises:
          OSError: that is not possible. All sockets are closed then, because the caller has to
            begin again with another port.
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
        """Returns a connection and the address of its client; None if there is none.

        Args:
          descriptor: of the socket that is ready.

        Raises:
          OSError: there is one, but no descriptor for it.
        """
        listening = self._sockets[descriptor]
        # Not for ever: clients may come and go all the time.
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
        """Lets clients wait: the machine has no descriptors for them."""
        self._is_paused = True
        for listening in self._sockets.values():
            self._poll.unregister(listening)

    def go_on(self) -> None:
        """Ends a pause."""
        if self._is_paused:
            self._is_paused = False
            for listening in self._sockets.values():
                self._poll.register(listening, select.EPOLLIN)

    def close(self) -> None:
        """Closes all sockets, and removes the files of unix sockets; may be called again."""
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
        """Closes the sockets only, as a forked child does with its copies."""
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
