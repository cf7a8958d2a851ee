"""A running server of this room: that of `replay` and that of `proxy`."""

from __future__ import annotations

from collections.abc import Callable

from dm_env_rpc_client.transports.server_streams import Listener

__all__ = ["MAX_STREAMS", "Serving"]

MAX_STREAMS = 256
"""Clients beyond this number are refused with RESOURCE_EXHAUSTED."""


class Serving:
    """A running server; made by `replay` and `proxy`.

    Args:
      listener: takes the streams.
      finish: called after it has stopped.

    Attributes:
      address: where it listens, such as "localhost:40123".
    """

    def __init__(self, listener: Listener, finish: Callable[[], None] = lambda: None):
        self.address = listener.address
        self._listener = listener
        self._finish = finish

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server stops, or `timeout` seconds; returns whether it stopped."""
        return self._listener.wait(timeout)

    def stop(self) -> None:
        """Stops serving, and completes the file that is recorded to."""
        self._listener.stop(0.0)
        self._finish()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
