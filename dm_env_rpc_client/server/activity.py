"""What a server does, counted for programs and logged for people.

The counters of a stream belong to it alone, so they need no lock; those of all streams are added
up when somebody asks. Nothing is logged for each step. Clients that connect or are refused again
and again do not fill the log.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Iterable, Mapping

from dm_env_rpc_client.protocol import telemetry
from dm_env_rpc_client.server.error_log import Allowance
from dm_env_rpc_client.tensors.limits import shortened

__all__ = ["Activity", "Counts", "ServerStats", "added_up"]

# Refusals are in the log of failures; clients that come and go are not, and can be left out.
_log = logging.getLogger("dm_env_rpc_client.server")
_clients_log = logging.getLogger("dm_env_rpc_client.server.clients")

_KINDS = (
    *("create_world", "join_world", "step", "reset", "reset_world", "leave_world"),
    *("destroy_world", "extension"),
)
_TEXT_BYTES = 500


@dataclasses.dataclass(frozen=True)
class ServerStats:
    """What a server has done since it was started; from `Server.stats`.

    Attributes:
      uptime: seconds since the start.
      streams: streams that are open; a client has one for each of its connections.
      all_streams: streams that were opened.
      refused_streams: streams that were refused: beyond `max_connections`, or for want of the right
        token.
      worlds: worlds that exist.
      agents: agents that are joined to them.
      steps: step requests, those that failed among them.
      requests: requests by kind, such as "create_world"; all kinds are there.
      refusals: requests that were refused because of what the client sent.
      errors: exceptions of the environments and of the server itself.
    """

    uptime: float
    streams: int
    all_streams: int
    refused_streams: int
    worlds: int
    agents: int
    steps: int
    requests: Mapping[str, int]
    refusals: int
    errors: int


class Counts:
    """The counters of one stream. Only its thread writes them.

    Attributes:
      steps: step requests in the usual form, which are not among `requests`.
      requests: all others, by kind.
      refusals: requests that were refused.
    """

    __slots__ = ("refusals", "requests", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.requests = dict.fromkeys(_KINDS, 0)
        self.refusals = 0

    def add(self, others: Iterable[Counts]) -> None:
        """Adds the counts of other streams."""
        for other in others:
            self.steps += other.steps
            self.refusals += other.refusals
            for kind, count in other.requests.items():
                self.requests[kind] += count


class Activity:
    """Counts and logs what happens on the streams of a server. Thread-safe.

    Args:
      tells_clients: whether to log who connects.
    """

    def __init__(self, tells_clients: bool = True) -> None:
        self._tells_clients = tells_clients
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._open: set[Counts] = set()
        self._ended = Counts()
        self._all_streams = 0
        self._refused_streams = 0
        self._connects = Allowance()
        self._refusals = Allowance()

    def opened(self, client: str) -> Counts:
        """A stream was opened; returns its counters."""
        counts = Counts()
        with self._lock:
            self._all_streams += 1
            self._open.add(counts)
        self._tell(f"{client} connected")
        return counts

    def ended(self, client: str, counts: Counts) -> None:
        """A stream has ended."""
        with self._lock:
            self._open.remove(counts)
            self._ended.add([counts])
        self._tell(f"{client} disconnected")

    def refused_stream(self, client: str, reason: str) -> None:
        """A stream was refused; the reason begins with the name of the status."""
        with self._lock:
            self._refused_streams += 1
        takes_reports = telemetry.installed()
        if takes_reports is not None:
            takes_reports.refused(reason.partition(":")[0])
        text = shortened(reason, _TEXT_BYTES)
        self._refusals.log(_log, logging.INFO, f"refused the client {client}: {text}")

    def refused(self, client: str, kind: str, reason: str) -> None:
        """A request was refused."""
        level = logging.DEBUG if kind == "step" else logging.INFO
        if _log.isEnabledFor(level):
            text = shortened(reason, _TEXT_BYTES)
            self._refusals.log(_log, level, f"refused a {kind} request of {client}: {text}")

    def _tell(self, text: str) -> None:
        if self._tells_clients:
            self._connects.log(_clients_log, logging.INFO, text)

    def stats(self, worlds: int, agents: int, errors: int) -> ServerStats:
        """Adds everything up."""
        total = Counts()
        with self._lock:
            total.add([self._ended, *self._open])
            streams, all_streams = len(self._open), self._all_streams
            refused_streams = self._refused_streams
        total.requests["step"] += total.steps
        return ServerStats(
            uptime=time.monotonic() - self._began,
            streams=streams,
            all_streams=all_streams,
            refused_streams=refused_streams,
            worlds=worlds,
            agents=agents,
            steps=total.requests["step"],
            requests=total.requests,
            refusals=total.refusals,
            errors=errors,
        )


def added_up(stats: Iterable[ServerStats]) -> ServerStats:
    """Returns the sums of what several parts of a server have done; the longest uptime."""
    each = list(stats)
    total = Counts()
    for one in each:
        for kind, count in one.requests.items():
            total.requests[kind] += count
    return ServerStats(
        uptime=max((one.uptime for one in each), default=0.0),
        streams=sum(one.streams for one in each),
        all_streams=sum(one.all_streams for one in each),
        refused_streams=sum(one.refused_streams for one in each),
        worlds=sum(one.worlds for one in each),
        agents=sum(one.agents for one in each),
        steps=total.requests["step"],
        requests=total.requests,
        refusals=sum(one.refusals for one in each),
        errors=sum(one.errors for one in each),
    )
