"""The server's half of a connection, without I/O: one gRPC call for each stream.

The shell talks to `ServerHalf.framing` in bytes, takes what happened from `ServerHalf.events` and
answers with the methods of `ServerCall`. Section numbers are those of RFC 9113.
"""

from __future__ import annotations

import base64
import binascii
import collections
import enum
import urllib.parse
from typing import Any, NamedTuple, TypeAlias

import hpack

from dm_env_rpc_client.errors import DmEnvRpcClientError, ProtocolError
from dm_env_rpc_client.transports.http2.frames import (
    CANCEL,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FIRST_WINDOW,
    INITIAL_WINDOW_SIZE,
    LARGEST_FRAME,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    PREFACE,
    REFUSED_STREAM,
    STREAM_CLOSED,
    goaway,
    header_frames,
    rst_stream,
    settings_frame,
    window_update,
)
from dm_env_rpc_client.transports.http2.framing import Framing
from dm_env_rpc_client.transports.http2.header_block import MAX_HEADER_BYTES, Header
from dm_env_rpc_client.transports.http2.message_assembler import MessageAssembler
from dm_env_rpc_client.transports.http2.violations import RefusedMessageError, ViolationError
from dm_env_rpc_client.transports.status import GRPC_CODES
from dm_env_rpc_client.transports.streams import Allocate

__all__ = ["Event", "Happening", "ServerCall", "ServerHalf"]

CONNECTION_WINDOW = 1 << 24
"""Content that a client may send ahead on a connection."""

STREAM_WINDOW = 1 << 20
"""Content that a client may send ahead on a stream, before earlier messages are answered."""

_GREETED = {
    INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    MAX_FRAME_SIZE: LARGEST_FRAME,
    MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
}

_MAX_UNREWARDED = 200
"""Streams that a client may have opened and reset, or that were refused, beyond the number of its
messages that were answered: rapid resets cost the client nothing, but the server."""

_REMEMBERED = 1000
"""Streams that were reset by this end, on which frames may still be under way."""

_FORBIDDEN = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
}
"""Headers that are about a connection of HTTP/1 (section 8.2.2)."""

_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_UPPER = frozenset(range(ord("A"), ord("Z") + 1))

_RESPONSE: list[tuple[str, str]] = [(":status", "200"), ("content-type", "application/grpc")]
_RESPONSE_BLOCK = hpack.Encoder().encode(_RESPONSE)
# An encoder of its own for each: blocks that refer to no earlier one need no order.


class Event(enum.Enum):
    """What happened on a stream, other than a message."""

    OPENED = "opened"
    ENDED = "the client sends no more"
    GONE = "the client has reset the stream, or its connection is over"


class Happening(NamedTuple):
    """A message, or something else that happened on a stream."""

    call: ServerCall
    what: Event | bytearray | memoryview


class _Inbox:
    """Puts the messages of a call among the events of its connection."""

    __slots__ = ("_call", "_events")

    def __init__(self, call: ServerCall, events: collections.deque[Happening]):
        self._call = call
        self._events = events

    def append(self, message: bytearray | memoryview, /) -> None:
        self._events.append(Happening(self._call, message))


class ServerCall:
    """One call of a client.

    Attributes:
      number: the number of its stream.
      path: the method that is called.
      metadata: the client's headers that are no part of HTTP/2 or gRPC.
      has_ended: whether the client sends no more.
      is_over: whether nothing more is sent.
      shell: what the shell keeps of it.
    """

    __slots__ = (
        "_half",
        "_has_headers",
        "_sending",
        "assembler",
        "expected",
        "has_ended",
        "is_over",
        "metadata",
        "number",
        "path",
        "shell",
    )

    def __init__(
        self,
        half: ServerHalf,
        number: int,
        path: str,
        metadata: tuple[tuple[str, str | bytes], ...],
        assembler: MessageAssembler,
    ):
        self.number = number
        self.path = path
        self.metadata = metadata
        self.assembler = assembler
        self.has_ended = self.is_over = False
        self.shell: Any = None
        self.expected: int | None = None
        self._half = half
        self._has_headers = False
        self._sending = half.framing.open(number, assembler)

    def send(self, message: bytes) -> None:
        """Queues an answer; nothing if the call is over."""
        if self.is_over:
            return
        if not self._has_headers:
            self._has_headers = True
            self._half.framing.sending.outbound.append(header_frames(_RESPONSE_BLOCK, self.number))
        self._half.reward()
        self._sending.send(message)

    @property
    def has_unsent(self) -> bool:
        """Whether an answer waits for the client to open a window."""
        return self.number in self._half.framing.sending.blocked

    def hold(self, is_held: bool) -> None:
        """Stops the client from sending more than a window ahead, or goes on."""
        assembler = self.assembler
        if assembler.is_held is not is_held:
            assembler.is_held = is_held
            if not is_held and not self.is_over and not self.has_ended:
                self._half.framing.acknowledge(self.number, assembler)

    def finish(self, code: str, details: str = "") -> None:
        """Queues the trailers, behind all answers; a second call does nothing.

        Args:
          code: the name of the gRPC status.
          details: a text for the client.
        """
        if self.is_over:
            return
        self.is_over = True
        trailers = [("grpc-status", str(GRPC_CODES.index(code)))]
        if details:
            trailers.append(("grpc-message", urllib.parse.quote(details, safe=" !#$&'()*+,/:;=?@")))
        block = hpack.Encoder().encode(trailers if self._has_headers else [*_RESPONSE, *trailers])
        self._end(header_frames(block, self.number, END_STREAM))

    def refuse(self, status: str) -> None:
        """Queues an HTTP status for what is not a gRPC call."""
        self.is_over = True
        block = hpack.Encoder().encode([(":status", status)])
        self._end(header_frames(block, self.number, END_STREAM))

    def reset(self, code: int = CANCEL) -> None:
        """Queues the end of the stream, without its answers."""
        self.is_over = True
        self._half.reset(self, code)

    def _end(self, frames: bytes) -> None:
        half = self._half

        def last() -> bytes:
            half.forget(self)
            # The client may stop sending (section 8.1).
            return frames if self.has_ended else frames + rst_stream(self.number, NO_ERROR)

        self._sending.end(last)


class ServerHalf:
    """The server's `Role`.

    Args:
      client: what messages call the client.
      max_message_bytes: the largest message that is accepted.
      max_streams: how many streams there may be at a time.
      allocate: gives the memory for large messages.

    Attributes:
      framing: the connection.
      events: what happened, oldest first; the shell takes it.
      calls: those that are not over, by the number of their stream.
      last_stream: the last stream that the client has opened.
    """

    def __init__(self, client: str, max_message_bytes: int, max_streams: int, allocate: Allocate):
        greeting = settings_frame({MAX_CONCURRENT_STREAMS: max_streams, **_GREETED})
        greeting += window_update(0, CONNECTION_WINDOW - FIRST_WINDOW)
        self.framing: Framing = Framing(self, greeting, CONNECTION_WINDOW, PREFACE)
        self.events: collections.deque[Happening] = collections.deque()
        self.calls: dict[int, ServerCall] = {}
        self.last_stream = 0
        self._client = client
        self._max_message_bytes = max_message_bytes
        self._max_streams = max_streams
        self._allocate = allocate
        self._reset: collections.OrderedDict[int, None] = collections.OrderedDict()
        self._unrewarded = 0
        self._is_leaving = False

    def reward(self) -> None:
        """Counts an answer: the client does not only open streams."""
        if self._unrewarded:
            self._unrewarded -= 1

    def leave(self) -> None:
        """Queues GOAWAY: streams that are open may go on, new ones are refused."""
        self._is_leaving = True
        self.framing.sending.outbound.append(goaway(self.last_stream, NO_ERROR))

    def reset(self, call: ServerCall, code: int) -> None:
        """Queues RST_STREAM for a call."""
        if self.calls.get(call.number) is call:
            self.framing.sending.outbound.append(rst_stream(call.number, code))
            self._remember(call.number)
            self.forget(call)

    def forget(self, call: ServerCall) -> None:
        """Forgets a call that is over."""
        if self.calls.pop(call.number, None) is not None:
            if not call.has_ended:
                self._remember(call.number)
            self.framing.drop(call.number)

    # The role: what the client sends.

    def take_headers(self, stream: int, headers: list[Header], ends_stream: bool) -> None:
        """See `Role.take_headers`: the headers of a request, or its trailers."""
        if not stream & 1:
            raise ViolationError(f"sent HEADERS on stream {stream}")
        call = self.calls.get(stream)
        if call is not None:
            self._take_trailers(call, headers, ends_stream)
            return
        if stream <= self.last_stream:
            if stream in self._reset:
                return
            raise ViolationError(f"sent HEADERS on stream {stream}, which is over", STREAM_CLOSED)
        self.last_stream = stream
        request = _Request.of(headers, stream)
        if self._is_leaving or len(self.calls) >= self._max_streams:
            self._remember(stream)
            self._count_unrewarded()
            self.framing.sending.outbound.append(rst_stream(stream, REFUSED_STREAM))
            return
        call = self._open(stream, request)
        self.events.append(Happening(call, Event.OPENED))
        if ends_stream:
            self.end_content(stream)

    def end_content(self, stream: int) -> None:
        """See `Role.end_content`."""
        call = self.calls.get(stream)
        if call is None or call.has_ended:
            return
        if call.assembler.is_in_message:
            raise ViolationError("ended the stream in the middle of a message", stream=stream)
        counted = call.assembler
        if isinstance(counted, _CountedAssembler) and counted.count != call.expected:
            raise ViolationError("sent less content than announced", stream=stream)
        call.has_ended = True
        self.framing.receiving.pop(stream, None)
        self.events.append(Happening(call, Event.ENDED))

    def check_stream(self, stream: int, kind: str) -> None:
        """See `Role.check_stream`."""
        if not stream & 1 or stream > self.last_stream:
            raise ViolationError(f"sent {kind} on stream {stream}, which is not open")
        if kind == "DATA" and stream not in self._reset:
            # It has ended its half (section 5.1).
            raise ViolationError(
                f"sent {kind} on stream {stream}, which is over", STREAM_CLOSED, stream
            )

    def end_stream(self, stream: int, code: int) -> None:
        """See `Role.end_stream`."""
        if not stream & 1 or stream > self.last_stream:
            raise ViolationError(f"sent RST_STREAM on stream {stream}, which is not open")
        call = self.calls.get(stream)
        if call is not None:
            self._count_unrewarded()
            self._end(call)

    def refuse_message(self, stream: int, error: RefusedMessageError) -> None:
        """See `Role.refuse_message`."""
        call = self.calls[stream]
        self.framing.drop_content(stream)
        self.events.append(Happening(call, Event.GONE))
        call.finish(error.code, f"the client {error.what}")

    def go_away(self, last_stream: int, code: int, text: str) -> None:
        """See `Role.go_away`: a client that goes says so, and its streams go on."""

    def begin(self, first: bytes) -> None:
        """See `Role.begin`: whatever connects is not an HTTP/2 client."""
        raise ProtocolError(f"{self._client} does not speak HTTP/2: it began with {first[:60]!r}")

    def break_stream(self, violation: ViolationError) -> None:
        """See `Role.break_stream`."""
        self._remember(violation.stream)
        self._count_unrewarded()
        call = self.calls.get(violation.stream)
        if call is not None:
            self._end(call)

    def violated(self, violation: ViolationError) -> DmEnvRpcClientError:
        """See `Role.violated`."""
        return ProtocolError(f"{self._client} broke HTTP/2: it {violation.what}")

    def close(self, unparsed: bytes) -> DmEnvRpcClientError:
        """See `Role.close`."""
        return ProtocolError(f"{self._client} closed the connection")

    def fail(self, error: DmEnvRpcClientError) -> None:
        """See `Role.fail`."""
        for call in list(self.calls.values()):
            self._end(call)

    def _open(self, stream: int, request: _Request) -> ServerCall:
        events = self.events
        kind = MessageAssembler if request.length is None else _CountedAssembler
        # The inbox knows the call, which knows the assembler, which knows the inbox.
        assembler = kind(self._max_message_bytes, self._allocate, STREAM_WINDOW)
        call = self.calls[stream] = ServerCall(
            self, stream, request.path, request.metadata, assembler
        )
        call.expected = request.length
        assembler.messages = _Inbox(call, events)
        if request.refusal:
            call.refuse(request.refusal)
        return call

    def _take_trailers(self, call: ServerCall, headers: list[Header], ends_stream: bool) -> None:
        if call.has_ended:
            raise ViolationError("sent HEADERS after END_STREAM", STREAM_CLOSED, call.number)
        if not ends_stream:
            raise ViolationError("sent a second request", stream=call.number)
        if any(name.startswith(b":") for name, _ in headers):
            raise ViolationError("sent pseudo-headers in trailers", stream=call.number)
        self.end_content(call.number)

    def _end(self, call: ServerCall) -> None:
        call.is_over = True
        self.events.append(Happening(call, Event.GONE))
        self._remember(call.number)
        self.forget(call)

    def _remember(self, stream: int) -> None:
        self._reset[stream] = None
        if len(self._reset) > _REMEMBERED:
            self._reset.popitem(last=False)

    def _count_unrewarded(self) -> None:
        self._unrewarded += 1
        if self._unrewarded > _MAX_UNREWARDED:
            raise ViolationError(
                f"opened and reset more than {_MAX_UNREWARDED} streams", ENHANCE_YOUR_CALM
            )


class _CountedAssembler(MessageAssembler):
    """For requests that announce their length, which those of gRPC do not."""

    def __init__(self, max_message_bytes: int, allocate: Allocate, window: int):
        super().__init__(max_message_bytes, allocate, window)
        self.count = 0

    def take_whole(self, memory: memoryview, start: int, size: int) -> bool:
        return False

    def take(self, memory: memoryview, start: int, stop: int) -> None:
        self.count += stop - start
        super().take(memory, start, stop)

    def direct(self, most: int) -> memoryview | None:
        return None


Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]


class _Request(NamedTuple):
    """The headers of a request."""

    path: str
    metadata: Metadata
    length: int | None
    """The announced length of the content."""

    refusal: str
    """The HTTP status for what is not a gRPC call; "" for gRPC."""

    @classmethod
    def of(cls, headers: list[Header], stream: int) -> _Request:
        """Checks headers (section 8); ViolationError if they are malformed."""
        pseudo: dict[bytes, bytes] = {}
        regular: list[Header] = []
        for name, value in headers:
            if not name or not _UPPER.isdisjoint(name):
                raise ViolationError(f"sent the header name {name!r}", stream=stream)
            if name.startswith(b":"):
                if regular or name in pseudo or name not in _PSEUDO:
                    raise ViolationError(f"sent {name!r} where it must not be", stream=stream)
                pseudo[name] = value
            elif name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
                raise ViolationError(f"sent the header {name!r}", stream=stream)
            elif b"\0" in value or b"\r" in value or b"\n" in value:
                raise ViolationError(f"sent a header {name!r} of several lines", stream=stream)
            else:
                regular.append((name, value))
        fields = dict(regular)
        method = pseudo.get(b":method", b"")
        path = pseudo.get(b":path", b"")
        if not method or not path or not pseudo.get(b":scheme"):
            raise ViolationError("sent a request without its pseudo-headers", stream=stream)
        refusal = ""
        if method != b"POST":
            refusal = "405"
        elif not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            refusal = "415"
        return cls(path.decode("latin-1"), _metadata(regular), _length(fields, stream), refusal)


def _length(fields: dict[bytes, bytes], stream: int) -> int | None:
    given = fields.get(b"content-length")
    if given is None:
        return None
    if not given.isdigit() or len(given) > 18:
        raise ViolationError("sent a broken content-length", stream=stream)
    return int(given)


_OF_GRPC = {b"te", b"content-type", b"user-agent", b"content-length"}


def _metadata(headers: list[Header]) -> Metadata:
    found: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name in _OF_GRPC or name.startswith(b"grpc-"):
            continue
        key = name.decode("latin-1")
        if key.endswith("-bin"):
            try:
                padded = value + b"=" * (-len(value) % 4)
                found.append((key, base64.b64decode(padded, validate=True)))
            except binascii.Error:
                continue
        else:
            found.append((key, value.decode("latin-1")))
    return tuple(found)
