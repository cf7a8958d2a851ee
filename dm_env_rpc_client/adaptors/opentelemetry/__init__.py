"""Metrics and traces of clients and servers, through OpenTelemetry; and what is logged.

`instrumentor.py` switches them on.
"""

from dm_env_rpc_client.adaptors.opentelemetry.instrumentor import DmEnvRpcInstrumentor

__all__ = ["DmEnvRpcInstrumentor"]
