"""Ports that stay those of a test when its server has gone."""

from __future__ import annotations

import contextlib
import errno
import socket


class HeldPort:
    """A port of the loopback addresses that nobody gets who asks for any free one.

    Other tests run beside this one. A server of theirs may get the port of a server that was killed
    here, and then the clients that look for the latter connect to it. A server that sets
    SO_REUSEADDR, as those of this package and of gRPC do, can listen at a held port.

    It is held for IPv4 and IPv6, other than by `launch.ports.Port`: a server at localhost asks for
    any port of one of them, and listens at the same one of the other.

    Attributes:
      number: the port.
      address: of a server that listens there.
    """

    def __init__(self) -> None:
        with contextlib.ExitStack() as stack:
            while True:
                self.number = _hold(stack, socket.AF_INET, "127.0.0.1", 0)
                if not socket.has_ipv6:
                    break
                try:
                    _hold(stack, socket.AF_INET6, "::1", self.number)
                except OSError as error:
                    if error.errno == errno.EADDRINUSE:
                        continue
                break  # Also where there is no IPv6.
            self._sockets = stack.pop_all()
        self.address = f"localhost:{self.number}"

    def close(self) -> None:
        """Lets others have it; a second call does nothing."""
        self._sockets.close()

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _hold(stack: contextlib.ExitStack, family: int, host: str, port: int) -> int:
    held = stack.enter_context(socket.socket(family))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, port))
    return int(held.getsockname()[1])
