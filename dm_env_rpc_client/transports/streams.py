"""The interface of transports: an open stream, for threads or for coroutines."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A message; large arrays decoded from it may share its memory."""

MAX_MESSAGE_BYTES = 128 << 20
"""The default for the size of the largest message that is received, after decompression."""

Allocate: TypeAlias = Callable[[int], memoryview]
"""Returns writable memory of so many bytes for a message.

The decoder of the messages knows how their contents should be aligned.
"""


Exchange: TypeAlias = Callable[
    [bytes, Callable[[Any], bool], Any, threading.Lock, bool], Buffer | None
]
"""Sends a message and receives the next one; see `Stream.exchange`."""


def plain_memory(size: int) -> memoryview:
    """Return memory of no particular alignment."""
    return memoryview(bytearray(size))


class SharedSocket(Protocol):
    """A socket of several streams; to wait for many streams, poll it instead of each stream."""

    def take_unread(self) -> Iterable[int]:
        """Receive the arrived bytes, without waiting.

        Returns:
          The numbers of the streams that have received a message, or have ended, since the last
          call; also of those whose message was read meanwhile.
        """


class Stream(Protocol):
    """One open stream, for threads. One thread at a time writes, one at a time reads.

    Writing does not wait for the server: a server whose answers are not read stops reading, and a
    client that wrote everything before it read would wait forever.
    """

    address: str
    """The name of the server in error messages."""

    @property
    def exchange(self) -> Exchange | None:
        """The function that sends a message and receives the next while no other is in flight.

        It is for the thread that may read, and takes five arguments: the message; a function that
        is called just before the message is sent, and whose False prevents that; the argument of
        this function; the lock of those that write, which is held until the message is sent; and
        whether it has to return in a second or so, because there is a deadline.
        It returns the message that was received, or None if anything was not as usual. Then `write`
        sends the message unless the function has returned True, and `read` waits for the next one.

        None if the transport has no such function, or not yet.
        """
        return None

    def write(self, *messages: bytes) -> bool:
        """Send messages together. `read` raises the error if this fails.

        Returns:
          What `has_unsent` returns then.
        """

    def has_unsent(self) -> bool:
        """Whether written bytes are not sent yet because the server does not receive them.

        `read` and `send_rest` send them.
        """

    def send_rest(self, timeout: float) -> None:
        """Send as many of the unsent bytes as possible within `timeout` seconds.

        For a thread that writes while another one reads.
        """

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        """Return the next message, in memory that belongs to the caller.

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
        """Return a descriptor that is readable when `has_unread` may have become true.

        Call `has_unread` or `read(0)` first and select only if there is nothing to read: the
        descriptor does not show messages that were received already. -1 if the stream was
        closed on this side.
        """

    def finish(self) -> None:
        """Tell the server that no more requests follow, without waiting; may be repeated."""

    def close(self, timeout: float) -> None:
        """Finish the stream, wait for its end, and release all resources.

        Takes up to about `timeout` seconds, then cancels the stream. Never raises.
        """

    def abandon(self) -> None:
        """Free this process's copy of everything, in a forked child; the peer sees nothing.

        After it `has_unread` is true and `fileno` is -1. Locks may be locked by threads that do
        not exist here.
        """

    def abort(self) -> None:
        """End the stream at once, without waiting. A blocked `read` raises."""


class AsyncStream(Protocol):
    """One open stream, for an event loop, which watches its descriptor. Nothing waits."""

    address: str
    """The name of the server in error messages."""

    def fileno(self) -> int:
        """Return the descriptor; another one after `opening_again`."""

    def events(self) -> int:
        """Return the events to watch the descriptor for: `select.POLLIN`, `select.POLLOUT` or both.

        0 if it waits for something else, so that it is asked again in a moment.
        """

    def receive(self) -> bool:
        """Send and receive without waiting; part of a large message at a time.

        Returns:
          Whether there is more that the descriptor does not show.
        """

    def has_unread(self) -> bool:
        """Whether `receive` and `take` would bring a message, or the end of the stream."""

    def take(self) -> Buffer | None:
        """Return the next message that was received, None if there is none.

        Raises:
          As `Stream.read`.
        """

    def write(self, message: bytes, /) -> object:
        """Send a message, as much as possible now. `take` raises the error if this fails."""

    def look(self) -> None:
        """Check for a silent server, once a second while an answer is awaited.

        Does nothing if the transport does so by itself.

        Raises:
          ConnectionLostError: it was silent for too long; `take` raises it, too.
        """
        return

    def opening_again(self) -> Callable[[], Awaitable[None]] | None:
        """Return a function that continues the stream on another connection after an error.

        It raises as `take` if there is no other connection. None if nothing helps.
        """
        return None

    def finish(self) -> None:
        """As `Stream.finish`."""

    def abandon(self) -> None:
        """As `Stream.abandon`."""

    def abort(self) -> None:
        """As `Stream.abort`."""

    async def closed(self) -> None:
        """Return when all resources are released, after `abort`."""
        return
