"""What a client sends on its one stream: messages in frames, as far as the windows allow.

Nothing here waits. What the windows do not take yet is kept, and put into frames when they
open (section 5.2 of RFC 9113).
"""

from __future__ import annotations

import collections
from typing import TypeAlias

from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.transports.http2.frames import (
    DATA,
    END_STREAM,
    FIRST_WINDOW,
    MAX_WINDOW,
    MESSAGE_PREFIX,
    PING,
    SMALLEST_MAX_FRAME,
    STREAM,
    frame,
    frame_header,
)

__all__ = ["SendingHalf"]

Outbound: TypeAlias = bytes | memoryview


class SendingHalf:
    """The part of `Framing` that sends.

    Attributes:
      outbound: what to send, in order; the shell calls `sent` for what it has sent.
      submissions: how many messages were queued.
    """

    def __init__(self, address: str) -> None:
        self.outbound: collections.deque[Outbound] = collections.deque()
        self.submissions = 0
        self._address = address
        self._unframed: collections.deque[memoryview] = collections.deque()
        self._ends_after_unframed = False
        self._has_ended = False
        self._max_frame = SMALLEST_MAX_FRAME
        self._connection_window = FIRST_WINDOW
        self._stream_window = FIRST_WINDOW
        self._initial_window = FIRST_WINDOW

    @property
    def has_unsent(self) -> bool:
        """Whether something waits to be sent, be it for the socket or for the window."""
        return bool(self.outbound or self._unframed)

    def send(self, message: bytes) -> None:
        """Queues a message."""
        self.submissions += 1
        size = len(message)
        total = size + 5
        if not self._unframed and total <= min(
            self._max_frame, self._connection_window, self._stream_window
        ):
            self._connection_window -= total
            self._stream_window -= total
            self.outbound.append(
                frame_header(total, DATA, 0, STREAM) + MESSAGE_PREFIX.pack(0, size) + message
            )
            return
        self._unframed.append(memoryview(MESSAGE_PREFIX.pack(0, size)))
        self._unframed.append(memoryview(message))
        self._frame_data()

    def end(self) -> None:
        """Queues the end of the client's half: no more messages come."""
        if self._has_ended or self._ends_after_unframed:
            return
        self._ends_after_unframed = True
        self._frame_data()

    def ping(self) -> None:
        """Queues a question that the other end answers at once if it is there at all."""
        self.outbound.append(frame(PING, 0, 0, bytes(8)))

    def sent(self, count: int) -> None:
        """Takes note that the first `count` bytes of `outbound` have been sent."""
        outbound = self.outbound
        while count:
            first = outbound[0]
            size = len(first)
            if count < size:
                outbound[0] = memoryview(first)[count:]
                return
            outbound.popleft()
            count -= size

    def _frame_data(self) -> None:
        """Puts into frames what the windows and the largest frame allow (section 5.2)."""
        unframed = self._unframed
        while unframed:
            room = min(self._max_frame, self._connection_window, self._stream_window)
            if room <= 0:
                return
            parts: list[memoryview] = []
            size = 0
            while unframed and size < room:
                first = unframed[0]
                part = first[: room - size]
                size += len(part)
                parts.append(part)
                if len(part) == len(first):
                    unframed.popleft()
                else:
                    unframed[0] = first[len(part) :]
            self._connection_window -= size
            self._stream_window -= size
            self.outbound.append(frame_header(size, DATA, 0, STREAM))
            self.outbound.extend(parts)
        if self._ends_after_unframed and not self._has_ended:
            self._has_ended = True
            self.outbound.append(frame(DATA, END_STREAM, STREAM))

    def _open_window(self, stream: int, increment: int) -> None:
        """Takes note that more may be sent (section 6.9)."""
        if stream == STREAM:
            self._stream_window += increment
        elif stream == 0:
            self._connection_window += increment
        else:
            raise self._broken(f"sent WINDOW_UPDATE for stream {stream}")
        if (
            not increment
            or self._stream_window > MAX_WINDOW
            or self._connection_window > MAX_WINDOW
        ):
            raise self._broken(f"changed a window by {increment}")
        if self._unframed or self._ends_after_unframed:
            self._frame_data()

    def _broken(self, what: str) -> ProtocolError:
        return ProtocolError(f"the server at {self._address} broke HTTP/2: it {what}")
