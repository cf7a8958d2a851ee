"""What a transport gives to a connection: an open stream, for threads or for coroutines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

__all__ = ["MAX_MESSAGE_BYTES", "Allocate", "AsyncStream", "Buffer", "Stream", "plain_memory"]

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A message; large arrays decoded from it may share its memory."""

MAX_MESSAGE_BYTES = 128 << 20
"""The size of the largest message that is received, after decompression."""

Allocate: TypeAlias = Callable[[int], memoryview]
"""Returns writable memory of so many bytes for a message.

Whoever decodes the messages knows how their contents should be aligned.
"""


def plain_memory(size: int) -> memoryview:
    """Returns memory of no particular alignment."""
    return memoryview(bytearray(size))


class Stream(Protocol):
    """One open stream, for threads. One thread at a time writes, one at a time reads.

    Writing does not wait for the other end: a server whose answers back up stops reading, and
    a client that insisted on writing before it reads would wait for ever.
    """

    address: str
    """What error messages call the other end."""

    def write(self, *messages: bytes) -> None:
        """Sends messages, together. An error that they meet comes out of `read`."""

    def has_unsent(self) -> bool:
        """Whether something that was written waits for the other end to take more.

        It is sent by `read`, and by `send_rest`.
        """

    def send_rest(self, timeout: float) -> None:
        """Sends what waits, as far as it can be sent within so many seconds.

        For a thread that writes while another one reads.
        """

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        """Returns the next message, in memory that is the caller's.

        Args:
          timeout: seconds to wait; None for ever, 0 for a look.
          until_sent: return as soon as nothing waits to be sent.

        Returns:
          The message, or None where none came in time.

        Raises:
          ConnectionLostError: the stream has ended; ProtocolError: the other end is no
            dm_env_rpc server. Every later call raises the same.
        """

    def has_unread(self) -> bool:
        """Whether `read(0)` would return a message or raise."""

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `has_unread` may have become true.

        Look with `has_unread` or `read(0)` first and select only when there is nothing: what
        a stream has in hand already does not show. -1 where the stream has ended on this side.
        """

    def close(self, timeout: float) -> None:
        """Tells the other end that no more requests come, and frees everything.

        Takes up to about `timeout` seconds, then cancels the stream. Never raises.
        """

    def abandon(self) -> None:
        """Frees this process's copy of everything, in a forked child; the peer sees nothing.

        After it `has_unread` is true and `fileno` is -1. Locks may be locked by threads that do
        not exist here.
        """

    def abort(self) -> None:
        """Ends the stream at once, without waiting. A blocked `read` raises."""


class AsyncStream(Protocol):
    """One open stream, for coroutines of one event loop."""

    address: str
    """What error messages call the other end."""

    async def write(self, message: bytes) -> None:
        """Sends a message. An error that it meets comes out of `read`."""

    async def read(self) -> Buffer:
        """Returns the next message; raises as `Stream.read` does."""

    async def close(self, timeout: float) -> None:
        """As `Stream.close`."""

    def abandon(self) -> None:
        """As `Stream.abandon`."""

    def abort(self) -> None:
        """As `Stream.abort`."""
