"""The headers of a request, as a server reads them (section 8 of RFC 9113)."""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple, TypeAlias

from dm_env_rpc_client.transports.http2.protocol.header_decoder import Header
from dm_env_rpc_client.transports.http2.protocol.violations import ViolationError, check_header

Metadata: TypeAlias = tuple[tuple[str, str | bytes], ...]

_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_OF_GRPC = {b"te", b"content-type", b"user-agent", b"content-length"}


class Request(NamedTuple):
    """The headers of a request."""

    path: str
    metadata: Metadata
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


def _metadata(headers: list[Header]) -> Metadata:
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
