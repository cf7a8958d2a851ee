"""The gRPC health service: `grpc.health.v1.Health`, whose answer is always SERVING.

Load balancers and orchestrators ask for it. The messages have one field each, so that their bytes
stand here instead of a dependency on generated code.
"""

from __future__ import annotations

from dm_env_rpc_client.transports.server_streams import ServerStream, StreamStatusError
from dm_env_rpc_client.transports.status import PROCESS

CHECK = "/grpc.health.v1.Health/Check"
LIST = "/grpc.health.v1.Health/List"
WATCH = "/grpc.health.v1.Health/Watch"

STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
"""The enum HealthCheckResponse.ServingStatus."""

_SERVING = b"\x08\x01"
_SERVICE_UNKNOWN = b"\x08\x03"
_SERVICES = ("", PROCESS.split("/")[1])


class HealthStream(ServerStream):
    """A call of a method of the health service."""

    may_wait = False

    def __init__(self, method: str):
        self._method = method

    def answer(self, message: bytes) -> bytes:
        """Returns a HealthListResponse, or a HealthCheckResponse for a HealthCheckRequest."""
        if self._method == LIST:
            return b"".join(map(_listed, _SERVICES))
        # Field 1 is the name of the service; none is the whole server.
        name = message[2:] if message[:1] == b"\x0a" else message
        if name.decode("utf-8", "replace") in _SERVICES:
            return _SERVING
        if self._method == CHECK:
            raise StreamStatusError("NOT_FOUND", "the server has no such service")
        return _SERVICE_UNKNOWN

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def _listed(name: str) -> bytes:
    """Returns an entry of the map from names of services to their responses."""
    key = name.encode()
    entry = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(_SERVING)]) + _SERVING
    return b"\x0a" + bytes([len(entry)]) + entry
