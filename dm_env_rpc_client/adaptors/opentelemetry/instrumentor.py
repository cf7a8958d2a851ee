"""The instrumentor: switches metrics and traces on."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator

from opentelemetry import context as contexts
from opentelemetry import metrics, propagate, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import SpanKind

from dm_env_rpc_client.adaptors.opentelemetry.instruments import (
    CALL,
    Attributes,
    End,
    server_attributes,
    type_of,
)
from dm_env_rpc_client.adaptors.opentelemetry.reports import (
    ClientReports,
    ServerReports,
    end_span,
    harmless,
)
from dm_env_rpc_client.protocol import telemetry
from dm_env_rpc_client.system.locks import make_lock
from dm_env_rpc_client.version import __version__

_log = logging.getLogger(__name__)

_STEP_SPANS = "DM_ENV_RPC_STEP_SPANS"
"""The environment variable that asks for spans of steps, too, if it is "1" or "true"."""

_NAME = "dm_env_rpc"


class DmEnvRpcInstrumentor:
    """Switches metrics and traces on; `opentelemetry-instrument` finds it by its entry point.

    It has the methods of the instrumentors of OpenTelemetry. There is one state for the process.
    """

    def instrument(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        step_spans: bool | None = None,
        skip_dep_check: bool = False,
        raise_exception_on_conflict: bool = False,
    ) -> None:
        """Has connections and servers that are made from now on report.

        A second call does nothing but log a warning.

        Args:
          tracer_provider: takes the spans; None for that of the process.
          meter_provider: takes the metrics; None for that of the process.
          step_spans: whether each step is a span; None asks the environment variable
            DM_ENV_RPC_STEP_SPANS.
          skip_dep_check: as for other instrumentors; nothing is checked here.
          raise_exception_on_conflict: the same.
        """
        if self.is_instrumented_by_opentelemetry:
            _log.warning("dm_env_rpc_client is instrumented already")
            return
        if step_spans is None:
            step_spans = os.environ.get(_STEP_SPANS, "").lower() in ("1", "true")
        tracer = trace.get_tracer(_NAME, __version__, tracer_provider)
        meter = metrics.get_meter(_NAME, __version__, meter_provider)
        telemetry.install(_Telemetry(tracer, meter, step_spans))

    def uninstrument(self) -> None:
        """Has connections and servers that are made from now on report nothing."""
        telemetry.install(None)

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether it is switched on."""
        return isinstance(telemetry.installed(), _Telemetry)


class _Telemetry:
    """Takes what is reported; a `telemetry.Telemetry`."""

    def __init__(self, tracer: trace.Tracer, meter: metrics.Meter, step_spans: bool):
        self._tracer = tracer
        self._client = End("client", meter, tracer, step_spans)
        self._server = End("server", meter, tracer, step_spans)
        self._restarts = meter.create_counter(
            "dm_env_rpc.client.restarts", "{restart}", "Environments that were started again."
        )
        self._lock = make_lock()
        self._worlds: list[Callable[[], int | None]] = []
        meter.create_observable_up_down_counter(
            "dm_env_rpc.server.worlds", [self._count_worlds], "{world}", "Worlds that exist."
        )

    def client(self, address: str) -> telemetry.Reports:
        return ClientReports(self._client, server_attributes(address))

    def server(
        self, peer: str, metadata: telemetry.Pairs, is_connection: bool
    ) -> telemetry.Reports:
        return ServerReports(self._server, _context_in(metadata), peer, is_connection)

    def serve(self, worlds: Callable[[], int | None]) -> None:
        with self._lock:
            self._worlds = [each for each in self._worlds if each() is not None]
            self._worlds.append(worlds)

    @contextlib.contextmanager
    def span(self, name: str, address: str) -> Iterator[None]:
        where = server_attributes(address)
        span = self._begin(name, where)
        failure: BaseException | None = None
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield
        except BaseException as error:
            failure = error
            if name == "connect":
                self._client.failed(name, where, error, "")
            raise
        finally:
            end_span(span, failure, "", failure is not None)

    @harmless(trace.INVALID_SPAN)
    def _begin(self, name: str, where: Attributes) -> trace.Span:
        return self._tracer.start_span(
            f"dm_env_rpc.{name}",
            kind=SpanKind.CLIENT if name == "connect" else SpanKind.INTERNAL,
            attributes={**CALL, **where},
        )

    @harmless(())
    def context(self) -> telemetry.Pairs:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        # Others are no metadata of gRPC.
        return tuple(
            (key.lower(), value)
            for key, value in carrier.items()
            if value.isascii() and value.isprintable()
        )

    @harmless(None)
    def refused(self, code: str) -> None:
        self._server.failed("connect", {}, None, code)

    @harmless(None)
    def restarted(self, address: str, cause: BaseException | None) -> None:
        why = {} if cause is None else {"error.type": type_of(cause)}
        self._restarts.add(1, {**server_attributes(address), **why})

    def _count_worlds(self, _: CallbackOptions) -> Iterable[Observation]:
        with self._lock:
            worlds = list(self._worlds)
        yield Observation(sum(each() or 0 for each in worlds))


@harmless(contexts.Context())
def _context_in(metadata: telemetry.Pairs) -> contexts.Context:
    """Returns the context of a client's call."""
    texts = {key: value for key, value in metadata if isinstance(value, str)}
    return propagate.extract(texts, contexts.Context())
