"""The headers of a request, sent and read, and those of its answer (section 8)."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from typing import NamedTuple, TypeAlias

import hpack

from dm_env_rpc_client.transports.http2.protocol.role import Header, ViolationError
from dm_env_rpc_client.transports.net.addresses import Target
from dm_env_rpc_client.transports.net.metadata import Metadata, check_metadata
from dm_env_rpc_client.transports.net.status import GRPC_CODES, PROCESS
from dm_env_rpc_client.version import __version__

SentHeader: TypeAlias = tuple[str, str | bytes] | tuple[str, str | bytes, bool]
"""A name, a value, and True if it may be secret."""

_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_OF_GRPC = {b"te", b"content-type", b"user-agent", b"content-length"}

_NAME = re.compile(rb":?[!-9;-@[-~]+")
_NOT_IN_VALUE = re.compile(rb"[\0\r\n]")
"""What names of headers are made of, and what values must not hold (section 8.2.1)."""

_UNQUOTED = " !#$&'()*+,/:;=?@"

_MAX_DETAILS = 4096
"""Bytes of a status' details; gRPC clients refuse larger trailers, and then show no details."""

_RESPONSE: list[tuple[str, str]] = [(":status", "200"), ("content-type", "application/grpc")]

_FORBIDDEN = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
}
"""Headers that are about a connection of HTTP/1 (section 8.2.2)."""


def request_headers(target: Target, is_tls: bool, metadata: Metadata | None) -> list[SentHeader]:
    """Returns the headers of the one request that a connection makes.

    Metadata may be secret: it is marked as never to be indexed (RFC 7541, section 7.1.3).

    Raises:
      SpecError: HTTP/2 does not take the metadata.
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
            (key, base64.b64encode(value).rstrip(b"=") if isinstance(value, bytes) else value, True)
            for key, value in checked
        ),
    ]


class Request(NamedTuple):
    """The headers of a request."""

    path: str
    metadata: tuple[tuple[str, str | bytes], ...]
    length: int | None
    """The announced length of the content."""

    refusal: str
    """The HTTP status for what is not a gRPC call; "" for gRPC."""

    @classmethod
    def of(cls, headers: list[Header], stream: int) -> Request:
        """Checks headers (section 8); ViolationError if they are malformed."""
        pseudo: dict[bytes, bytes] = {}
        regular: list[Header] = []
        for number, (name, value) in enumerate(headers, 1):
            check_header(number, name, value, stream)
            if name.startswith(b":"):
                if regular or name in pseudo or name not in _PSEUDO:
                    raise ViolationError(
                        f"sent header {number}, a pseudo-header that is unknown, sent twice or "
                        "behind others",
                        stream=stream,
                    )
                pseudo[name] = value
            else:
                # Which must not begin or end with a blank; gRPC strips them.
                regular.append((name, value.strip(b" \t")))
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
        return cls(path.decode("latin-1"), _metadata(regular), _length(regular, stream), refusal)


def _length(headers: list[Header], stream: int) -> int | None:
    given = {value for name, value in headers if name == b"content-length"}
    if not given:
        return None
    length = given.pop()
    if given or not length.isdigit() or len(length) > 18:
        raise ViolationError("sent a broken content-length", stream=stream)
    return int(length)


def _metadata(headers: list[Header]) -> tuple[tuple[str, str | bytes], ...]:
    found: list[tuple[str, str | bytes]] = []
    for name, value in headers:
        if name in _OF_GRPC or name.startswith(b"grpc-"):
            continue
        key = name.decode("latin-1")
        if key.endswith("-bin"):
            for part in value.split(b","):
                try:
                    padded = part + b"=" * (-len(part) % 4)
                    found.append((key, base64.b64decode(padded, validate=True)))
                except binascii.Error:
                    continue
        else:
            found.append((key, value.decode("latin-1")))
    return tuple(found)


def check_header(number: int, name: bytes, value: bytes, stream: int) -> None:
    """Checks a header or trailer (section 8.2). No error quotes one, which may be secret.

    Args:
      number: its place in the list of headers, from 1 on.
      name: of the header.
      value: of the header.
      stream: the stream that it is on.

    Raises:
      ViolationError: it is malformed.
    """
    if not _NAME.fullmatch(name):
        raise ViolationError(f"sent header {number} with an invalid name", stream=stream)
    if _NOT_IN_VALUE.search(value):
        raise ViolationError(f"sent header {number} with several lines or a NUL", stream=stream)
    if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
        raise ViolationError(f"sent the header {name.decode()}", stream=stream)


def encode(headers: list[tuple[str, str]]) -> bytes:
    """Returns a header block that uses no table but the static one, so it depends on no other."""
    return hpack.Encoder().encode([(name, value, True) for name, value in headers])


RESPONSE_BLOCK = encode(_RESPONSE)
NO_TABLE = b"\x20"
"""The update of the table's size to 0, for clients that ask for one (RFC 7541, section 4.2)."""


def trailers_block(code: str, details: str, with_headers: bool) -> bytes:
    """Returns the block of the trailers that end a call, as `encode`.

    Args:
      code: the name of the gRPC status.
      details: a text for the client.
      with_headers: whether no headers were sent before.
    """
    if code not in GRPC_CODES:
        code, details = "UNKNOWN", f"{code}: {details}"
    trailers = [("grpc-status", str(GRPC_CODES.index(code)))]
    if details:
        trailers.append(("grpc-message", _quoted(details)))
    return encode([*_RESPONSE, *trailers] if with_headers else trailers)


def _quoted(details: str) -> str:
    """Returns a text as gRPC sends it, percent-encoded and of limited size."""
    quoted = urllib.parse.quote(details[:_MAX_DETAILS], _UNQUOTED, errors="replace")
    if len(quoted) > _MAX_DETAILS:
        # Not in the middle of a code, nor of a character.
        shorter = urllib.parse.unquote_to_bytes(re.sub("%.?$", "", quoted[: _MAX_DETAILS - 16]))
        quoted = urllib.parse.quote(shorter.decode("utf-8", "ignore") + "...", _UNQUOTED)
    return quoted
