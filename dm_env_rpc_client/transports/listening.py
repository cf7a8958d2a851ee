"""Binds a server to an address; to `localhost` with both IPv4 and IPv6, or not at all.

`localhost` is two addresses, one of IPv4 and one of IPv6, and gRPC binds only one if the other is
taken. A client that tries the other first would then connect to a different program.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
from collections.abc import Callable

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.transports.addresses import parse_host_port

__all__ = ["cannot_listen", "listen", "try_to_bind", "unix_path"]

_ATTEMPTS = 10
_FAMILIES = {"127.0.0.1": socket.AF_INET, "::1": socket.AF_INET6}


def listen(add_port: Callable[[str], int], address: str) -> str:
    """Binds a server to an address.

    Args:
      add_port: binds it to one address as gRPC writes them and returns the port;
        OSError if it is taken.
      address: `host:port` (port 0 is any free one) or `unix:path`.

    Returns:
      The address, with the actual port.

    Raises:
      OSError: the address is taken, or this machine does not have it; see `cannot_listen`.
    """
    host, _, port = address.rpartition(":")
    try:
        if address.startswith("unix:"):
            _clear(unix_path(address))
        if host != "localhost" or not port.isdigit():
            number = add_port(address)
            return address if address.startswith("unix") else f"{host}:{number}"
        places = [place for place in _FAMILIES if _has(place)]
        for attempt in range(_ATTEMPTS):
            chosen = int(port) or _free_port(places)
            try:
                for place in places:
                    add_port(f"[{place}]:{chosen}" if ":" in place else f"{place}:{chosen}")
            except OSError:
                # Another program took the port in between.
                if int(port) or attempt + 1 == _ATTEMPTS:
                    raise
            else:
                return f"localhost:{chosen}"
    except OSError as error:
        raise cannot_listen(address, error) from error
    raise AssertionError


def cannot_listen(address: str, error: OSError) -> OSError:
    """Returns the error of a server that cannot listen: its cause, with the address and advice.

    Args:
      address: where it was to listen.
      error: the cause, whose `errno` it has.
    """
    number = error.errno or 0  # Negative for names that cannot be resolved.
    cause = os.strerror(number) if number > 0 else error.strerror or error
    text = f"cannot listen on {address}: {cause}"
    if error.errno == errno.EADDRINUSE:
        text += _TAKEN_PATH if address.startswith("unix:") else _TAKEN_PORT
    return OSError(text) if error.errno is None else type(error)(error.errno, text)


_TAKEN_PORT = "; another program listens there: end it, or choose another port (0 is any free one)"
_TAKEN_PATH = "; another program listens there, or it is a file: choose another path"


def try_to_bind(address: str) -> None:
    """Binds a socket to an address and closes it, for the error with which that fails.

    Args:
      address: `host:port` or `unix:path`; for any other form nothing is tried.

    Raises:
      OSError: as `bind`.
    """
    if address.startswith("unix:"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.bind(unix_path(address))
        os.unlink(unix_path(address))
        return
    with contextlib.suppress(SpecError):
        host, port = parse_host_port(address)
        for family, kind, protocol, _, where in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(where)


def unix_path(address: str) -> str:
    """Returns the path in `unix:path` or `unix:///path`."""
    return address.removeprefix("unix:").removeprefix("//")


def _clear(path: str) -> None:
    """Removes the file of a server that was killed; OSError for any other file."""
    with contextlib.suppress(FileNotFoundError):
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
        # grpcio would remove that of a server that runs.
        if not is_socket or not _is_stale(path):
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        os.unlink(path)


def _is_stale(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # A server that does not accept at the moment lets a blocking socket wait.
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


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
