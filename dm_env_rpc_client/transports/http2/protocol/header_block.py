"""Header blocks: one HEADERS frame and its CONTINUATION frames (sections 4.3, 6.2 and 6.10)."""

from __future__ import annotations

from dm_env_rpc_client.transports.http2.protocol import frames
from dm_env_rpc_client.transports.http2.protocol.header_decoder import Header, HeaderDecoder
from dm_env_rpc_client.transports.http2.protocol.violations import ViolationError

MAX_HEADER_BYTES = 1 << 16
"""The largest header block that a client accepts."""

_MAX_CONTINUATIONS = 64
"""More frames than this for one block carry next to nothing each."""


class HeaderBlock:
    """Collects the header block that is being received, and decodes it.

    Args:
      max_bytes: the largest block that is accepted, compressed and uncompressed.

    Attributes:
      stream: the stream that the block belongs to.
      is_open: whether a CONTINUATION frame must come next; otherwise the block is complete.
      ends_stream: whether the HEADERS frame had END_STREAM.
    """

    def __init__(self, max_bytes: int = MAX_HEADER_BYTES):
        self.stream = 0
        self.is_open = False
        self.ends_stream = False
        self._max_bytes = max_bytes
        self.decoder = HeaderDecoder(max_bytes)
        self._block = bytearray()
        self._continuations = 0

    def begin(self, flags: int, stream: int, payload: memoryview) -> None:
        """Takes a HEADERS frame.

        Args:
          flags: of the frame.
          stream: the stream that it is on.
          payload: of the frame.
        """
        body = bytes(payload)
        if flags & frames.PADDED:
            if not body or body[0] >= len(body):
                raise ViolationError("sent HEADERS with more padding than there is")
            body = body[1 : len(body) - body[0]]
        if flags & frames.WITH_PRIORITY:
            if len(body) < 5:
                raise ViolationError("sent HEADERS without its priority", frames.FRAME_SIZE_ERROR)
            body = body[5:]
        self.stream = stream
        self.ends_stream = bool(flags & frames.END_STREAM)
        self._block = bytearray(body)
        self._continuations = 0
        self._check_size()
        self.is_open = not flags & frames.END_HEADERS

    def add(self, flags: int, stream: int, payload: memoryview) -> None:
        """Takes a CONTINUATION frame; the arguments are those of `begin`."""
        if not self.is_open or stream != self.stream:
            raise ViolationError("sent CONTINUATION outside a header block")
        self._block += payload
        self._continuations += 1
        self._check_size()
        if self._continuations > _MAX_CONTINUATIONS:
            raise ViolationError(
                f"sent more than {_MAX_CONTINUATIONS} CONTINUATION frames in one header block",
                frames.ENHANCE_YOUR_CALM,
            )
        self.is_open = not flags & frames.END_HEADERS

    def decode(self) -> list[Header]:
        """Returns the headers of the block that is complete, in order.

        Every block must be decoded, also one for a stream that is closed: the decoder's table
        depends on it (section 4.3).
        """
        block, self._block = bytes(self._block), bytearray()
        return self.decoder.decode(block)

    def _check_size(self) -> None:
        if len(self._block) > self._max_bytes:
            raise ViolationError(
                f"sent more than {self._max_bytes} bytes of headers", frames.ENHANCE_YOUR_CALM
            )
