"""The server's half of an HTTP/2 connection, without I/O, with one gRPC call per stream.

The caller, which does the I/O, exchanges bytes with `ServerHalf.framing`, takes events from
`ServerHalf.events`, and answers with the methods of `ServerCall`. Section numbers refer to
RFC 9113.
"""

from __future__ import annotations

import collections
import enum
from typing import Any, TypeAlias

from dm_env_rpc_client.errors import DmEnvRpcClientError, ProtocolError
from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.frames import (
    Header,
    RefusedMessageError,
    Role,
    ViolationError,
    spoken,
)
from dm_env_rpc_client.transports.http2.protocol.headers import (
    NO_TABLE,
    RESPONSE_BLOCK,
    Request,
    check_header,
    encode,
    trailers_block,
)
from dm_env_rpc_client.transports.http2.protocol.message_assembler import (
    CountedAssembler,
    MessageAssembler,
)
from dm_env_rpc_client.transports.http2.protocol.whole_messages import WholeMessageFraming
from dm_env_rpc_client.transports.streams import Allocate

CONNECTION_WINDOW = 1 << 24
"""The number of bytes of content that a client can send on a connection before they are read."""

STREAM_WINDOW = 1 << 20
"""The number of bytes that a client can send on a stream before earlier messages are answered."""

MAX_HEADER_BYTES = 1 << 14
"""The maximum size, in bytes, of a header block, both compressed and uncompressed. gRPC has the
same limit."""

_BUFFER_BYTES = 1 << 16
_FRAMES_AT_ONCE = 64
"""The number of frames parsed at a time. Parsing them takes about 200 us, so other clients do not
wait long."""

_GREETED = {
    frames.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
    frames.MAX_FRAME_SIZE: frames.LARGEST_FRAME,
    frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
}

_RESET_BUDGET = 200
"""The maximum number of a client's reset or refused streams. Each answered message on an accepted
stream offsets one of them. Rapid resets are free for a client but cost the server time."""

_HEADER_BYTES = 2048
"""The number of bytes of uncompressed headers that count as one more stream. Headers do not count
if the server accepts their stream. Decoding 14 KB of Huffman code takes as long as ten cheap
steps."""

_REPLENISHED_STREAMS = 20
_REPLENISHED_FRAMES = 100
"""How many streams and frames are refunded each second, to keep long-lived clients within
budget."""

_REMEMBERED = 1000
"""The maximum number of reset streams that the server remembers. Frames for such streams might
still be in flight."""


class Event(enum.Enum):
    """A stream event other than a received message."""

    OPENED = "opened"
    ENDED = "the client sends no more"
    GONE = "the client has reset the stream, or its connection is over"


Happening: TypeAlias = "tuple[ServerCall, Event | bytearray | memoryview]"
"""A call and what happened on its stream: either a received message or another event."""


class _Inbox:
    """An inbox that adds a call's messages to the events of its connection.

    The inbox does not refer to the call, so no reference cycle arises. The garbage collector would
    have to free the cycles of ended calls. For 100 streams that a client opens and leaves, it
    would take 2 ms, while other clients wait for their answers.
    """

    __slots__ = ("_calls", "_events", "_stream")

    def __init__(
        self, stream: int, calls: dict[int, ServerCall], events: collections.deque[Happening]
    ):
        self._stream = stream
        self._calls = calls
        self._events = events

    def append(self, message: bytearray | memoryview, /) -> None:
        call = self._calls.get(self._stream)
        if call is not None:
            self._events.append((call, message))


class ServerCall:
    """One gRPC call made by a client.

    Attributes:
      cost: the number of additional streams that the call's headers count as.
      number: the number of the call's stream.
      path: the path of the called method.
      metadata: the client's headers that are not part of HTTP/2 or gRPC.
      has_ended: whether the client has ended its half of the stream.
      is_accepted: whether the server has accepted the stream.
      is_over: whether nothing more is sent.
      shell: the state that the caller of this module associates with the call.
    """

    __slots__ = (
        "_half",
        "_has_headers",
        "_sending",
        "assembler",
        "cost",
        "has_ended",
        "is_accepted",
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
        self.has_ended = self.is_over = self.is_accepted = False
        self.cost = 0
        self.shell: Any = None
        self._half = half
        self._has_headers = False
        self._sending = half.framing.open(number, assembler)

    def accept(self) -> None:
        """Accept the stream, and refund its cost to the client's budget."""
        self.is_accepted = True
        self._half.refund(self.cost)

    def send(self, message: bytes) -> None:
        """Queue an answer, or do nothing if the call has ended."""
        if self.is_over:
            return
        # Response headers go with the first answer: one frame and often one system call less.
        if not self._has_headers:
            self._has_headers = True
            self._half.framing.sending.outbound.append(self._header_frames(RESPONSE_BLOCK, 0))
        # A client that gets answers is no attacker: each answer refunds a stream.
        if self._half.spent and self.is_accepted:
            self._half.refund(1)
        self._sending.send(message)

    def head(self, size: int) -> bytes | None:
        """Return the bytes that precede an answer of this size, or None if `send` must be used."""
        # These take the general way, which adds headers and refunds the budget.
        if self.is_over or not self._has_headers or self._half.spent:
            return None
        return self._sending.head(size)

    @property
    def has_unsent(self) -> bool:
        """Whether an answer waits for the client to open a window."""
        return self.number in self._half.framing.sending.blocked

    def hold(self, is_held: bool) -> None:
        """Keep the client's window closed, or let it open again."""
        assembler = self.assembler
        if assembler.is_held is not is_held:
            assembler.is_held = is_held
            # The window that was kept closed while requests waited.
            if not is_held and not self.is_over and not self.has_ended:
                self._half.framing.acknowledge(self.number, assembler)

    def finish(self, code: str, details: str = "") -> None:
        """Queue the trailers that follow all answers. A second call does nothing.

        Args:
          code: the name of the gRPC status.
          details: a message for the client.
        """
        if self.is_over:
            return
        self.is_over = True
        # An error without an answer costs the client one small request, and the server a stream.
        if not self._has_headers and code != "OK":
            self._half.charge()
        block = trailers_block(code, details, with_headers=not self._has_headers)
        self._end(self._header_frames(block, frames.END_STREAM))

    def refuse(self, status: str) -> None:
        """Queue an HTTP status for a request that is not a gRPC call."""
        self.is_over = True
        self._half.charge()
        self._end(self._header_frames(encode([(":status", status)]), frames.END_STREAM))

    def reset(self, code: int = frames.CANCEL) -> None:
        """Queue the end of the stream, and discard its unsent answers."""
        self.is_over = True
        self._half.reset(self, code)

    def _header_frames(self, block: bytes, flags: int) -> bytes:
        # Required by RFC 7541, section 4.2, of an encoder whose peer has limited the table.
        if self._half.framing.control.has_table_size:
            block = NO_TABLE + block
        return frames.header_frames(block, self.number, flags)

    def _end(self, ending: bytes) -> None:
        half = self._half
        # The client may stop sending (section 8.1).
        stop = frames.rst_stream(self.number, frames.NO_ERROR)

        def last() -> bytes:
            # When the trailers are framed, not when they are queued: the windows may still be
            # closed.
            half.forget(self)
            return ending if self.has_ended else ending + stop

        self._sending.end(last)


class ServerHalf(Role):
    """The server's `Role`.

    Args:
      client: the client's name in error messages.
      max_message_bytes: the size limit of a message, in bytes.
      max_streams: the maximum number of concurrent streams.
      allocate: a function that returns memory for a large message.

    Attributes:
      framing: the state of the connection.
      events: the events for the caller, oldest first.
      calls: the open calls, by stream number.
      last_stream: the number of the last stream that the client has opened.
      spent: the used part of the budget for rapid resets.
    """

    def __init__(
        self,
        client: str,
        max_message_bytes: int,
        max_streams: int,
        allocate: Allocate,
    ):
        greeted = {frames.MAX_CONCURRENT_STREAMS: max_streams, **_GREETED}
        greeting = frames.settings_frame(greeted)
        greeting += frames.window_update(0, CONNECTION_WINDOW - frames.FIRST_WINDOW)
        self.framing = WholeMessageFraming(
            self,
            greeting,
            CONNECTION_WINDOW,
            frames.PREFACE,
            MAX_HEADER_BYTES,
            _BUFFER_BYTES,
            _FRAMES_AT_ONCE,
        )
        self.events: collections.deque[Happening] = collections.deque()
        self.calls: dict[int, ServerCall] = {}
        self.last_stream = 0
        self._client = client
        self._max_message_bytes = max_message_bytes
        self._max_streams = max_streams
        self._allocate = allocate
        self._reset: collections.OrderedDict[int, None] = collections.OrderedDict()
        self.spent = 0
        self._is_leaving = False

    def charge(self, count: int = 1) -> None:
        """Charge `count` reset or refused streams to the budget for rapid resets."""
        self.spent += count

    def refund(self, count: int) -> None:
        """Refill part of the budget, because the client does more than open streams."""
        self.spent = max(0, self.spent - count)

    def replenish(self) -> None:
        """Refill part of both budgets. Call once per second."""
        self.refund(_REPLENISHED_STREAMS)
        self.framing.replenish(_REPLENISHED_FRAMES)

    def end_all(self) -> None:
        """End all calls without notifying the client."""
        for call in list(self.calls.values()):
            self._end(call)

    def leave(self) -> None:
        """Queue a GOAWAY frame, which lets open streams continue and refuses new streams."""
        self._is_leaving = True
        self.framing.sending.outbound.append(frames.goaway(self.last_stream, frames.NO_ERROR))

    def reset(self, call: ServerCall, code: int) -> None:
        """Queue an RST_STREAM frame for a call."""
        if self.calls.get(call.number) is call:
            self.framing.sending.outbound.append(frames.rst_stream(call.number, code))
            self._remember(call.number)
            self.forget(call)

    def forget(self, call: ServerCall) -> None:
        """Remove a call that has ended."""
        if self.calls.pop(call.number, None) is not None:
            # Its remaining frames are in flight, and must be ignored instead of ending the
            # connection.
            if not call.has_ended:
                self._remember(call.number)
            self.framing.drop(call.number)

    # The role: what the client sends.

    def take_headers(self, stream: int, headers: list[Header], ends_stream: bool) -> None:
        """Process the headers or trailers of a request."""
        # Even numbers are for server push (section 5.1.1).
        if not stream & 1:
            raise ViolationError(f"sent HEADERS on stream {stream}, which is not an odd number")
        call = self.calls.get(stream)
        if call is not None:
            self._take_trailers(call, headers, ends_stream)
            return
        # Numbers only grow (section 5.1.1); a stream that this end has reset may still receive
        # frames.
        if stream <= self.last_stream:
            if stream in self._reset:
                return
            raise ViolationError(
                f"sent HEADERS on stream {stream}, which has already ended", frames.STREAM_CLOSED
            )
        self.last_stream = stream
        # Rapid reset (CVE-2023-44487): opening and resetting streams costs a client almost nothing.
        if self.spent > _RESET_BUDGET:
            raise ViolationError(
                f"opened and reset more than {_RESET_BUDGET} streams", frames.ENHANCE_YOUR_CALM
            )
        # Decoding large headers takes the server longer than a step; charged like streams.
        cost = self.framing.control.headers.decoder.list_bytes // _HEADER_BYTES
        self.charge(cost)
        request = Request.of(headers, stream)
        # REFUSED_STREAM tells the client that nothing was processed, so that it may try elsewhere.
        if self._is_leaving or len(self.calls) >= self._max_streams:
            self._remember(stream)
            self.charge()
            self.framing.sending.outbound.append(frames.rst_stream(stream, frames.REFUSED_STREAM))
            return
        call = self._open(stream, request, ends_stream)
        call.cost = cost
        self.events.append((call, Event.OPENED))
        if ends_stream:
            self.end_content(stream)

    def end_content(self, stream: int) -> None:
        call = self.calls.get(stream)
        if call is None or call.has_ended:
            return
        if call.assembler.is_in_message:
            raise ViolationError("ended the stream in the middle of a message", stream=stream)
        # A request cut off by a proxy must not be taken for a complete one (section 8.1.1).
        if isinstance(call.assembler, CountedAssembler) and call.assembler.missing:
            raise ViolationError(
                "sent less content than the content-length header announced", stream=stream
            )
        call.has_ended = True
        self.framing.receiving.pop(stream, None)
        self.events.append((call, Event.ENDED))

    def check_stream(self, stream: int, kind: str) -> None:
        if not stream & 1 or stream > self.last_stream:
            raise ViolationError(f"sent {kind} on stream {stream}, which is not open")
        if kind == "DATA" and stream not in self._reset:
            # It has ended its half (section 5.1).
            raise ViolationError(
                f"sent {kind} on stream {stream}, which has already ended",
                frames.STREAM_CLOSED,
                stream,
            )

    def end_stream(self, stream: int, code: int) -> None:
        if not stream & 1 or stream > self.last_stream:
            raise ViolationError(f"sent RST_STREAM on stream {stream}, which is not open")
        call = self.calls.get(stream)
        if call is not None:
            self.charge()
            # What the client sends on it from here on breaks the rules (section 5.1).
            call.has_ended = True
            self._end(call)

    def refuse_message(self, stream: int, error: RefusedMessageError) -> None:
        call = self.calls[stream]
        # The rest of the message is discarded unread: it may be as large as the client likes.
        self.framing.drop_content(stream)
        self.events.append((call, Event.GONE))
        call.finish(error.code, f"the client {error.what}")

    def go_away(self, last_stream: int, code: int, text: str) -> None:
        """Do nothing: a client's GOAWAY only announces its departure, and its streams continue."""

    def begin(self, first: bytes) -> None:
        """Raise the error for a peer that is not an HTTP/2 client."""
        raise ProtocolError(f"{self._client} speaks {spoken(first)}, not HTTP/2")

    def break_stream(self, violation: ViolationError) -> None:
        # The violation ends this stream alone, and frames that are in flight must not end the
        # connection.
        self._remember(violation.stream)
        self.charge()
        call = self.calls.get(violation.stream)
        if call is not None:
            self._end(call)

    def violated(self, violation: ViolationError) -> DmEnvRpcClientError:
        return ProtocolError(f"{self._client} violated HTTP/2: it {violation.what}")

    def close(self, unparsed: bytes) -> DmEnvRpcClientError:
        return ProtocolError(f"{self._client} closed the connection")

    def fail(self, error: DmEnvRpcClientError) -> None:
        self.end_all()

    def _open(self, stream: int, request: Request, ends_stream: bool) -> ServerCall:
        inbox = _Inbox(stream, self.calls, self.events)
        assembler = MessageAssembler(self._max_message_bytes, self._allocate, STREAM_WINDOW, inbox)
        # gRPC clients announce no length; only such requests pay for the count.
        if request.length is not None:
            assembler = CountedAssembler(
                request.length, self._max_message_bytes, self._allocate, STREAM_WINDOW, inbox
            )
        call = self.calls[stream] = ServerCall(
            self, stream, request.path, request.metadata, assembler
        )
        if request.refusal:
            call.has_ended = ends_stream
            call.refuse(request.refusal)
        return call

    def _take_trailers(self, call: ServerCall, headers: list[Header], ends_stream: bool) -> None:
        if call.has_ended:
            raise ViolationError("sent HEADERS after END_STREAM", frames.STREAM_CLOSED, call.number)
        # HEADERS within a stream are trailers, which end it (section 8.1).
        if not ends_stream:
            raise ViolationError("sent a second request", stream=call.number)
        for number, (name, value) in enumerate(headers, 1):
            check_header(number, name, value, call.number)
            if name.startswith(b":"):
                raise ViolationError("sent pseudo-headers in trailers", stream=call.number)
        self.end_content(call.number)

    def _end(self, call: ServerCall) -> None:
        call.is_over = True
        self.events.append((call, Event.GONE))
        self.forget(call)

    def _remember(self, stream: int) -> None:
        self._reset[stream] = None
        # Bounded: a client can reset streams as long as it lives.
        if len(self._reset) > _REMEMBERED:
            self._reset.popitem(last=False)
