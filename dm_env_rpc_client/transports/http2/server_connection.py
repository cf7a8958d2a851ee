"""One accepted socket of a listener: TLS, bytes in, bytes out. Called by the listener's threads.

The thread that leads is the only one that receives. Any thread may send, with `lock` held, which
protects the half too.
"""

from __future__ import annotations

import itertools
import select
import socket
import ssl
import threading
import time
from typing import Any

from dm_env_rpc_client.transports.http2.server_half import ServerHalf

__all__ = ["ServerConnection"]

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_BUFFERS_AT_ONCE = 512

_MAX_UNSENT = 1 << 22
"""Bytes of answers that a client may leave unread before nothing more is read from it."""


class ServerConnection:
    """A connection of a client.

    Args:
      accepted: the socket, not blocking; an ssl.SSLSocket before its handshake for TLS.
      address: the client's, in the syntax of gRPC.
      half: the state of the connection.
      poll: tells the thread that leads what the socket is ready for.

    Attributes:
      address: as the argument.
      half: as the argument.
      lock: held while the half is changed and while something is sent.
      is_open: whether the socket is open.
      is_encrypting: whether the TLS handshake is not over.
      accepted_at: when it was accepted, in seconds of the monotonic clock.
      heard_at: when something was received last.
      is_probed: whether a probe was sent since then.
      stalled: streams whose requests wait until the client takes earlier answers.
    """

    def __init__(self, accepted: Any, address: str, half: ServerHalf, poll: select.epoll):
        self.address = address
        self.half = half
        self.lock = threading.Lock()
        self.is_open = True
        self.is_encrypting = self._is_tls = isinstance(accepted, ssl.SSLSocket)
        self.accepted_at = self.heard_at = time.monotonic()
        self.is_probed = False
        self.stalled: set[Any] = set()
        self._socket = accepted
        self._poll = poll
        self._sending = half.framing.sending
        self._mask = select.EPOLLIN
        poll.register(accepted, self._mask)

    def fileno(self) -> int:
        """Returns the descriptor of the socket."""
        number: int = self._socket.fileno()
        return number

    def encrypt(self) -> bool | None:
        """Goes on with the TLS handshake; None if it is not over, False if it failed."""
        try:
            self._socket.do_handshake()
        except ssl.SSLWantWriteError:
            self._watch(select.EPOLLOUT)
            return None
        except ssl.SSLWantReadError:
            self._watch(select.EPOLLIN)
            return None
        except (OSError, ValueError):
            return False
        # gRPC is HTTP/2 by agreement only.
        if self._socket.selected_alpn_protocol() != "h2":
            return False
        self.is_encrypting = False
        self._watch(select.EPOLLIN)
        return True

    def receive(self) -> bool:
        """Receives what there is and parses it; False if there may be more at once."""
        framing = self.half.framing
        buffers = framing.buffers()
        try:
            if self._is_tls:
                with self.lock:
                    count = self._socket.recv_into(buffers[0])
            elif len(buffers) == 1:
                count = self._socket.recv_into(buffers[0])
            else:
                count = self._socket.recvmsg_into(buffers)[0]
        except _WOULD_BLOCK:
            return True
        except (OSError, ValueError):
            count = 0
        with self.lock:
            framing.received(count)
        self.heard_at = time.monotonic()
        self.is_probed = False
        # What TLS has decrypted already makes no socket readable.
        return not (self._is_tls and framing.failure is None and self._socket.pending())

    def flush(self) -> None:
        """Sends what the socket takes; called with the lock."""
        sending = self._sending
        outbound = sending.outbound
        if not self.is_open:
            outbound.clear()
            return
        try:
            while outbound:
                if self._is_tls or len(outbound) == 1:
                    # What did not fit is tried again with the same bytes, as TLS demands.
                    sending.sent(self._socket.send(outbound[0]))
                else:
                    buffers = itertools.islice(outbound, _BUFFERS_AT_ONCE)
                    sending.sent(self._socket.sendmsg(buffers))
        except _WOULD_BLOCK:
            unsent = sum(map(len, outbound))
            self._watch(select.EPOLLOUT if unsent > _MAX_UNSENT else _BOTH)
        except OSError:
            outbound.clear()  # The end is received, too.
        else:
            if self._mask != select.EPOLLIN:
                self._watch(select.EPOLLIN)

    def close(self) -> None:
        """Closes the socket; called with the lock. What was not sent is lost."""
        if self.is_open:
            self.is_open = False
            try:
                self._poll.unregister(self._socket)
            except (OSError, ValueError):
                pass
            self._socket.close()

    def shut_down(self) -> None:
        """Ends the connection from any thread; the one that leads sees its end."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        except OSError:
            pass

    def _watch(self, mask: int) -> None:
        if mask != self._mask and self.is_open:
            self._mask = mask
            self._poll.modify(self._socket, mask)


_BOTH = select.EPOLLIN | select.EPOLLOUT
