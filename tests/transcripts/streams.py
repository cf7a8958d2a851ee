"""The streams of a connection that was relayed: frames of HTTP/2, and the messages in them.

It reads what both ends have accepted, so that it checks little. RFC 9113 has the frames, RFC 7541
what a header block is.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpack import Decoder

from tests.transcripts.tap import CLIENT, SERVER, Chunk

PATH = "/dm_env_rpc.v1.Environment/Process"

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

_DATA, _HEADERS, _RST_STREAM, _CONTINUATION = 0, 1, 3, 9
_END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 1, 4, 8, 32

_NOT_SHOWN = {
    "te", "content-type", "user-agent", "grpc-accept-encoding", "accept-encoding", "grpc-timeout",
}  # fmt: skip
"""Headers that each gRPC library writes in its own way."""


class Frame(NamedTuple):
    """A frame.

    Args:
      who: sent it.
      kind: its type.
      flags: which are set.
      stream: the number of its stream.
      payload: its bytes.
    """

    who: str
    kind: int
    flags: int
    stream: int
    payload: bytes


class Stream:
    """What passed on a stream.

    Attributes:
      path: which the client called.
      metadata: which the client sent.
      requests: the bytes of each.
      answers: the bytes of each.
      end: how the server ended it before the client did; empty if it did not.
    """

    def __init__(self) -> None:
        self.path = ""
        self.metadata: list[tuple[str, str]] = []
        self.requests: list[bytes] = []
        self.answers: list[bytes] = []
        self.end = ""
        self._rest = {CLIENT: b"", SERVER: b""}
        self._client_is_done = False

    def add_headers(self, who: str, pairs: Sequence[tuple[str, str]]) -> None:
        """Adds headers or trailers."""
        if who == CLIENT:
            self.path = dict(pairs)[":path"]
            self.metadata = [
                (key, value)
                for key, value in pairs
                if not key.startswith(":") and key not in _NOT_SHOWN
            ]
            return
        found = dict(pairs)
        status = found.get("grpc-status")
        if status is not None and (status != "0" or not self._client_is_done):
            text = urllib.parse.unquote(found.get("grpc-message", ""))
            self.end = f"status {status}: {text}"
        elif found.get(":status", "200") != "200":
            self.end = f"HTTP status {found[':status']}"

    def add_data(self, who: str, data: bytes) -> None:
        """Adds bytes of messages."""
        rest = self._rest[who] + data
        while len(rest) >= 5:
            size = int.from_bytes(rest[1:5], "big")
            if len(rest) < 5 + size:
                break
            message, rest = rest[5 : 5 + size], rest[5 + size :]
            (self.requests if who == CLIENT else self.answers).append(message)
        self._rest[who] = rest

    def ended(self, who: str, code: int | None = None) -> None:
        """Says that an end has sent its last frame, perhaps with an error code."""
        if who == CLIENT:
            self._client_is_done = True
        elif code is not None and not self.end and not self._client_is_done:
            self.end = f"a reset with code {code}"


def streams_of(chunks: Sequence[Chunk]) -> list[Stream]:
    """Returns the streams of a connection, in the order in which they were opened."""
    streams: dict[int, Stream] = {}
    decoders = {CLIENT: Decoder(), SERVER: Decoder()}
    for decoder in decoders.values():
        decoder.max_allowed_table_size = 1 << 20
    begun: dict[str, bytes] = {}
    for frame in _frames(chunks):
        if not frame.stream:
            continue
        stream = streams.setdefault(frame.stream, Stream())
        if frame.kind == _DATA:
            stream.add_data(frame.who, _unpadded(frame))
        elif frame.kind in (_HEADERS, _CONTINUATION):
            block = begun.pop(frame.who, b"") + _unpadded(frame)
            if frame.flags & _END_HEADERS:
                decoded = decoders[frame.who].decode(block)
                stream.add_headers(frame.who, [(str(key), str(value)) for key, value in decoded])
            else:
                begun[frame.who] = block
        elif frame.kind == _RST_STREAM:
            stream.ended(frame.who, int.from_bytes(frame.payload, "big"))
        if frame.kind in (_DATA, _HEADERS) and frame.flags & _END_STREAM:
            stream.ended(frame.who)
    return list(streams.values())


def _frames(chunks: Sequence[Chunk]) -> Iterator[Frame]:
    """Yields the frames of both ends, each when its last byte has passed."""
    rest = {CLIENT: b"", SERVER: b""}
    has_begun = False
    for who, data in chunks:
        left = rest[who] + data
        if who == CLIENT and not has_begun and len(left) >= len(_PREFACE):
            left, has_begun = left.removeprefix(_PREFACE), True
        while (has_begun or who == SERVER) and len(left) >= 9:
            size = int.from_bytes(left[:3], "big")
            if len(left) < 9 + size:
                break
            number = int.from_bytes(left[5:9], "big") & 0x7FFFFFFF
            yield Frame(who, left[3], left[4], number, left[9 : 9 + size])
            left = left[9 + size :]
        rest[who] = left


def _unpadded(frame: Frame) -> bytes:
    payload = frame.payload
    if frame.kind == _CONTINUATION:
        return payload
    if frame.flags & _PADDED:
        payload = payload[1 : len(payload) - payload[0]]
    if frame.kind == _HEADERS and frame.flags & _PRIORITY:
        payload = payload[5:]
    return payload


def turns(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Returns what passed in a protocol in which each end waits for the other, by turns."""
    found: list[Chunk] = []
    for chunk in chunks:
        if found and found[-1].who == chunk.who:
            found[-1] = Chunk(chunk.who, found[-1].data + chunk.data)
        else:
            found.append(chunk)
    return found
