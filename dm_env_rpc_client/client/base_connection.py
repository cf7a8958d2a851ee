"""The state shared by connections for threads and for asyncio."""

from __future__ import annotations

import abc
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from dm_env_rpc_client import arguments
from dm_env_rpc_client.client.connect_options import DEFAULT_KEEPALIVE, check_limits
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.protocol.lifecycle import Lifecycle
from dm_env_rpc_client.protocol.pipeline import KEEPALIVE_SECONDS, Pending, Pipeline
from dm_env_rpc_client.transports.endpoint import Tap
from dm_env_rpc_client.transports.streams import AsyncStream, Stream

if TYPE_CHECKING:
    from dm_env_rpc_client.tensors.memory_limits import Limits


CLOSE_SECONDS = 1.0
"""The time limit, in seconds, for the server to end a stream that the client has closed."""


def checked_timeouts(
    channel: object,
    request_timeout: float | None,
    keepalive_timeout: float | None,
    limits: Limits | None,
) -> tuple[float | None, float | None]:
    """Check a connection's arguments before its stream is opened.

    Args:
      channel: as for `Connection`.
      request_timeout: as for `Connection`.
      keepalive_timeout: as for `Connection`.
      limits: as for `Connection`.

    Returns:
      The two timeouts, in seconds.

    Raises:
      SpecError: an argument has a wrong type or is out of range.
    """
    # Passing the address is the usual mistake, so the error names `connect`.
    if not hasattr(channel, "stream_stream") and not hasattr(channel, "write"):
        hint = f"; did you mean connect({channel!r})?" if isinstance(channel, str) else ""
        raise SpecError(f"channel must be a grpc.Channel, got {arguments.shown(channel)}{hint}")
    check_limits(limits)
    return (
        arguments.seconds("request_timeout", request_timeout, none=arguments.NO_LIMIT),
        arguments.seconds("keepalive_timeout", keepalive_timeout, none=DEFAULT_KEEPALIVE),
    )


Pipelines: TypeAlias = weakref.WeakValueDictionary[int, Pipeline]
"""The requests pending on several streams, by any number.

The references are weak, because the finalizer of a connection refers to its stream, the stream to
this, and pending requests may refer to the connection.
"""


def keep_alive(stream: Stream | AsyncStream, pipelines: Pipelines) -> None:
    """Tell a stream how long its server may show no sign of life.

    Args:
      stream: the stream.
      pipelines: the requests pending on the stream and on others of the same server. The longest
        timeout counts, because an environment that resets may hold the GIL while others step.
    """

    def seconds() -> float:
        found = [pipeline for each in pipelines.valuerefs() if (pipeline := each()) is not None]
        return max([each.keepalive_seconds() for each in found], default=KEEPALIVE_SECONDS)

    stream.keep_alive(seconds)


class Requests(Protocol):
    """The pending requests of a connection."""

    @property
    def address(self) -> str:
        """The server's name in error messages."""

    @property
    def poisoned_by(self) -> BaseException | None:
        """The first error that made the stream unusable, or None while it is usable."""

    def __len__(self) -> int:
        """The number of pending requests."""


class BaseConnection(abc.ABC):
    """The base class of connections for threads and for asyncio.

    Args:
      pipeline: the pending requests.
      request_timeout: time limit for each answer, in seconds; None for no limit.
      limits: limits for answers; None for the defaults.
    """

    _pipeline: Requests
    _finalizer: weakref.finalize[..., object]
    """The finalizer, which ends the connection if nothing has closed it."""

    _tap: Tap | None = None
    """The recorder of the connection, which finishes writing before `close` returns."""

    def __init__(
        self,
        pipeline: Requests,
        request_timeout: float | None,
        limits: Limits | None,
    ):
        self._pipeline = pipeline
        self._limits = limits
        self._request_timeout = request_timeout
        self._lifecycle = Lifecycle()

    @property
    def address(self) -> str:
        """The server's address, as shown in error messages."""
        return self._pipeline.address

    @property
    def limits(self) -> Limits | None:
        """The limits for decoding an answer, or None for the defaults."""
        return self._limits

    @property
    def is_usable(self) -> bool:
        """Whether the connection is open and no error has made it unusable."""
        return self.poisoned_by is None

    @property
    def lifecycle(self) -> Lifecycle:
        """The read-only state of the connection as of the last answer."""
        return self._lifecycle

    @property
    def in_flight(self) -> int:
        """The number of pending requests, that is, those sent but not yet answered."""
        return len(self._pipeline)

    @property
    def poisoned_by(self) -> BaseException | None:
        """The first error that made the connection unusable, or None while it is usable."""
        return self._pipeline.poisoned_by

    @abc.abstractmethod
    def interrupted(self, error: BaseException, pendings: Iterable[Pending] | None = None) -> None:
        """Make the connection unusable if an error interrupted the wait for an answer.

        `wait` does so itself. Call this for an error that a signal handler raises between `start`
        and `wait`, or after `wait` before the answer is used.

        Args:
          error: the error.
          pendings: results of `start`; None if an answer is known to be lost.
        """

    def release(self, error: BaseException) -> None:
        """End the connection, without waiting, when an error has interrupted its use.

        Args:
          error: the error with which pending and later requests fail.
        """
        # Poisoned first: no thread may use the stream while it ends.
        self.interrupted(error)
        self._finalizer.detach()

    def _finish(self) -> None:
        """Tell the server that no more requests follow. Do not start requests after this call.

        Closing the connection then costs no round trip after the last answer. The asyncio
        pipeline does this when it is closed.
        """
        return

    def __repr__(self) -> str:
        state = "" if self.is_usable else f", unusable: {self.poisoned_by!r}"
        return f"<{type(self).__name__} to {self.address}{state}>"

    def _repr_html_(self) -> str:
        from dm_env_rpc_client.tensors.displays.connections import show_connection

        return show_connection(self)
