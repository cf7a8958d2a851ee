"""The interface of a transport: an open stream for threads or for coroutines."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeAlias

from dm_env_rpc_client.transports.net.keepalive import KeepaliveSeconds

Buffer: TypeAlias = bytes | bytearray | memoryview
"""A message. Large arrays decoded from a message can share its memory."""

MAX_MESSAGE_BYTES = 128 << 20
"""The default maximum size of a received message after decompression, in bytes."""

Allocate: TypeAlias = Callable[[int], memoryview]
"""A function that returns writable memory of a given size, in bytes, for a message.

The decoder provides this function, because it knows the alignment of a message's contents.
"""


Exchange: TypeAlias = Callable[
    [bytes, Callable[[Any], bool], Any, threading.Lock, bool], Buffer | None
]
"""A function that sends a message and receives the next one; see `Stream.exchange`."""


def plain_memory(size: int) -> memoryview:
    """Return memory with no particular alignment."""
    return memoryview(bytearray(size))


class SharedSocket(Protocol):
    """A socket shared by several streams, which is polled instead of the individual streams."""

    def take_unread(self) -> Iterable[int]:
        """Receive the bytes that have arrived, without waiting.

        Returns:
          The numbers of the streams that have received a message or ended since the last call,
          including streams whose message was read meanwhile.
        """


class Stream(Protocol):
    """An open stream for threads; one thread at a time can write, and one at a time can read.

    Writing does not wait for the server. Otherwise, a client that writes everything before it
    reads would deadlock, because a server stops reading while its answers are not read.
    """

    address: str
    """The name of the server in error messages."""

    @property
    def exchange(self) -> Exchange | None:
        """The function that sends a message and receives the next one if no request is in flight.

        Only the reading thread may call it. It takes five arguments: the message; a function
        called just before the message is sent, which returns False to prevent sending; the
        argument of this function; the write lock, held until the message is sent; and whether to
        return within about a second, because of a deadline. It returns the received message, or
        None in any unusual case. The caller then sends the message with `write`, unless the
        function has returned True, and waits for the next one with `read`.

        The property is None if the transport does not provide this function, or does not provide
        it yet.
        """
        return None

    def write(self, *messages: bytes) -> bool:
        """Send messages together. If this fails, `read` raises the error.

        Returns:
          The result of `has_unsent` afterwards.
        """

    def keep_alive(self, seconds: KeepaliveSeconds) -> None:
        """Set the function that returns how long the server may show no sign of life, in seconds.

        It is called about once a second while an answer is awaited. A stream on a channel of the
        caller ignores it, because the channel has its own options.
        """

    def has_unsent(self) -> bool:
        """Whether written bytes are still unsent because the server is not receiving.

        `read` and `send_rest` send these bytes.
        """

    def send_rest(self, timeout: float) -> None:
        """Send as many of the unsent bytes as possible within `timeout` seconds.

        A writing thread calls this method while another thread reads.
        """

    def read(self, timeout: float | None, until_sent: bool = False) -> Buffer | None:
        """Return the next message, in memory that the caller owns.

        Args:
          timeout: the time to wait, in seconds, 0 to return immediately, or None for no limit.
          until_sent: whether to return as soon as there are no unsent bytes.

        Returns:
          The message, or None if none was received in time.

        Raises:
          ConnectionLostError: the stream has ended.
          ProtocolError: the peer is not a dm_env_rpc server.
          Every later call raises the same error.
        """

    def has_unread(self) -> bool:
        """Whether `read(0)` would return a message or raise an error."""

    def shared_socket(self) -> tuple[SharedSocket, int] | None:
        """Return the shared socket and the stream's number on it, or None if it is not shared."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when `has_unread` might be true.

        Call `has_unread` or `read(0)` first, and wait for the descriptor only if there is nothing
        to read, because the descriptor does not report messages that were already received. The
        result is -1 if this side closed the stream.
        """

    def finish(self) -> None:
        """Tell the server, without waiting, that no more requests follow. Can be repeated."""

    def close(self, timeout: float) -> None:
        """Finish the stream, wait for its end, and release all resources.

        The method takes up to about `timeout` seconds, then cancels the stream. It never raises an
        error.
        """

    def abandon(self) -> None:
        """Free a forked child's copy of all resources, without the peer noticing.

        Afterwards `has_unread` is true and `fileno` is -1. Locks may be held by threads that do
        not exist in the child.
        """

    def abort(self) -> None:
        """End the stream without waiting. A blocked `read` raises an error."""


class AsyncStream(Protocol):
    """An open stream for an event loop that watches the stream's descriptor. No method blocks."""

    address: str
    """The name of the server in error messages."""

    def fileno(self) -> int:
        """Return the descriptor, which changes if the function from `opening_again` is called."""

    def events(self) -> int:
        """Return the events to watch the descriptor for: `select.POLLIN`, `select.POLLOUT` or both.

        The result is 0 if the stream waits for something else. The caller must then poll again
        shortly.
        """

    def receive(self) -> bool:
        """Send and receive without waiting, handling a large message in parts.

        Returns:
          Whether more data is available that the descriptor does not report.
        """

    def has_unread(self) -> bool:
        """Whether `receive` and `take` would return a message or the end of the stream."""

    def take(self) -> Buffer | None:
        """Return the next received message, or None if there is none.

        Raises:
          As `Stream.read`.
        """

    def write(self, message: bytes, /) -> object:
        """Send as much of a message as possible now. If this fails, `take` raises the error."""

    def keep_alive(self, seconds: KeepaliveSeconds) -> None:
        """Set how long the server may show no sign of life, as `Stream.keep_alive` does."""

    def look(self) -> None:
        """Check whether the server is silent. Call this once a second while waiting for an answer.

        Raises:
          ConnectionLostError: the server was silent for too long. `take` then raises this error,
            too.
        """
        return

    def opening_again(self) -> Callable[[], Awaitable[None]] | None:
        """Return a function that continues the stream on another connection after an error.

        If the function cannot connect, it raises the same errors as `take`. The result is None if
        the stream cannot continue.
        """
        return None

    def finish(self) -> None:
        """Tell the server, without waiting, that no more requests follow."""

    def abandon(self) -> None:
        """Free a forked child's copy of all resources, as `Stream.abandon` does."""

    def abort(self) -> None:
        """End the stream without waiting, as `Stream.abort` does."""

    async def closed(self) -> None:
        """Wait until all resources are released after `abort`."""
        return
