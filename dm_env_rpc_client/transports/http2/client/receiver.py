"""Receive bytes safely: an interrupt never leaves received bytes uncounted."""

from __future__ import annotations

import errno
import socket
from typing import Any

from dm_env_rpc_client.transports.http2.protocol.framing import Framing
from dm_env_rpc_client.transports.net.sockets import WOULD_BLOCK

_FROM_0 = (0,)
_MOST_BYTES = 1 << 20
"""The limit on bytes received at once, which lets an event loop serve other sockets in between."""


class Receiver:
    """A receiver that one thread at a time uses to fill a `Framing`'s buffers from a plain socket.

    Args:
      connected: the socket.
      framing: the parser of the received bytes.

    Attributes:
      counts: the result of the system call whose bytes are not parsed yet, or an empty list.
      buffers: the memory for the next bytes, or None to request memory from `framing`.
    """

    def __init__(self, connected: socket.socket, framing: Framing):
        self._recv_into = connected.recv_into
        self._recvmsg_into: Any = connected.recvmsg_into
        self._framing = framing
        self.counts: list[Any] = []
        self.buffers: list[memoryview] | None = None

    def receive(self, flags: int) -> bool:
        """Receive once unless bytes are left to parse; return whether there are bytes to parse."""
        counts = self.counts
        if counts:
            return True
        buffers = self.buffers
        if buffers is None:
            buffers = self.buffers = self._framing.buffers()
            if len(buffers[0]) > _MOST_BYTES:
                buffers = self.buffers = [buffers[0][:_MOST_BYTES]]
        receive: Any = self._recv_into
        into: Any = buffers
        if len(buffers) > 1:
            receive, into = self._recvmsg_into, (buffers,)
        # In one call of C, in which no interrupt is raised behind the system call: either bytes
        # were received, and their number is in the list, or none. 0.3 us more than a call of
        # `recv_into`; it is one for many answers, or beside the time of a round trip.
        try:
            counts.extend(map(receive, into, _FROM_0, (flags,)))
        except WOULD_BLOCK:
            return False
        except (OSError, ValueError) as error:
            self.end(error)
        return True

    def end(self, error: Exception) -> None:
        """Count an error of the socket as its end."""
        self.note(error)
        self.counts.append(0)

    def note(self, error: Exception) -> None:
        """Record whether the kernel has ended the connection because of an unreachable machine."""
        # TCP keepalive ends connections with this error; everything else comes from the peer.
        if isinstance(error, OSError) and error.errno == errno.ETIMEDOUT:
            self._framing.has_timed_out = True
