"""Ports that stay those of a test when its server has gone, and ports that no test may use."""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Iterator

USUAL = (5001, 50051, 50052)
"""Where servers listen whose users name no port."""


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
                self.number = _hold(stack, socket.AF_INET, "127.0.0.1", 0, socket.SO_REUSEADDR)
                if not socket.has_ipv6:
                    break
                try:
                    _hold(stack, socket.AF_INET6, "::1", self.number, socket.SO_REUSEADDR)
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


@contextlib.contextmanager
def usual_ports_held() -> Iterator[None]:
    """Keeps servers from the ports in `USUAL`.

    A server beside the tests may have them, or a second run of the tests. Without this, a test that
    takes one would fail in that case only; with it, such a test always fails.
    """
    with contextlib.ExitStack() as stack:
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            for number in USUAL:
                with contextlib.suppress(OSError):  # It is taken already, or there is no IPv6.
                    # Runs beside this one hold it, too, so that one may end before the other.
                    _hold(stack, family, host, number, socket.SO_REUSEPORT)
        yield


def _hold(stack: contextlib.ExitStack, family: int, host: str, port: int, option: int) -> int:
    held = stack.enter_context(socket.socket(family))
    held.setsockopt(socket.SOL_SOCKET, option, 1)
    held.bind((host, port))
    return int(held.getsockname()[1])
