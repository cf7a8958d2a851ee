"""Counters and logs of a server's activity: counters for programs, logs for people.

All streams of a process increment the same array of counters. If the array is in shared memory,
the counts of a killed process remain readable. Steps are not logged individually. The rate of log
lines is limited, so that clients that repeatedly connect or are refused cannot fill the log.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import time
from collections.abc import Iterable, Mapping, MutableSequence

from dm_env_rpc_client._proto import dm_env_rpc_pb2
from dm_env_rpc_client.server.errors import Allowance
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.tensors.memory_limits import shortened

# Two loggers: connects and disconnects can be silenced without losing refusals and failures.
_log = logging.getLogger("dm_env_rpc_client.server")
_clients_log = logging.getLogger("dm_env_rpc_client.server.clients")

_KINDS = tuple(field.name for field in dm_env_rpc_pb2.EnvironmentRequest.DESCRIPTOR.fields)
_TEXT_BYTES = 500

COUNTED = (*_KINDS, "streams", "refused_streams", "refusals")
"""Counters since the start of a server: requests by kind, opened streams and refused streams."""

_PLACES = {name: place for place, name in enumerate(COUNTED)}
STEPS = _PLACES["step"]


@dataclasses.dataclass(frozen=True)
class ServerStats:
    """The activity of a server since its start, as returned by `Server.stats`.

    Attributes:
      uptime: seconds since the start.
      streams: open streams; a client has one for each of its connections.
      all_streams: streams opened since the start.
      refused_streams: streams refused because of `max_connections`, or because they lacked the
        right token.
      worlds: existing worlds.
      agents: agents joined to worlds.
      steps: step requests, including failed ones.
      requests: requests by kind, such as "create_world"; every kind is present.
      refusals: requests refused because of a mistake by the client.
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
    """Thread-safe counters of the stream activity of one process, written only by that process.

    Args:
      numbers: counters to add to, one for each of `COUNTED`; None for new ones.

    Attributes:
      numbers: as the argument.
      lock: held while a counter changes.
    """

    def __init__(self, numbers: MutableSequence[int] | ctypes.Array[ctypes.c_int64] | None = None):
        self.numbers = [0] * len(COUNTED) if numbers is None else numbers
        self.lock = make_lock()

    def add(self, name: str) -> None:
        """Add 1 to a counter."""
        # `+=` on an element reads and writes it: without the lock, threads would lose counts.
        with self.lock:
            self.numbers[_PLACES[name]] += 1


class Activity:
    """Thread-safe counters and logs of the streams of a server.

    Args:
      counts: the counters; None for new ones.

    Attributes:
      counts: as the argument.
      streams: the number of open streams.
    """

    def __init__(self, counts: Counts | None = None) -> None:
        self.counts = Counts() if counts is None else counts
        self._began = time.monotonic()
        self._lock = make_lock()
        self.streams = 0
        self._connects = Allowance()
        self._refusals = Allowance()

    def opened(self, client: str) -> None:
        """Record an opened stream."""
        self.counts.add("streams")
        with self._lock:
            self.streams += 1
        self._connects.log(_clients_log, logging.INFO, f"{client} connected")

    def ended(self, client: str) -> None:
        """Record the end of a stream."""
        with self._lock:
            self.streams -= 1
        self._connects.log(_clients_log, logging.INFO, f"{client} disconnected")

    def refused_stream(self, client: str, reason: str) -> None:
        """Record a refused stream."""
        self.counts.add("refused_streams")
        text = shortened(reason, _TEXT_BYTES)
        self._refusals.log(_log, logging.INFO, f"refused the client {client}: {text}")

    def refused(self, client: str, kind: str, reason: str) -> None:
        """Record a refused request."""
        self.counts.add("refusals")
        level = logging.DEBUG if kind == "step" else logging.INFO
        article = "an" if kind == "extension" else "a"
        # Checked first: refused steps are usually not logged, and need no text.
        if _log.isEnabledFor(level):
            text = shortened(reason, _TEXT_BYTES)
            self._refusals.log(_log, level, f"refused {article} {kind} request of {client}: {text}")

    def stats(
        self, worlds: int, agents: int, errors: int, workers: Iterable[Iterable[int]] = ()
    ) -> ServerStats:
        """Return the counts, combined with the numbers passed as arguments.

        Args:
          worlds: the number of existing worlds.
          agents: the number of joined agents.
          errors: the number of exceptions.
          workers: counters of the server's other processes, in the order of `COUNTED`.
        """
        sums = map(sum, zip(self.counts.numbers, *workers, strict=True))
        total = dict(zip(COUNTED, sums, strict=True))
        return ServerStats(
            uptime=time.monotonic() - self._began,
            streams=self.streams,
            all_streams=total["streams"],
            refused_streams=total["refused_streams"],
            worlds=worlds,
            agents=agents,
            steps=total["step"],
            requests={kind: total[kind] for kind in _KINDS},
            refusals=total["refusals"],
            errors=errors,
        )
