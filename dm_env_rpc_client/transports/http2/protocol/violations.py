"""What a peer must not send, as exceptions between the pieces of this folder."""

from __future__ import annotations

import re

from dm_env_rpc_client.transports.http2.protocol.frames import PROTOCOL_ERROR

_NAME = re.compile(rb":?[!-9;-@[-~]+")
_NOT_IN_VALUE = re.compile(rb"[\0\r\n]")
"""What names of headers are made of, and what values must not hold (section 8.2.1)."""

_FORBIDDEN = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"transfer-encoding",
    b"upgrade",
}
"""Headers that are about a connection of HTTP/1 (section 8.2.2)."""

_SPOKEN = {
    "TLS": re.compile(rb"[\x14-\x17]\x03"),
    "HTTP/1": re.compile(rb"HTTP/1|[A-Z]{3,7} [/h]"),
    "SSH": re.compile(rb"SSH-"),
}


class ViolationError(Exception):
    """The peer broke HTTP/2; `Framing` ends the stream or the connection for it.

    Args:
      what: what the peer did, as the end of a sentence that begins with "it".
      code: the error code that the peer is told (section 7 of RFC 9113).
      stream: the stream that ends; 0 if the connection does.
    """

    def __init__(self, what: str, code: int = PROTOCOL_ERROR, stream: int = 0):
        super().__init__(what)
        self.what = what
        self.code = code
        self.stream = stream


class RefusedMessageError(Exception):
    """A message that is well-formed HTTP/2 but is not accepted; its stream ends.

    Args:
      code: the name of the gRPC status, such as "RESOURCE_EXHAUSTED".
      what: what the peer did, as the end of a sentence that begins with "it".
    """

    def __init__(self, code: str, what: str):
        super().__init__(what)
        self.code = code
        self.what = what


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


def spoken(first: bytes) -> str:
    """Returns what a peer speaks that does not speak HTTP/2, without a quotation.

    A request of HTTP/1 has its secrets at the beginning.

    Args:
      first: what came first.
    """
    found = (protocol for protocol, begins in _SPOKEN.items() if begins.match(first))
    return next(found, "no protocol that is known here")
