"""Binds a server to an address; to `localhost` with both IPv4 and IPv6, or not at all.

`localhost` is two addresses, one of IPv4 and one of IPv6, and gRPC binds only one if the other is
taken. A client that tries the other first would then connect to a different program.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

_ATTEMPTS = 10
_FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


def listen(add_port: Callable[[str], int], address: str) -> str:
    """Binds a server to an address.

    Args:
      add_port: binds it to one address as gRPC writes them and returns the port;
        RuntimeError if it is taken.
      address: `host:port` (port 0 is any free one) or `unix:path`.

    Returns:
      The address, with the actual port.

    Raises:
      OSError: the address is taken, or this machine does not have it.
    """
    host, _, port = address.rpartition(":")
    try:
        if host != "localhost" or not port.isdigit():
            number = add_port(address)
            return address if address.startswith("unix:") else f"{host}:{number}"
        places = [place for place in _FAMILIES if _has(place)]
        for attempt in range(_ATTEMPTS):
            chosen = int(port) or _free_port(places)
            try:
                for place in places:
                    add_port(f"[{place}]:{chosen}" if ":" in place else f"{place}:{chosen}")
            except RuntimeError:
                # Another program took the port in between.
                if int(port) or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return f"localhost:{chosen}"
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    raise AssertionError


def _has(place: str) -> bool:
    """Whether the machine has this loopback address."""
    try:
        with socket.socket(_FAMILIES[place]) as probe:
            probe.bind((place, 0))
    except OSError:
        return False
    return True


def _free_port(places: list[str]) -> int:
    """Returns a port that is free on all of the addresses."""
    while True:
        with contextlib.ExitStack() as stack:
            port = 0
            try:
                for place in places:
                    probe = stack.enter_context(socket.socket(_FAMILIES[place]))
                    probe.bind((place, port))
                    port = probe.getsockname()[1]
            except OSError:
                continue
            return port
