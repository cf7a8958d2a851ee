"""What both ends report for metrics and traces, and to whom.

Nothing is reported unless a `Telemetry` is installed, which `adaptors/opentelemetry.py` does. What
is installed is looked up when a connection, a server or the end of a stream is made, and not in a
step: without telemetry they are made of the same classes as if this file were not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

__all__ = [
    "Pairs",
    "Reports",
    "Telemetry",
    "context",
    "install",
    "installed",
    "restarted",
    "span",
]

Pairs: TypeAlias = "tuple[tuple[str, str | bytes], ...]"
"""Metadata of a stream: keys in lower case, and values."""


class Reports(Protocol):
    """Is told of the requests at one end of one stream.

    One thread at a time calls `begin` and one at a time `end`, which may be another one.
    """

    def begin(self, kind: str, at: float, size: int) -> Any:
        """A request is about to be written, or was received.

        Args:
          kind: the field of the request, such as "create_world"; "unknown" if it has none.
          at: when that is or was: `time.perf_counter()`.
          size: of the request, in bytes.

        Returns:
          What `end` takes.
        """

    def end(self, begun: Any, at: float, size: int, error: BaseException | None, code: str) -> None:
        """A request has an outcome.

        Args:
          begun: what `begin` returned.
          at: when the answer was received, or is about to be sent: `time.perf_counter()`.
          size: of the answer, in bytes; 0 if there is none.
          error: why the request failed; None if it did not, or if that is known by its code only.
          code: the name of the status that the server answered; "" if it did not answer.
        """

    def close(self) -> None:
        """The stream has ended; a second call does nothing. Any thread may call it."""


class Telemetry(Protocol):
    """Takes what is reported."""

    def client(self, address: str) -> Reports:
        """A connection was opened to the server at an address."""

    def server(self, peer: str, metadata: Pairs, is_connection: bool) -> Reports:
        """A stream was opened.

        Args:
          peer: the address of its client.
          metadata: what the client sent with the call.
          is_connection: whether it counts as one; not if another process has the connection.
        """

    def serve(self, worlds: Callable[[], int | None]) -> None:
        """There are worlds in this process; the function counts them, None when it is over."""

    def refused(self, code: str) -> None:
        """A server has refused a stream, with the status of this name."""

    def span(self, name: str, address: str) -> AbstractContextManager[object]:
        """A context in which a client does something that takes one or several requests.

        Args:
          name: what it does, such as "connect".
          address: of the server.
        """

    def context(self) -> Pairs:
        """Returns the metadata that names the current span to a server."""

    def restarted(self, address: str, cause: BaseException | None) -> None:
        """Counts an environment that was launched or connected again."""


_installed: Telemetry | None = None


def install(telemetry: Telemetry | None) -> None:
    """Has connections and servers that are made from now on report; None for no more of them."""
    global _installed
    _installed = telemetry


def installed() -> Telemetry | None:
    """Returns what takes the reports; None if nothing does."""
    return _installed


def span(name: str, address: str) -> AbstractContextManager[object]:
    """Returns a `Telemetry.span`; without telemetry an empty context."""
    return contextlib.nullcontext() if _installed is None else _installed.span(name, address)


def context() -> Pairs:
    """Returns the metadata that names the current span; without telemetry none."""
    return () if _installed is None else _installed.context()


def restarted(address: str, cause: BaseException | None = None) -> None:
    """Counts an environment that was launched or connected again after its server was lost.

    Args:
      address: of the server, or what was launched.
      cause: the error that told of the loss.
    """
    if _installed is not None:
        _installed.restarted(address, cause)
