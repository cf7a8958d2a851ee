"""The interface of transports: an open stream, for threads or for coroutines."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A message; large arrays decoded from it may share its memory."""

MAX_MESSAGE_BYTES = 128 << 20
"""The default for the size of the largest message that is received, after decompression."""

Allocate: TypeAlias = Callable[[int], memoryview]
"""Returns writable memory of so many bytes for a message.

The decoder of the messages knows how their contents should be aligned.
"""


def plain_memory(size: int) -> memoryview:
    """Returns memory of no particular alignment."""
    return memoryview(bytearray(size))


class SharedSocket(Protocol):
    """A socket that several streams share. Whoever waits for many of them asks it, not each."""

    def take_unread(self) -> Iterable[int]:
        """Receives what has arrived, without waiting.

        Returns:
          The numbers of the streams that have received a message, or have ended, since the last
          call; also of those whose message was read meanwhile.
        """


class Stream(Protocol):
    """One open stream, for threads. One thread at a time writes, one at a time reads.

    Writing does not wait for the server: a server whose answers are not read stops reading, and a
    client that wrote everything before it read would wait for ever.
    """

    address: str
    """How error messages name the server."""

    def write(self, *messages: bytes) -> bool:
        """Sends messages together. `read` raises the error if this fails.

        Returns:
          What `has_unsent` returns then.
        """

    def has_unsent(self) -> bool:
        """Whether written bytes are not sent yet because the server does not receive them.

        `read` and `send_rest` send them.
        """

    def send_rest(self, timeout: float) -> None:
        """Sends unsent bytes, as many as possible within `timeout` seconds.

        For a thread that writes while another one reads.
        """

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        """Returns the next message, in memory that belongs to the caller.

        Args:
          timeout: seconds to wait; None for no limit, 0 to not wait.
          until_sent: return as soon as there are no unsent bytes.

        Returns:
          The message, or None if none was received in time.

        Raises:
          ConnectionLostError: the stream has ended; ProtocolError: the peer is not a
            dm_env_rpc server. Every later call raises the same error.
        """

    def has_unread(self) -> bool:
        """Whether `read(0)` would return a message or raise."""

    def shared_socket(self) -> tuple[SharedSocket, int] | None:
        """The socket that it shares, and its number there; None if it has one of its own."""

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `has_unread` may have become true.

        Call `has_unread` or `read(0)` first and select only if there is nothing to read: the
        descriptor does not show messages that were received already. -1 if the stream was
        closed on this side.
        """

    def finish(self) -> None:
        """Tells the server that no more requests follow, without waiting; may be repeated."""

    def close(self, timeout: float) -> None:
        """Finishes the stream, waits for its end, and releases all resources.

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
    """One open stream, for one event loop, in whose thread everything happens.

    Nothing but `close` waits. The loop reads and writes in between.
    """

    address: str
    """How error messages name the server."""

    def begin(self, readable: Callable[[], object], is_awaited: Callable[[], bool]) -> None:
        """Has the running loop read; called once.

        Args:
          readable: called when `read` may return a message or raise.
          is_awaited: whether an answer is awaited, so that a silent server is to be noticed.
        """

    def write(self, message: bytes) -> None:
        """Sends a message, now or when the server takes it. `read` raises the error if it fails."""

    def take_arrived(self) -> None:
        """Receives what has arrived, and calls `readable` if there is something."""

    def read(self) -> Buffer | None:
        """Returns the next message, or None if there is none yet; raises as `Stream.read` does."""

    async def close(self, timeout: float) -> None:
        """As `Stream.close`."""

    def abandon(self) -> None:
        """As `Stream.abandon`."""

    def abort(self) -> None:
        """As `Stream.abort`."""
