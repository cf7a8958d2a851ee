"""What is left of a connection that was ended for what its client did: its last words.

A socket that is closed while something comes in that nobody reads is reset, and the kernel drops
what it still has to send. The GOAWAY that says why would be lost. So the last words are sent
first, then the end, and what the client still sends is thrown away until it has seen that.
"""

from __future__ import annotations

import collections
import contextlib
import select
import socket
from collections.abc import Iterable
from typing import Any

from dm_env_rpc_client.transports.http2.sockets import WOULD_BLOCK

_THROWN_AWAY = bytearray(1 << 18)
"""Where what nobody reads goes. With MSG_TRUNC, TCP does not even write it there."""


class DrainingConnections:
    """A socket that is only left open so that its client learns why the connection ended.

    Args:
      connected: the socket, not blocking, and registered with the poll.
      last_words: what is to be sent.
      poll: tells what the socket is ready for.
      ends_at: when it is closed in any case, in seconds of the monotonic clock.

    Attributes:
      ends_at: as the argument.
    """

    def __init__(
        self, connected: Any, last_words: Iterable[Any], poll: select.epoll, ends_at: float
    ):
        self.ends_at = ends_at
        self._socket = connected
        self._unsent = collections.deque(memoryview(piece) for piece in last_words)
        self._has_said_all = False
        self._poll = poll

    def go_on(self) -> bool:
        """Sends and receives what the socket is ready for.

        Returns:
          Whether there is something to wait for: the client has not closed its end.
        """
        try:
            if not self._has_said_all:
                self._send()
            # As a plain socket: nothing is decrypted any more.
            return socket.socket.recv_into(self._socket, _THROWN_AWAY, 0, socket.MSG_TRUNC) > 0
        except WOULD_BLOCK:
            return True
        except (OSError, ValueError):
            return False

    def _send(self) -> None:
        """Sends what fits of the rest of the last words, and the end after them."""
        unsent = self._unsent
        try:
            while True:
                if not unsent:
                    break
                piece = unsent[0]
                sent = self._socket.send(piece)
                if sent == len(piece):
                    unsent.popleft()
                else:
                    unsent[0] = piece[sent:]
        except WOULD_BLOCK:
            self._poll.modify(self._socket, select.EPOLLIN | select.EPOLLOUT)
        else:
            self._has_said_all = True
            self._poll.modify(self._socket, select.EPOLLIN)
            socket.socket.shutdown(self._socket, socket.SHUT_WR)

    def close(self) -> None:
        """Closes the socket."""
        with contextlib.suppress(OSError, ValueError):
            self._poll.unregister(self._socket)
        with contextlib.suppress(OSError):
            # A process forked from this one may have a copy, which would keep it open.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._socket.close()

    def abandon(self) -> None:
        """Closes a forked child's copy of the socket."""
        self._socket.close()
