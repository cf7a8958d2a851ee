"""The client's half of an HTTP/2 connection, without I/O, with one gRPC call per stream.

The caller, which does the I/O, exchanges bytes with `ClientHalf.framing` and messages with each
`ClientStream`.
"""

from __future__ import annotations

import collections
import logging
import urllib.parse
from collections.abc import Sequence

import hpack

from dm_env_rpc_client.errors import ConnectionLostError, DmEnvRpcClientError, ProtocolError
from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.control_frames import MAX_HEADER_BYTES
from dm_env_rpc_client.transports.http2.protocol.frames import (
    Header,
    RefusedMessageError,
    Role,
    ViolationError,
    spoken,
)
from dm_env_rpc_client.transports.http2.protocol.headers import SentHeader, check_header
from dm_env_rpc_client.transports.http2.protocol.message_assembler import MessageAssembler
from dm_env_rpc_client.transports.http2.protocol.whole_messages import WholeMessageFraming
from dm_env_rpc_client.transports.net.keepalive import KeepaliveSeconds, opening_seconds
from dm_env_rpc_client.transports.net.status import (
    abrupt,
    code_of_http_status,
    http2_error,
    stream_error,
    unreachable,
)
from dm_env_rpc_client.transports.streams import Allocate

_OF_SERVERS = ("REFUSED_STREAM", "ENHANCE_YOUR_CALM")
"""The names of the error codes that a server itself, not a proxy, sends to reset a stream."""

# hpack logs all headers at the level DEBUG, and a token may be among them.
logging.getLogger("hpack").setLevel(logging.INFO)

_GREETING = (
    frames.PREFACE
    + frames.settings_frame(
        {
            frames.ENABLE_PUSH: 0,
            frames.INITIAL_WINDOW_SIZE: frames.MAX_WINDOW,
            frames.MAX_FRAME_SIZE: frames.LARGEST_FRAME,
            frames.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
        }
    )
    + frames.window_update(0, frames.MAX_WINDOW - frames.FIRST_WINDOW)
)


_append = collections.deque.append


class _Messages(collections.deque[bytearray | memoryview]):
    """A queue of the messages received on one stream, which also records their arrival."""

    def __init__(self, number: int, arrived: dict[int, None]):
        super().__init__()
        self._number = number
        self._arrived = arrived

    def append(self, message: bytearray | memoryview, /) -> None:
        _append(self, message)
        # Appended before it is signalled: the thread that sees the signal looks for the message.
        self._arrived[self._number] = None


class ClientStream:
    """A stream of a client, which carries one gRPC call.

    Attributes:
      number: the number of the stream.
      messages: the received messages, oldest first, each in separate memory.
      failure: the error that ended the stream, or None while messages can still be received.
      keepalive: see `Stream.keep_alive`.
      is_unprocessed: whether the stream has failed before the server processed any part of it.
    """

    def __init__(
        self,
        half: ClientHalf,
        number: int,
        assembler: MessageAssembler,
        messages: _Messages,
    ):
        self.messages = messages
        self.failure: DmEnvRpcClientError | None = None
        self.keepalive: KeepaliveSeconds = opening_seconds
        self.has_headers = self.is_unprocessed = False
        self.number = number
        self._half = half
        self.assembler = assembler
        # Content is expected after the response's headers only.
        self._sending = half.framing.open(number, None)
        self.send = self._sending.send
        self.head = self._sending.head
        self.end = self._sending.end

    def cancel(self) -> None:
        """Queue a frame that cancels the stream."""
        if self.failure is None:
            framing = self._half.framing
            framing.sending.outbound.append(frames.rst_stream(self.number, frames.CANCEL))
            framing.drop(self.number)

    def fail(self, error: DmEnvRpcClientError) -> None:
        """End the stream with an error, unless it already has one."""
        if self.failure is None:
            self.failure = error
            self._half.arrived[self.number] = None
            self._half.framing.drop(self.number)


class ClientHalf(Role):
    """The client's `Role`.

    Args:
      address: the server's name in error messages.
      max_message_bytes: the largest message that is accepted.
      allocate: a function that returns memory for a large message.

    Attributes:
      address: the server's name in error messages.
      framing: the state of the connection.
      arrived: the streams that have received a message or ended. A reader removes them.
    """

    last_stream = 0

    def __init__(self, address: str, max_message_bytes: int, allocate: Allocate):
        self.framing = WholeMessageFraming(self, _GREETING)
        self.arrived: dict[int, None] = {}
        self.address = address
        self._max_message_bytes = max_message_bytes
        self._allocate = allocate
        self._streams: dict[int, ClientStream] = {}
        self._next_stream = 1
        self._going_away = ""

    def open(self, headers: Sequence[SentHeader]) -> ClientStream:
        """Open a stream with request `headers`, which must begin with the pseudo-headers."""
        number = self._next_stream
        # Clients use odd numbers, each once (section 5.1.1).
        self._next_stream += 2
        # An encoder of its own for each: blocks that refer to no earlier one need no order.
        block = hpack.Encoder().encode(headers)
        self.framing.sending.outbound.append(frames.header_frames(block, number))
        messages = _Messages(number, self.arrived)
        assembler = MessageAssembler(
            self._max_message_bytes, self._allocate, frames.MAX_WINDOW, messages
        )
        stream = self._streams[number] = ClientStream(self, number, assembler, messages)
        return stream

    @property
    def may_open(self) -> bool:
        """Whether the server accepts another stream on this connection."""
        # Counted here: a stream ends in many ways, and opening one is rare.
        open_streams = sum(call.failure is None for call in self._streams.values())
        return not self._going_away and open_streams < self.framing.sending.max_streams

    def shut_down(self) -> None:
        """Queue the frames that end all streams and the connection."""
        for stream in self._streams.values():
            stream.cancel()
        self.framing.sending.outbound.append(frames.goaway(0, frames.NO_ERROR))

    # The role: what the server sends.

    def take_headers(self, stream: int, headers: list[Header], ends_stream: bool) -> None:
        """Process response headers, interim headers or trailers."""
        call = self._streams.get(stream)
        if call is None:
            raise ViolationError(f"sent HEADERS on stream {stream}, which was never opened")
        # Frames of a stream that this end has given up are still in flight.
        if call.failure is not None:
            return
        fields: dict[str, str] = {}
        for number, (name, value) in enumerate(headers, 1):
            check_header(number, name, value, stream)
            # The first of repeated headers: grpc-status must not be overridden by a later one.
            fields.setdefault(name.decode("ascii", "replace"), value.decode("utf-8", "replace"))
        if not call.has_headers:
            status = fields.get(":status", "")
            if len(status) == 3 and status.startswith("1") and not ends_stream:
                return  # An interim response (section 8.1).
            call.has_headers = True
            # Trailers alone are an answer, too ("Trailers-Only" in gRPC over HTTP/2).
            if not (ends_stream and status == "200" and "grpc-status" in fields):
                error = self._response_error(status, fields, ends_stream)
                if error is not None:
                    call.fail(error)
                    return
            # DATA before the headers is a violation, so only now.
            self.framing.receiving[stream] = call.assembler
        elif not ends_stream:
            raise ViolationError("sent headers in the middle of the stream")
        if ends_stream:
            self._end(call, fields)

    def end_content(self, stream: int) -> None:
        """Raise ViolationError, because a gRPC server must end a stream with trailers."""
        raise ViolationError(abrupt("ended the stream without trailers"))

    def check_stream(self, stream: int, kind: str) -> None:
        call = self._streams.get(stream)
        if call is None:
            raise ViolationError(f"sent {kind} on stream {stream}, which was never opened")
        if kind == "DATA" and not call.has_headers and call.failure is None:
            raise ViolationError("sent DATA before the headers")

    def end_stream(self, stream: int, code: int) -> None:
        call = self._streams.get(stream)
        if call is None:
            raise ViolationError(f"sent RST_STREAM on stream {stream}, which was never opened")
        name, status = http2_error(code)
        text = f"the server reset the stream with {name}{self._going_away}"
        # Codes that servers do not send for a call usually come from a proxy.
        if name not in _OF_SERVERS:
            text = abrupt(text)
        call.fail(stream_error(self.address, status, text))

    def refuse_message(self, stream: int, error: RefusedMessageError) -> None:
        call = self._streams[stream]
        # The server would send the rest of the message otherwise.
        call.cancel()
        if error.code == "RESOURCE_EXHAUSTED":
            call.fail(stream_error(self.address, error.code, f"the server {error.what}"))
        else:
            call.fail(self.violated(ViolationError(error.what)))

    def go_away(self, last_stream: int, code: int, text: str) -> None:
        """Fail the streams after `last_stream`, which the server will not process (section 6.8)."""
        name, status = http2_error(code)
        self._going_away = f"; it sent GOAWAY with {name}" + (f" ({text})" if text else "")
        for number, call in self._streams.items():
            if number > last_stream or code != frames.NO_ERROR:
                status = "UNAVAILABLE" if code == frames.NO_ERROR else status
                # Section 6.8: the server has not processed it, so it may be sent again on another
                # connection.
                call.is_unprocessed = call.failure is None and code == frames.NO_ERROR
                call.fail(stream_error(self.address, status, self._going_away.strip("; ")))

    def begin(self, first: bytes) -> None:
        """Raise the error for a peer that is not an HTTP/2 server."""
        raise self._not_http2(first)

    def break_stream(self, violation: ViolationError) -> None:
        call = self._streams.get(violation.stream)
        if call is not None:
            call.fail(self.violated(violation))

    def violated(self, violation: ViolationError) -> DmEnvRpcClientError:
        return ProtocolError(f"the server at {self.address} violated HTTP/2: it {violation.what}")

    def close(self, unparsed: bytes) -> DmEnvRpcClientError:
        if self.framing.has_timed_out:
            return unreachable(self.address)
        if self.framing.control.is_ready:
            text = f"the server closed the connection{self._going_away}"
            return stream_error(self.address, "UNAVAILABLE", text)
        # SETTINGS, which come first, begin with a zero: they have less than 64 KiB.
        if unparsed and unparsed[0]:
            return self._not_http2(unparsed)
        return ConnectionLostError(
            f"the server at {self.address} closed the connection before sending anything",
            "UNAVAILABLE",
        )

    def fail(self, error: DmEnvRpcClientError) -> None:
        for call in self._streams.values():
            call.fail(error)

    def _response_error(
        self, status: str, fields: dict[str, str], ends_stream: bool
    ) -> DmEnvRpcClientError | None:
        """Return the error for a response that cannot begin a gRPC stream, or None if it can."""
        content_type = fields.get("content-type", "")
        if status != "200":
            text = f"HTTP status {status or 'missing'}"
            return stream_error(self.address, code_of_http_status(status), text)
        if not content_type.startswith("application/grpc"):
            return ProtocolError(
                f"the program at {self.address} is not a gRPC server: it answered with content "
                f"type {content_type!r}; expected application/grpc"
            )
        if ends_stream:
            return self.violated(ViolationError(abrupt("ended the stream without a grpc-status")))
        return None

    def _end(self, call: ClientStream, trailers: dict[str, str]) -> None:
        details = urllib.parse.unquote(trailers.get("grpc-message", ""))
        # A lost end of a message must not look like an ordinary end of the stream.
        if call.assembler.is_in_message:
            details = f"in the middle of a message; {details}"
        call.fail(stream_error(self.address, trailers.get("grpc-status", ""), details))

    def _not_http2(self, first: bytes) -> DmEnvRpcClientError:
        if first.startswith(b"\x15\x03"):
            hint = "it expects TLS, but this connection is plaintext"
        else:
            hint = f"it speaks {spoken(first[:60])}"
        return ProtocolError(f"the program at {self.address} is not a gRPC server: {hint}")
