"""The headers of requests and responses (RFC 9113, section 8), and an HPACK decoder (RFC 7541).

A server has one thread for all clients, and any client can make the server decode a header block.
Decoding 3,500 bytes of Huffman code takes 1.1 ms with the package `hpack` and 0.3 ms with this
decoder. The tables and the encoder come from `hpack`.
"""

from __future__ import annotations

import base64
import binascii
import collections
import re
import urllib.parse
from typing import NamedTuple, TypeAlias

import hpack
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH
from hpack.table import HeaderTable

from dm_env_rpc_client.transports.http2.protocol.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    Header,
    ViolationError,
)
from dm_env_rpc_client.transports.net.addresses import Target
from dm_env_rpc_client.transports.net.metadata import Metadata, check_metadata
from dm_env_rpc_client.transports.net.status import GRPC_CODES, PROCESS
from dm_env_rpc_client.version import __version__

SentHeader: TypeAlias = tuple[str, str | bytes] | tuple[str, str | bytes, bool]
"""A header to send: its name, its value, and True if the value might be secret."""

_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_OF_GRPC = {b"te", b"content-type", b"user-agent", b"content-length"}

_NAME = re.compile(rb":?[!-9;-@[-~]+")
_NOT_IN_VALUE = re.compile(rb"[\0\r\n]")
"""The patterns of valid header names and of bytes forbidden in values (section 8.2.1)."""

_UNQUOTED = " !#$&'()*+,/:;=?@"

_MAX_DETAILS = 4096
"""The maximum number of bytes of status details. gRPC clients reject larger trailers, and then
show no details at all."""

_RESPONSE: list[tuple[str, str]] = [(":status", "200"), ("content-type", "application/grpc")]

_FORBIDDEN = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
}
"""The headers specific to HTTP/1 connections, which HTTP/2 forbids (section 8.2.2)."""


def request_headers(target: Target, is_tls: bool, metadata: Metadata | None) -> list[SentHeader]:
    """Return the request headers that are sent on each stream of a client's connection.

    Metadata can be secret, so it is marked as never to be indexed (RFC 7541, section 7.1.3).

    Raises:
      SpecError: the metadata is not allowed in HTTP/2 headers.
    """
    checked = check_metadata(metadata) or ()
    return [
        (":method", "POST"),
        (":scheme", "https" if is_tls else "http"),
        (":path", PROCESS),
        (":authority", target.authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", f"dm-env-rpc-client/{__version__}"),
        *(
            # Without padding, as gRPC sends binary metadata. True marks the header as secret.
            (key, base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value, True)
            for key, value in checked
        ),
    ]


class Request(NamedTuple):
    """The headers of a request."""

    path: str
    metadata: tuple[tuple[str, str | bytes], ...]
    length: int | None
    """The announced length of the content, in bytes, or None if none was announced."""

    refusal: str
    """The HTTP status with which a request is refused, or "" if the request is a gRPC call."""

    @classmethod
    def of(cls, headers: list[Header], stream: int) -> Request:
        """Create a request from its headers, or raise ViolationError if they are malformed."""
        pseudo: dict[bytes, bytes] = {}
        regular: list[Header] = []
        for number, (name, value) in enumerate(headers, 1):
            check_header(number, name, value, stream)
            if name.startswith(b":"):
                # Section 8.3: a second :path, or one behind other headers, is how requests are
                # smuggled past proxies.
                if regular or name in pseudo or name not in _PSEUDO:
                    raise ViolationError(
                        f"sent header {number}, a pseudo-header that is unknown, repeated or "
                        "placed after regular headers",
                        stream=stream,
                    )
                pseudo[name] = value
            else:
                # Which must not begin or end with a blank; gRPC strips them.
                regular.append((name, value.strip(b" \t")))
        fields = dict(regular)
        method = pseudo.get(b":method", b"")
        path = pseudo.get(b":path", b"")
        # No path has a default: a request without one is malformed, not for the root.
        if not method or not path or not pseudo.get(b":scheme"):
            raise ViolationError("sent a request that lacks pseudo-headers", stream=stream)
        refusal = ""
        if method != b"POST":
            refusal = "405"
        # gRPC over HTTP/2 asks for 415, so that other clients understand the answer.
        elif not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            refusal = "415"
        return cls(path.decode("latin-1"), _metadata(regular), _length(regular, stream), refusal)


def _length(headers: list[Header], stream: int) -> int | None:
    given = {value for name, value in headers if name == b"content-length"}
    if not given:
        return None
    length = given.pop()
    # Two different lengths, or a sign, may mean another thing to a proxy in between.
    if given or not length.isdigit() or len(length) > 18:
        raise ViolationError("sent an invalid content-length", stream=stream)
    return int(length)


def _metadata(headers: list[Header]) -> tuple[tuple[str, str | bytes], ...]:
    found: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        # Reserved by gRPC, and no metadata of the application.
        if name in _OF_GRPC or name.startswith(b"grpc-"):
            continue
        key = name.decode("latin-1")
        if key.endswith("-bin"):
            # Proxies may join repeated headers by commas, which base64 does not have.
            for part in value.split(b","):
                try:
                    padded = part + b"=" * (-len(part) % 4)
                    found.append((key, base64.b64decode(padded, validate=True)))
                # Dropped, as gRPC servers do: metadata is the client's own matter.
                except binascii.Error:
                    continue
        else:
            found.append((key, value.decode("latin-1")))
    return tuple(found)


def check_header(number: int, name: bytes, value: bytes, stream: int) -> None:
    """Check a header or trailer (section 8.2).

    Error messages never include its value or an invalid name, which might be secret.

    Args:
      number: the position in the list of headers, counted from 1.
      name: the name of the header.
      value: the value of the header.
      stream: the number of the stream.

    Raises:
      ViolationError: the header is malformed.
    """
    if not _NAME.fullmatch(name):
        raise ViolationError(f"sent header {number} with an invalid name", stream=stream)
    if _NOT_IN_VALUE.search(value):
        raise ViolationError(f"sent header {number} with a line break or a NUL", stream=stream)
    if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
        raise ViolationError(f"sent the header {name.decode()}", stream=stream)


def encode(headers: list[tuple[str, str]]) -> bytes:
    """Return a header block that uses only the static table and depends on no other block."""
    return hpack.Encoder().encode([(name, value, True) for name, value in headers])


RESPONSE_BLOCK = encode(_RESPONSE)
NO_TABLE = b"\x20"
"""An HPACK table size update to 0, for clients that set the size (RFC 7541, section 4.2)."""


def trailers_block(code: str, details: str, with_headers: bool) -> bytes:
    """Return the encoded header block of the trailers that end a call.

    Args:
      code: the name of the gRPC status.
      details: a message for the client.
      with_headers: whether to include the response headers, because none were sent before.
    """
    # A name that gRPC does not know would be a broken trailer; the text keeps it.
    if code not in GRPC_CODES:
        code, details = "UNKNOWN", f"{code}: {details}"
    trailers = [("grpc-status", str(GRPC_CODES.index(code)))]
    if details:
        trailers.append(("grpc-message", _quoted(details)))
    return encode([*_RESPONSE, *trailers] if with_headers else trailers)


def _quoted(details: str) -> str:
    """Return status details in gRPC's encoding: percent-encoded and limited in size."""
    quoted = urllib.parse.quote(details[:_MAX_DETAILS], _UNQUOTED, errors="replace")
    if len(quoted) > _MAX_DETAILS:
        # Not in the middle of a code, nor of a character.
        shorter = urllib.parse.unquote_to_bytes(re.sub("%.?$", "", quoted[: _MAX_DETAILS - 16]))
        quoted = urllib.parse.quote(shorter.decode("utf-8", "ignore") + "...", _UNQUOTED)
    return quoted


TABLE_BYTES = 4096
"""The maximum size, in bytes, of the HPACK table, which is the default because this end's SETTINGS
do not change it (section 4.2)."""

_ENTRY_BYTES = 32
"""The number of bytes counted for an entry in addition to its name and value (section 4.1)."""

_STATIC: tuple[Header, ...] = tuple(HeaderTable.STATIC_TABLE)
_MAX_SHIFT = 21
"""The maximum shift, in bits, of an integer's last byte. No integer in a block of limited size
exceeds 2^28."""

_END_OF_STRING = 256


class HeaderDecoder:
    """The HPACK decoder of one connection, with its dynamic table.

    Args:
      max_list_bytes: the size limit of an uncompressed list of headers. The size counts names,
        values and 32 bytes for each header (RFC 9113, section 6.5.2).

    Attributes:
      list_bytes: the size of the last decoded list, whether or not it was accepted.
    """

    def __init__(self, max_list_bytes: int):
        self.list_bytes = 0
        self._max_list_bytes = max_list_bytes
        self._table: collections.deque[Header] = collections.deque()
        self._table_bytes = 0
        self._max_table_bytes = TABLE_BYTES

    def decode(self, block: bytes) -> list[Header]:
        """Return the headers of a block, in order.

        Raises:
          ViolationError: the block is malformed, or its list of headers is too large. The
            connection must end, because the decoder's table is then incomplete.
        """
        headers: list[Header] = []
        self.list_bytes = at = 0
        try:
            while True:
                if at >= len(block):
                    break
                first = block[at]
                if first & 0x80:
                    index, at = _integer(block, at, 0x7F)
                    header = self._entry(index)
                elif first & 0xE0 == 0x20:
                    # Section 4.2: only at the beginning of a block.
                    if headers:
                        raise _broken("a table size update comes after a header")
                    size, at = _integer(block, at, 0x1F)
                    # SETTINGS of this end never allow a larger one.
                    if size > TABLE_BYTES:
                        raise _broken(f"the table size is {size} bytes; the limit is {TABLE_BYTES}")
                    self._max_table_bytes = size
                    self._evict(0)
                    continue
                else:
                    is_added = bool(first & 0x40)
                    index, at = _integer(block, at, 0x3F if is_added else 0x0F)
                    if index:
                        name = self._entry(index)[0]
                    else:
                        name, at = _string(block, at)
                    value, at = _string(block, at)
                    header = (name, value)
                    if is_added:
                        self._add(header)
                self.list_bytes += len(header[0]) + len(header[1]) + _ENTRY_BYTES
                # Counted while decoding: 16 KB of indexed headers can expand to megabytes (an HPACK
                # bomb).
                if self.list_bytes > self._max_list_bytes:
                    raise ViolationError(
                        f"sent headers of more than {self._max_list_bytes} bytes",
                        ENHANCE_YOUR_CALM,
                    )
                headers.append(header)
        except IndexError:
            raise _broken("the block ends in the middle of a header") from None
        return headers

    def _entry(self, index: int) -> Header:
        if 0 < index <= len(_STATIC):
            return _STATIC[index - 1]
        if 0 < index <= len(_STATIC) + len(self._table):
            return self._table[index - len(_STATIC) - 1]
        raise _broken(f"the table has no entry {index}")

    def _add(self, header: Header) -> None:
        size = len(header[0]) + len(header[1]) + _ENTRY_BYTES
        self._evict(size)
        # One that is larger than the table leaves it empty (section 4.4).
        if size <= self._max_table_bytes:
            self._table.appendleft(header)
            self._table_bytes += size

    def _evict(self, room: int) -> None:
        table = self._table
        # Oldest first (section 4.4).
        while table and self._table_bytes + room > self._max_table_bytes:
            name, value = table.pop()
            self._table_bytes -= len(name) + len(value) + _ENTRY_BYTES


def _broken(what: str) -> ViolationError:
    return ViolationError(f"sent headers that cannot be decoded: {what}", COMPRESSION_ERROR)


def _integer(block: bytes, at: int, mask: int) -> tuple[int, int]:
    """Return an integer (section 5.1) and where it ends; raise IndexError if it is cut off."""
    number = block[at] & mask
    at += 1
    # The usual case: the prefix holds the whole integer.
    if number < mask:
        return number, at
    for shift in range(0, _MAX_SHIFT + 1, 7):
        byte = block[at]
        at += 1
        number += (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
    # Bounded, since an integer may have any number of continuation bytes.
    raise _broken("an integer is too large")


def _string(block: bytes, at: int) -> tuple[bytes, int]:
    """Return a string (section 5.2) and where it ends; raise IndexError if it is cut off."""
    is_coded = block[at] & 0x80
    size, at = _integer(block, at, 0x7F)
    end = at + size
    if end > len(block):
        raise IndexError
    string = block[at:end]
    return (_decoded(string) if is_coded else string), end


# Huffman's code (section 5.2 and appendix B), by bytes: in each state, which is a place within the
# tree of codes, a byte leads to another state and completes up to two characters.


class _State(dict[int, "tuple[_State, bytes]"]):
    """A state of the Huffman decoder, whose transitions for each byte are built on first use.

    Args:
      branch: the branch of the Huffman tree.
      may_end: whether a string can end in this state, with less than 8 padding bits, all ones.
    """

    __slots__ = ("_branch", "may_end")

    def __init__(self, branch: list[object], may_end: bool):
        self._branch = branch
        self.may_end = may_end

    def __missing__(self, byte: int) -> tuple[_State, bytes]:
        branch = self._branch
        characters = bytearray()
        for shift in range(7, -1, -1):
            node = branch[byte >> shift & 1]
            if isinstance(node, int):
                # Section 5.2 forbids it; decoders that accept it differ from those that do not.
                if node == _END_OF_STRING:
                    raise _broken("a string contains the end-of-string symbol")
                characters.append(node)
                branch = _ROOT
            else:
                assert isinstance(node, list)
                branch = node
        found = self[byte] = _STATES[id(branch)], bytes(characters)
        return found


def _tree() -> list[object]:
    root: list[object] = [None, None]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        branch = root
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if branch[bit] is None:
                branch[bit] = [None, None]
            inner = branch[bit]
            assert isinstance(inner, list)
            branch = inner
        branch[code & 1] = symbol
    return root


def _states(root: list[object]) -> dict[int, _State]:
    states: dict[int, _State] = {}
    # Each place, and the number of ones that lead there from the root; -1 if there are others.
    places: list[tuple[list[object], int]] = [(root, 0)]
    while places:
        branch, ones = places.pop()
        states[id(branch)] = _State(branch, 0 <= ones < 8)
        for bit in (0, 1):
            inner = branch[bit]
            if isinstance(inner, list):
                places.append((inner, ones + 1 if bit and ones >= 0 else -1))
    return states


_ROOT = _tree()
_STATES = _states(_ROOT)
_FIRST = _STATES[id(_ROOT)]


def _decoded(coded: bytes) -> bytes:
    state = _FIRST
    parts: list[bytes] = []
    append = parts.append
    for byte in coded:
        state, characters = state[byte]
        append(characters)
    if not state.may_end:
        raise _broken("the padding of a string is malformed")
    return b"".join(parts)
