"""Ways of carrying the stream of serialized messages.

A transport moves whole messages in order and knows nothing of what is in them. Together
with the server's hosting file, the files in this folder are the only ones that import
grpc or socket.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["AsyncStream", "Stream"]


class Stream(Protocol):
    """One open stream, for threads. One thread at a time writes, one at a time reads."""

    address: str
    """What error messages call the other end."""

    def write(self, message: bytes) -> None:
        """Sends a message. An error that it meets comes out of `read`."""

    def read(self, timeout: float | None) -> bytes | None:
        """Returns the next message.

        Args:
          timeout: seconds to wait; None for ever, 0 for a look.

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

    def abort(self) -> None:
        """Ends the stream at once, without waiting. A blocked `read` raises."""


class AsyncStream(Protocol):
    """One open stream, for coroutines of one event loop."""

    address: str
    """What error messages call the other end."""

    async def write(self, message: bytes) -> None:
        """Sends a message. An error that it meets comes out of `read`."""

    async def read(self) -> bytes:
        """Returns the next message; raises as `Stream.read` does."""

    async def close(self, timeout: float) -> None:
        """As `Stream.close`."""

    def abort(self) -> None:
        """As `Stream.abort`."""
