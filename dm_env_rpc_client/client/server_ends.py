"""Lost-connection errors that say how the server ended, if this process launched it."""

from __future__ import annotations

import weakref
from typing import Protocol

from dm_env_rpc_client.errors import ConnectionLostError, LaunchError

# Codes of a stream whose server is gone; any other code was sent by a running server.
_MAY_HAVE_ENDED = (None, "UNAVAILABLE", "CANCELLED", "UNKNOWN")


class WatchedServer(Protocol):
    """A launched server whose process is known."""

    def end(self) -> LaunchError | None:
        """Wait briefly for the server, and return how it ended, or None if it still runs."""


_servers: weakref.WeakValueDictionary[str, WatchedServer] = weakref.WeakValueDictionary()


def watch(address: str, server: WatchedServer) -> None:
    """Make lost-connection errors for an address report how its server ended."""
    _servers[address] = server


def unwatch(address: str, server: WatchedServer) -> None:
    """Undo `watch`, unless another server has since been launched at the address."""
    if _servers.get(address) is server:
        del _servers[address]


def watched(address: str, cause: BaseException) -> WatchedServer | None:
    """Return the launched server whose end might explain a lost connection, or None.

    Args:
      address: the address of the connection.
      cause: the first error of the connection.
    """
    if isinstance(cause, ConnectionLostError) and cause.code in _MAY_HAVE_ENDED:
        return _servers.get(address)
    return None


def end_of(address: str, cause: BaseException) -> LaunchError | None:
    """Return how the launched server ended that explains a lost connection, or None.

    Args:
      address: the address of the connection.
      cause: the first error of the connection.
    """
    server = watched(address, cause)
    return None if server is None else server.end()
