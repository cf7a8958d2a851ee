"""A running server of this room: that of `replay` and that of `proxy`."""

from __future__ import annotations

from collections.abc import Callable

from dm_env_rpc_client import arguments
from dm_env_rpc_client.transports.endpoint import Transport
from dm_env_rpc_client.transports.listeners import open_listener
from dm_env_rpc_client.transports.server_streams import ListenerOptions, OpenStream

_MAX_STREAMS = 256
"""Clients beyond this number are refused with RESOURCE_EXHAUSTED."""


class Serving:
    """A running server; made by `replay` and `proxy`.

    Args:
      open_stream: makes the server's end of a stream.
      address: where to listen, in plaintext.
      transport: of the listener.
      finish: called after it has stopped.

    Attributes:
      address: where it listens, such as "localhost:40123".

    Raises:
      OSError: the address is taken, or does not belong to this machine.
    """

    def __init__(
        self,
        open_stream: OpenStream,
        address: str,
        transport: Transport,
        finish: Callable[[], None] = lambda: None,
    ):
        options = ListenerOptions(open_stream, _MAX_STREAMS)
        self._listener = open_listener(options, address, None, transport)
        self.address = self._listener.address
        self._finish = finish

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the server stops.

        Args:
          timeout: seconds; 0 looks once, None sets no limit.

        Returns:
          Whether it stopped.

        Raises:
          SpecError: the timeout is not such a number.
        """
        none = arguments.NO_LIMIT
        return self._listener.wait(arguments.seconds("timeout", timeout, least=0.0, none=none))

    def stop(self) -> None:
        """Stops serving, and completes the file that is recorded to."""
        self._listener.stop(0.0)
        self._finish()

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
