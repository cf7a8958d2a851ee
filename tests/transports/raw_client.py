"""A client that sends whatever bytes a test wants, and understands what comes back."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable

import hpack

from tests.support.stopwatch import patience
from tests.transports import frames
from tests.transports.frames import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    Frame,
    frame,
    grpc_message,
    next_frame,
)

REQUEST = frames.REQUEST


def request(stream: int, *more: tuple[str, str], flags: int = END_HEADERS) -> bytes:
    """The headers of a call, in a block that uses no table."""
    block = hpack.Encoder().encode([(*pair, True) for pair in (*REQUEST, *more)])
    return frame(HEADERS, block, flags, stream)


def requests(stream: int, *messages: bytes, end: bool = False) -> bytes:
    """Messages in a frame each."""
    return b"".join(
        frame(DATA, grpc_message(message), END_STREAM if end and index == 0 else 0, stream)
        for index, message in reversed(list(enumerate(reversed(messages))))
    )


class RawClient:
    """A connection to a server on this machine.

    Args:
      address: of the server.
      greets: whether the preface and SETTINGS are sent.
      window: the client's window for each stream; None for the default.
    """

    def __init__(self, address: str, greets: bool = True, window: int | None = None):
        port = int(address.rpartition(":")[2])
        self.socket = socket.create_connection(("127.0.0.1", port), 10)
        self.frames: list[Frame] = []
        self.is_over = False
        self._unparsed = b""
        if greets:
            self.send(
                PREFACE
                + (frames.settings(window=window) if window is not None else frames.settings())
            )

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def send(self, contents: bytes) -> bool:
        """Sends bytes; False if the server has closed the connection."""
        try:
            self.socket.sendall(contents)
        except OSError:
            return False
        return True

    def begin(self, stream: int = 1) -> None:
        """Opens a stream to a `Host`, and waits for an answer on it."""
        self.send(request(stream) + requests(stream, b"echo:x"))
        assert self.read_until(lambda: self.answers(stream) == [b"x"])

    def read(self, seconds: float) -> bool:
        """Receives something; False if nothing came."""
        self.socket.settimeout(max(seconds, 0.001))
        try:
            received = self.socket.recv(1 << 18)
        except TimeoutError:
            return False
        except OSError:
            received = b""
        finally:
            with contextlib.suppress(OSError):
                self.socket.settimeout(10)
        if not received:
            self.is_over = True
            return False
        self._unparsed += received
        while taken := next_frame(self._unparsed):
            self.frames.append(taken[0])
            self._unparsed = taken[1]
        return True

    def read_until(self, condition: Callable[[], bool], seconds: float = 10.0) -> bool:
        """Receives until a condition holds; False if the connection or the time is over."""
        deadline = time.monotonic() + patience(seconds)
        while not condition():
            remaining = deadline - time.monotonic()
            if self.is_over or remaining <= 0:
                return condition()
            self.read(remaining)
        return True

    def read_to_the_end(self, seconds: float = 10.0) -> bool:
        """Receives until the server closes the connection; False if it does not."""
        self.read_until(lambda: self.is_over, seconds)
        return self.is_over

    def found(self, kind: int, stream: int | None = None, flags: int = 0) -> list[Frame]:
        """Frames of a kind that have come."""
        return [
            one
            for one in self.frames
            if one.kind == kind
            and one.flags & flags == flags
            and (stream is None or one.stream == stream)
        ]

    def ping(self, seconds: float = 10.0) -> bool:
        """Whether the server answers a PING."""
        before = len(self.found(PING, 0, ACK))
        self.send(frame(PING, b"are you?"))
        return self.read_until(lambda: len(self.found(PING, 0, ACK)) > before, seconds)

    def answers(self, stream: int) -> list[bytes]:
        """The messages that have come on a stream."""
        content = b"".join(one.payload for one in self.found(DATA, stream))
        found = []
        while len(content) >= 5:
            (size,) = struct.unpack(">I", content[1:5])
            if len(content) < 5 + size:
                break
            found.append(content[5 : 5 + size])
            content = content[5 + size :]
        return found

    def status(self, stream: int) -> str:
        """The grpc-status of a stream that has ended; "" if it has not."""
        ends = self.found(HEADERS, stream, END_STREAM)
        if not ends:
            return ""
        fields = {str(key): str(value) for key, value in hpack.Decoder().decode(ends[0].payload)}
        return fields.get("grpc-status", fields.get(":status", ""))

    def goaway_code(self) -> int | None:
        """The error code of the GOAWAY that has come."""
        found = self.found(GOAWAY)
        return struct.unpack(">II", found[-1].payload[:8])[1] if found else None

    def reset_code(self, stream: int) -> int | None:
        """The error code with which the server has reset a stream."""
        found = self.found(RST_STREAM, stream)
        return int(struct.unpack(">I", found[-1].payload)[0]) if found else None

    @property
    def is_greeted(self) -> bool:
        return bool(self.found(SETTINGS))
