"""What was reported for metrics and traces, as the SDK has it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk")
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from dm_env_rpc_client.adaptors.opentelemetry import DmEnvRpcInstrumentor


class Collected:
    """What was reported so far, as the SDK has it."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))

    def instrument(self, **options: Any) -> None:
        DmEnvRpcInstrumentor().instrument(
            tracer_provider=self.tracers, meter_provider=self.meters, **options
        )

    def points(self, name: str) -> list[Any]:
        """The data points of a metric, collected now."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return [
            point
            for scope in data.resource_metrics[0].scope_metrics
            for metric in scope.metrics
            if metric.name == f"dm_env_rpc.{name}"
            for point in metric.data.data_points
        ]

    def by_kind(self, name: str) -> dict[str, int]:
        """A counter, or the count of a histogram, by the kind of request."""
        found: dict[str, int] = {}
        for point in self.points(name):
            kind = point.attributes["dm_env_rpc.request"]
            count = point.count if hasattr(point, "count") else point.value
            found[kind] = found.get(kind, 0) + count
        return found

    def total(self, name: str) -> int:
        return sum(point.value for point in self.points(name))

    def errors(self, end: str) -> list[tuple[str, str, str]]:
        """The kind of request, the type of error and the class of each error that was counted."""
        return sorted(
            (
                point.attributes["dm_env_rpc.request"],
                point.attributes["error.type"],
                point.attributes.get("exception.type", ""),
            )
            for point in self.points(f"{end}.errors")
        )

    def spans(self, kind: SpanKind, name: str = "") -> list[ReadableSpan]:
        return [
            span
            for span in self.exporter.get_finished_spans()
            if span.kind is kind and span.name.endswith(name)
        ]


def names(spans: list[ReadableSpan]) -> list[str]:
    return [span.name.removeprefix("dm_env_rpc.") for span in spans]


def context_of(span: ReadableSpan) -> trace.SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context
