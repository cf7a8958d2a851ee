"""The instruments of clients and of servers, and what is measured with them.

Counts of requests, bytes and connections are added up without locks, as in `server/activity.py`,
and read when metrics are collected. So a request costs one call of OpenTelemetry, for its duration.
"""

from __future__ import annotations

import collections
import functools
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation

from dm_env_rpc_client.system.locks import make_lock

KIND = "dm_env_rpc.request"
"""The attribute with the kind of a request: those of a connection are messages of one call."""

CALL = {"rpc.system.name": "grpc", "rpc.method": "dm_env_rpc.v1.Environment/Process"}
"""See "Semantic conventions for gRPC" of OpenTelemetry."""

_SECONDS = (
    *(0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0),
)
"""Boundaries for durations: steps take tens of microseconds, and engines minutes to start."""

Attributes: TypeAlias = Mapping[str, str | int]
_Key: TypeAlias = frozenset[tuple[str, str | int]]


class Tally:
    """The counters of one stream. Each has one writer: the thread that begins, or that ends."""

    __slots__ = ("attributes", "begun_bytes", "connections", "ended_bytes", "requests")

    def __init__(self, attributes: Attributes, connections: int):
        self.attributes = attributes
        self.connections = connections
        self.requests: dict[str, int] = {}
        self.begun_bytes = 0
        self.ended_bytes = 0


class End:
    """The instruments of all clients, or of all servers, of this process."""

    def __init__(self, name: str, meter: metrics.Meter, tracer: trace.Tracer, step_spans: bool):
        self.tracer = tracer
        self.step_spans = step_spans
        self._lock = make_lock()
        self._open: set[Tally] = set()
        self._closed: collections.deque[Tally] = collections.deque()
        # Of the streams that have ended, by their attributes.
        self._ended: dict[_Key, Tally] = {}
        prefix = f"dm_env_rpc.{name}"
        self._duration = meter.create_histogram(
            f"{prefix}.request.duration",
            "s",
            "From a request to its answer."
            if name == "client"
            else "From the arrival of a request until there is its answer.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._errors = meter.create_counter(
            f"{prefix}.errors", "{error}", "Requests, and attempts to connect, that failed."
        )
        sent, received = ("begun_bytes", "ended_bytes")[:: 1 if name == "client" else -1]
        for what, counted in (("sent", sent), ("received", received)):
            meter.create_observable_counter(
                f"{prefix}.{what}",
                [functools.partial(self._observe, counted)],
                "By",
                f"Size of the messages that were {what}, without framing.",
            )
        meter.create_observable_counter(
            f"{prefix}.requests", [self._observe_requests], "{request}", "Requests by kind."
        )
        meter.create_observable_up_down_counter(
            f"{prefix}.connections",
            [functools.partial(self._observe, "connections")],
            "{connection}",
            "Open connections.",
        )

    def opened(self, attributes: Attributes, is_connection: bool) -> Tally:
        """Returns the counters of a new stream."""
        tally = Tally(attributes, int(is_connection))
        with self._lock:
            self._fold()
            self._open.add(tally)
        return tally

    def closed(self, tally: Tally) -> None:
        """A stream has ended. The garbage collector may call this, in the middle of anything."""
        self._closed.append(tally)

    def ended(self, seconds: float, attributes: Attributes) -> None:
        """A request has an outcome; see `outcome` for the attributes."""
        self._duration.record(seconds, attributes)

    def failed(self, kind: str, where: Attributes, error: BaseException | None, code: str) -> None:
        """Counts an error."""
        attributes = {**CALL, **where, KIND: kind, "error.type": error_type(error, code)}
        if error is not None:
            attributes["exception.type"] = type_of(error)
        self._errors.add(1, attributes)

    def _fold(self) -> None:
        while self._closed:
            tally = self._closed.popleft()
            if tally in self._open:
                self._open.remove(tally)
                tally.connections = 0
                _add(self._ended, tally)

    def _totals(self) -> Iterable[Tally]:
        totals: dict[_Key, Tally] = {}
        with self._lock:
            self._fold()
            # Servers with no connection left are told of, too: the last number would stay.
            for tally in (*self._ended.values(), *self._open):
                _add(totals, tally)
        return totals.values()

    def _observe(self, counted: str, _: CallbackOptions) -> Iterable[Observation]:
        for tally in self._totals():
            yield Observation(getattr(tally, counted), {**CALL, **tally.attributes})

    def _observe_requests(self, _: CallbackOptions) -> Iterable[Observation]:
        for tally in self._totals():
            for kind, count in tally.requests.items():
                yield Observation(count, {**CALL, **tally.attributes, KIND: kind})


def _add(totals: dict[_Key, Tally], tally: Tally) -> None:
    """Adds what a stream has counted to what others with the same attributes have."""
    key = frozenset(tally.attributes.items())
    total = totals.setdefault(key, Tally(tally.attributes, 0))
    total.connections += tally.connections
    total.begun_bytes += tally.begun_bytes
    total.ended_bytes += tally.ended_bytes
    for kind, count in list(tally.requests.items()):
        total.requests[kind] = total.requests.get(kind, 0) + count


@functools.lru_cache(maxsize=1024)
def server_attributes(address: str) -> Attributes:
    """Returns the attributes that name a server."""
    if address.startswith(("unix:", "unix-abstract:")):
        return {"server.address": address.partition(":")[2], "network.transport": "unix"}
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return {"server.address": address}
    return {"server.address": host.rpartition("/")[2].strip("[]"), "server.port": int(port)}


def peer_attributes(peer: str) -> Attributes:
    """Returns the attributes that name a client, from its address in the syntax of gRPC."""
    scheme, _, rest = urllib.parse.unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    if scheme not in ("ipv4", "ipv6") or not port.isdigit():
        return {"client.address": peer}
    return {"client.address": host.strip("[]"), "client.port": int(port)}


@functools.lru_cache(maxsize=4096)
def outcome(where: _Key, kind: str, code: str, error_type: str) -> Attributes:
    """Returns the attributes of a request that has an outcome.

    Args:
      where: the attributes of the stream.
      kind: of the request.
      code: the name of the status in the answer; "" if there was none.
      error_type: "" if it is no error at this end.
    """
    attributes = {**CALL, **dict(where), KIND: kind}
    if code:
        attributes["rpc.response.status_code"] = code
    if error_type:
        attributes["error.type"] = error_type
    return attributes


def error_type(error: BaseException | None, code: str) -> str:
    """The code of the answer, or the class of the error if there is no answer."""
    return code if error is None or code not in ("", "OK") else type_of(error)


def type_of(error: BaseException) -> str:
    """Returns the qualified name of the class of an error."""
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
