"""Reports of the requests of one stream, as durations and spans."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from dm_env_rpc_client.adaptors.opentelemetry.instruments import (
    CALL,
    KIND,
    Attributes,
    End,
    error_type,
    outcome,
    peer_attributes,
)
from dm_env_rpc_client.protocol import telemetry

_log = logging.getLogger(__name__)

_SERVER_ERRORS = frozenset(
    {"UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"}
)
"""The codes that OpenTelemetry's conventions for gRPC count as errors of a server. The others are
those of its clients."""


def harmless(default: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function log what it raises and return `default`: exporters do not end a step.

    The first error is a warning. Later ones, perhaps of each step, are logged at DEBUG.
    """

    def decorate(report: Callable[..., Any]) -> Callable[..., Any]:
        levels = iter([logging.WARNING])

        @functools.wraps(report)
        def run(*arguments: Any) -> Any:
            try:
                return report(*arguments)
            except Exception:
                _log.log(next(levels, logging.DEBUG), "telemetry failed", exc_info=True)
                return default

        return run

    return decorate


_Begun: TypeAlias = "tuple[()] | tuple[str, float, trace.Span | None, Any]"
"""The kind, when it began, its span, and what ends the span's context."""


class _Reports(telemetry.Reports):
    """What the reports of both ends have in common."""

    def __init__(self, end: End, where: Attributes, is_connection: bool):
        self._end = end
        self._where = where
        self._key = frozenset(where.items())
        self._tally = end.opened(where, is_connection)

    def close(self) -> None:
        self._end.closed(self._tally)

    def _count(self, kind: str, size: int) -> bool:
        """Counts a request; returns whether it has a span."""
        tally = self._tally
        tally.requests[kind] = tally.requests.get(kind, 0) + 1
        tally.begun_bytes += size
        return kind != "step" or self._end.step_spans

    @harmless(None)
    def end(
        self, begun: _Begun, at: float, size: int, error: BaseException | None, code: str
    ) -> None:
        if not begun:
            return
        kind, began, span, token = begun
        if size:  # Else it may be another thread than the one that reads.
            self._tally.ended_bytes += size
        is_error = self._is_error(error, code)
        failed = error_type(error, code) if is_error else ""
        self._end.ended(at - began, outcome(self._key, kind, code, failed))
        if error is not None or code != "OK":
            self._end.failed(kind, self._where, error, code)
        if span is not None:
            if token is not None:
                contexts.detach(token)
            end_span(span, error, code, is_error)

    def _is_error(self, error: BaseException | None, code: str) -> bool:
        """Whether it is this end that failed."""
        return error is not None or code != "OK"


class ClientReports(_Reports):
    """One connection of a client; a `telemetry.Reports`.

    Spans of requests belong to the current span, or else to that in which it was opened.
    """

    def __init__(self, end: End, where: Attributes):
        super().__init__(end, where, True)
        self._opened_in = contexts.get_current()

    @harmless(())
    def begin(self, kind: str, at: float, size: int) -> _Begun:
        span = None
        if self._count(kind, size):
            is_in_span = trace.get_current_span().get_span_context().is_valid
            span = self._end.tracer.start_span(
                f"dm_env_rpc.{kind}",
                None if is_in_span else self._opened_in,
                kind=SpanKind.CLIENT,
                attributes={**CALL, **self._where, KIND: kind},
            )
        return kind, at, span, None


class ServerReports(_Reports):
    """One stream of a server; a `telemetry.Reports`."""

    def __init__(self, end: End, parent: contexts.Context, peer: str, is_connection: bool):
        super().__init__(end, {}, is_connection)
        self._parent = parent
        self._peer = peer_attributes(peer)

    @harmless(())
    def begin(self, kind: str, at: float, size: int) -> _Begun:
        if not self._count(kind, size):
            return kind, at, None, None
        span = self._end.tracer.start_span(
            f"dm_env_rpc.{kind}",
            self._parent,
            kind=SpanKind.SERVER,
            attributes={**CALL, **self._peer, KIND: kind},
        )
        # So that spans of the environment are its children.
        token = contexts.attach(trace.set_span_in_context(span, self._parent))
        return kind, at, span, token

    def _is_error(self, error: BaseException | None, code: str) -> bool:
        return not code or code in _SERVER_ERRORS


@harmless(None)
def end_span(span: trace.Span, error: BaseException | None, code: str, is_error: bool) -> None:
    """Ends a span with its outcome."""
    if code:
        span.set_attribute("rpc.response.status_code", code)
    if error is not None:
        span.record_exception(error)
    if is_error:
        span.set_attribute("error.type", error_type(error, code))
        span.set_status(Status(StatusCode.ERROR, None if error is None else str(error)))
    span.end()
