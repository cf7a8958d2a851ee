"""What distinguishes a client from a server: what each does with what the peer sends."""

from __future__ import annotations

from typing import Protocol

from dm_env_rpc_client.errors import DmEnvRpcClientError
from dm_env_rpc_client.transports.http2.protocol.header_decoder import Header
from dm_env_rpc_client.transports.http2.protocol.violations import (
    RefusedMessageError,
    ViolationError,
)


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
