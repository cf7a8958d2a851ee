"""Metrics and traces of clients and servers, through OpenTelemetry, with the extra `otel`.

That is the API alone; the SDK and its exporters are yours. The guide is
`docs/how-to/metrics-and-traces.md`.
"""

# Read `instrumentor.py` first: it switches reports on, which `protocol/telemetry.py` defines.
# `instruments.py` holds the metrics, `reports.py` what is told of each request.

from dm_env_rpc_client.extras import importing

with importing("otel", "metrics and traces need"):
    from dm_env_rpc_client.adaptors.opentelemetry.instrumentor import DmEnvRpcInstrumentor

__all__ = ["DmEnvRpcInstrumentor"]
