"""What distinguishes a client from a server, and what either must not send."""

from __future__ import annotations

import re
from typing import Protocol, TypeAlias

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.transports.http2.protocol.frames import PROTOCOL_ERROR

Header: TypeAlias = tuple[bytes, bytes]

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


class Role(Protocol):
    """What one half does with what the peer sends; called by `Framing.received`."""

    last_stream: int
    """The last stream of the peer that was opened, for a GOAWAY; 0 if the peer opens none."""

    def take_headers(self, stream: int, headers: list[Header], ends_stream: bool) -> None:
        """Takes a complete header block."""

    def end_content(self, stream: int) -> None:
        """The peer ended its half of a stream with a DATA frame."""

    def check_stream(self, stream: int, kind: str) -> None:
        """Checks a frame on a stream that receives nothing; ViolationError if it must not come."""

    def end_stream(self, stream: int, code: int) -> None:
        """The peer reset a stream with an HTTP/2 error code."""

    def refuse_message(self, stream: int, error: RefusedMessageError) -> None:
        """A message on a stream was not accepted."""

    def go_away(self, last_stream: int, code: int, text: str) -> None:
        """The peer sent GOAWAY."""

    def begin(self, first: bytes) -> None:
        """Checks the first bytes from a peer that has not sent SETTINGS first; raises."""

    def break_stream(self, violation: ViolationError) -> None:
        """The peer broke the rules on one stream, which has been reset; raises nothing."""

    def violated(self, violation: ViolationError) -> DmEnvRpcClientError:
        """Returns the error for a violation that ends the connection."""

    def close(self, unparsed: bytes) -> DmEnvRpcClientError:
        """Returns the error for a peer that closed the connection."""

    def fail(self, error: DmEnvRpcClientError) -> None:
        """The connection is over: fails every stream that is not over yet."""


def spoken(first: bytes) -> str:
    """Returns what a peer speaks that does not speak HTTP/2, without a quotation.

    A request of HTTP/1 has its secrets at the beginning.

    Args:
      first: what came first.
    """
    found = (protocol for protocol, begins in _SPOKEN.items() if begins.match(first))
    return next(found, "no protocol that is known here")
