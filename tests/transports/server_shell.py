"""A server's half of a connection with a shell around it, and what clients send to it."""

from __future__ import annotations

from typing import Any

import hpack

from dm_env_rpc_client.transports.http2.protocol.server_half import Event, ServerCall, ServerHalf
from dm_env_rpc_client.transports.streams import plain_memory
from tests.transports import frames
from tests.transports.frames import frame, reset
from tests.transports.raw_client import request

LIMIT = 1 << 20
BEGIN = frames.PREFACE + frames.settings() + frame(frames.SETTINGS, flags=frames.ACK)
OPEN = BEGIN + request(1)
HALF_CLOSED = OPEN + frame(frames.DATA, b"", frames.END_STREAM, 1)
RESET = OPEN + reset(1)


def headers(
    *pairs: tuple[str | bytes, str | bytes], stream: int = 1, flags: int = frames.END_HEADERS
) -> bytes:
    block = hpack.Encoder().encode([(name, value, True) for name, value in pairs])
    return frame(frames.HEADERS, block, flags, stream)


class Server:
    """A half, and a shell that answers each message with twice its bytes."""

    def __init__(self, answers: bool = True, max_streams: int = 10):
        self.half = ServerHalf("the client here", LIMIT, max_streams, plain_memory)
        self.framing = self.half.framing
        self.answers = answers
        self.happened: list[tuple[int, Any]] = []
        self.metadata: list[Any] = []
        self.calls: dict[int, ServerCall] = {}
        self.outbound = b""

    def feed(self, contents: bytes, size: int = 1 << 20) -> None:
        for start in range(0, len(contents), size):
            self._feed(contents[start : start + size])
            self.happen()

    def _feed(self, contents: bytes) -> None:
        while contents and self.framing.failure is None:
            contents = frames.received(self.framing, contents)
            while self.framing.is_behind:
                self.framing.go_on()

    def happen(self) -> None:
        while self.half.events:
            call, what = self.half.events.popleft()
            self.happened.append((call.number, what if isinstance(what, Event) else bytes(what)))
            if what is Event.OPENED:
                self.metadata.append(call.metadata)
                self.calls[call.number] = call
            elif what is Event.ENDED and self.answers:
                call.finish("OK")
            elif self.answers and not isinstance(what, Event):
                call.send(bytes(what) * 2)

    def take_outbound(self) -> bytes:
        outbound = self.framing.sending.outbound
        said = b"".join(map(bytes, outbound))
        outbound.clear()
        self.outbound += said
        return said

    def said(self, kind: int | None = None) -> list[frames.Frame]:
        """The frames that were sent, of one kind or all."""
        self.take_outbound()
        found = frames.taken_apart(self.outbound)
        return [one for one in found if kind in (None, one.kind)]

    def of_stream(self, number: int) -> list[Any]:
        """What happened on a stream."""
        return [what for stream, what in self.happened if stream == number]

    def messages(self) -> list[bytes]:
        return [what for _, what in self.happened if isinstance(what, bytes)]
