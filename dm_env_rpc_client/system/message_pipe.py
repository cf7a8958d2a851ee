"""Transfer of messages and open file descriptors between two processes on one machine."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from typing import Any, NamedTuple

from dm_env_rpc_client.system import forking
from dm_env_rpc_client.system.locks import make_lock

_LENGTH = struct.Struct("<Q")

_DROPPED_BYTES = 1 << 16


class Received(NamedTuple):
    """A received message."""

    message: bytearray

    descriptor: int | None
    """The file descriptor that was sent with the message and now belongs to the receiver, or None
    if none was sent."""


class MessagePipe:
    """One end of a message pipe.

    Any thread can send, but only one thread at a time can receive.

    A pipe end can be passed to a process that multiprocessing starts. In a forked child, all
    copies are closed, so that the other ends notice when this process ends.

    Args:
      connected: one of a pair of connected, blocking Unix sockets.
    """

    def __init__(self, connected: socket.socket):
        self._socket = connected
        self._sending = make_lock()
        forking.register(self, MessagePipe.after_fork_in_child)

    def __reduce__(self) -> tuple[Any, ...]:
        return MessagePipe, (self._socket,)

    @classmethod
    def pair(cls) -> tuple[MessagePipe, MessagePipe]:
        """Return the two ends of a new pipe."""
        mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(mine), cls(other)

    @classmethod
    def of(cls, descriptor: int) -> MessagePipe:
        """Return the pipe end for a file descriptor."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """Return the file descriptor, or -1 if this end is closed."""
        return self._socket.fileno()

    def send(self, *parts: bytes, descriptor: int | None = None) -> None:
        """Send a message, and wait until the socket accepts it.

        Args:
          *parts: the parts of the message.
          descriptor: an open file descriptor to copy to the receiver, or None.

        Raises:
          OSError: the other end is closed.
        """
        buffers = [_LENGTH.pack(sum(map(len, parts))), *parts]
        with self._sending:
            if descriptor is not None:
                # With the first bytes; the rest of a message may be large.
                socket.send_fds(self._socket, buffers[:1], [descriptor])
                del buffers[0]
            size = sum(map(len, buffers))
            sent = self._socket.sendmsg(buffers)
            if sent < size:
                try:
                    self._socket.sendall(memoryview(b"".join(buffers))[sent:])
                except BaseException:
                    self.shut_down()  # The next message would continue this one.
                    raise

    def receive(self) -> Received:
        """Wait for a message and return it.

        Raises:
          EOFError: the other end is closed.
          OSError: this end is.
        """
        head, descriptors, _, _ = socket.recv_fds(self._socket, _LENGTH.size, 1)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        try:
            while True:
                if len(head) >= _LENGTH.size:
                    break
                more = self._socket.recv(_LENGTH.size - len(head))
                if not more:
                    raise EOFError
                head += more
            message = bytearray(_LENGTH.unpack(head)[0])
            rest = memoryview(message)
            while True:
                if not rest:
                    break
                count = self._socket.recv_into(rest)
                if not count:
                    raise EOFError
                rest = rest[count:]
        except BaseException:
            self._end_receiving()
            for descriptor in descriptors:
                os.close(descriptor)
            raise
        return Received(message, descriptors[0] if descriptors else None)

    def _end_receiving(self) -> None:
        """Shut down the pipe, and drop what has arrived: it begins within a message."""
        self.shut_down()
        with contextlib.suppress(OSError):
            for _ in iter(lambda: self._socket.recv(_DROPPED_BYTES), b""):
                pass

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for data to arrive, and return whether data can be received."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def has_hung_up(self) -> bool:
        """Whether either end is closed. Messages might still be waiting to be received."""
        if self._socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def shut_down(self) -> None:
        """Shut down the pipe for both ends. A send or receive in progress raises an error."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close this end. A second call does nothing."""
        self._socket.close()

    def after_fork_in_child(self) -> None:
        """Close the copy that a forked child has inherited."""
        self.close()
