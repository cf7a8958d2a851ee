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
from tests.transports.frames import data, frame, grpc_message, next_frame

REQUEST = frames.REQUEST


def request(stream: int, *more: tuple[str, str], flags: int = frames.END_HEADERS) -> bytes:
    """The headers of a call, in a block that uses no table."""
    block = hpack.Encoder().encode([(*pair, True) for pair in (*REQUEST, *more)])
    return frame(frames.HEADERS, block, flags, stream)


def requests(stream: int, *messages: bytes, end: bool = False) -> bytes:
    """Messages in a frame each."""
    contents = [grpc_message(message) for message in messages]
    last = data(contents.pop(), frames.END_STREAM if end else 0, stream)
    return b"".join(data(each, 0, stream) for each in contents) + last


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
        self.frames: list[frames.Frame] = []
        self.is_over = False
        self._unparsed = b""
        if greets:
            values = {} if window is None else {"window": window}
            self.send(frames.PREFACE + frames.settings(**values))

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

    def found(self, kind: int, stream: int | None = None, flags: int = 0) -> list[frames.Frame]:
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
        before = self.found(frames.PING, 0, frames.ACK)
        self.send(frame(frames.PING, b"are you?"))
        return self.read_until(lambda: self.found(frames.PING, 0, frames.ACK) != before, seconds)

    def answers(self, stream: int) -> list[bytes]:
        """The messages that have come on a stream."""
        content = b"".join(one.payload for one in self.found(frames.DATA, stream))
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
        ends = self.found(frames.HEADERS, stream, frames.END_STREAM)
        if not ends:
            return ""
        fields = {str(key): str(value) for key, value in hpack.Decoder().decode(ends[0].payload)}
        return fields.get("grpc-status", fields.get(":status", ""))

    def goaway_code(self) -> int | None:
        """The error code of the GOAWAY that has come."""
        found = self.found(frames.GOAWAY)
        return struct.unpack(">II", found[-1].payload[:8])[1] if found else None

    def reset_code(self, stream: int) -> int | None:
        """The error code with which the server has reset a stream."""
        found = self.found(frames.RST_STREAM, stream)
        return int(struct.unpack(">I", found[-1].payload)[0]) if found else None

    @property
    def is_greeted(self) -> bool:
        return bool(self.found(frames.SETTINGS))
