"""What remains of an unclosed connection: the stream that its finalizer ends.

A finalizer must not refer to the pipeline. The pipeline can hold an error whose traceback refers
to the connection, and the finalizer would then keep its own connection alive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from dm_env_rpc_client.transports.streams import Stream


class Remains:
    """The stream of a pipeline, kept for the finalizer.

    Args:
      stream: the stream.
      wake: a function that ends the pipeline's thread.

    Attributes:
      cause: the type of the error that made the pipeline unusable; None while it is usable.
    """

    def __init__(self, stream: Stream, wake: Callable[[], None]):
        self.cause: type[BaseException] | None = None
        self._stream = stream
        self._wake = wake
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process, and not the process that forked it, owns the stream."""
        return os.getpid() == self._pid

    def abort(self) -> None:
        """End the stream immediately, except in a forked child."""
        if self.is_own:
            self._wake()
            self._stream.abort()

    def end_with(self, messages: Sequence[bytes], timeout: float) -> None:
        """Send the last requests, wait for their answers, and end the stream.

        Nothing else may use the stream any more.

        Args:
          messages: encoded requests. Their answers are dropped.
          timeout: time limit for the answers, in seconds.
        """
        if self.is_own:
            try:
                self._wake()
                self._stream.write(*messages)
                self._stream.close(timeout)
            finally:
                self._stream.abort()
