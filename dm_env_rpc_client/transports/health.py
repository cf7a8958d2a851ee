"""The gRPC health service: `grpc.health.v1.Health`, whose answer is always SERVING.

Load balancers and orchestrators ask for it. The messages have one field each, so that their bytes
stand here instead of a dependency on generated code.
"""

from __future__ import annotations

from typing import NamedTuple

from dm_env_rpc_client.transports.server_streams import ServerStream, StreamStatusError
from dm_env_rpc_client.transports.status import PROCESS

__all__ = ["CHECK", "WATCH", "Health", "open_health"]

CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"

_SERVING = b"\x08\x01"
_SERVICE_UNKNOWN = b"\x08\x03"
_SERVICES = ("", PROCESS.split("/")[1])


class Health(NamedTuple):
    """An answer to a method of the health service."""

    stream: ServerStream
    is_unary: bool
    """Whether the call ends with the answer."""


class _Answer:
    may_wait = False

    def __init__(self, is_unary: bool):
        self._is_unary = is_unary

    def answer(self, message: bytes) -> bytes:
        """Returns a HealthCheckResponse for a HealthCheckRequest."""
        # Field 1 is the name of the service; none is the whole server.
        name = message[2:] if message[:1] == b"\x0a" else message
        if name.decode("utf-8", "replace") in _SERVICES:
            return _SERVING
        if self._is_unary:
            raise StreamStatusError("NOT_FOUND", "the server has no such service")
        return _SERVICE_UNKNOWN

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def open_health(path: str) -> Health | None:
    """Returns what answers a method of the health service; None for other methods."""
    if path == CHECK:
        return Health(_Answer(True), True)
    if path == WATCH:
        return Health(_Answer(False), False)
    return None
