"""What a peer must not send, as exceptions between the pieces of this folder."""

from __future__ import annotations

from dm_env_rpc_client.transports.http2.frames import PROTOCOL_ERROR

__all__ = ["RefusedMessageError", "ViolationError"]


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
