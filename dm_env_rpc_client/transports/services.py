"""The health and reflection services, which every server offers without requiring a token.

Load balancers and orchestrators call `grpc.health.v1.Health`, which always answers SERVING. The
messages of the health service have one field each, so this module encodes them by hand, without
generated code.

Tools such as grpcurl use gRPC reflection (v1 and v1alpha) to list services and descriptors and to
work without `.proto` files. The reflection service describes the protocol, which is identical for
every server. The descriptors are in a separate pool, because a program might have registered other
descriptors in the default pool. The servicer from grpcio-reflection answers the calls. Without
that package, the methods of the reflection service are unimplemented.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, text_format

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.transports.net.status import PROCESS
from dm_env_rpc_client.transports.server_streams import ServerStream, StreamStatusError

CHECK = "/grpc.health.v1.Health/Check"
LIST = "/grpc.health.v1.Health/List"
WATCH = "/grpc.health.v1.Health/Watch"

STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
"""The names of the values of the enum HealthCheckResponse.ServingStatus."""

_SERVING = b"\x08\x01"
_SERVICE_UNKNOWN = b"\x08\x03"
_HEALTHY_SERVICES = ("", PROCESS.split("/")[1])

_MAX_REQUESTS = 1000
"""The maximum number of requests on one reflection stream."""

REFLECTIONS = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
    for version in ("v1", "v1alpha")
)
"""The methods of the reflection service, whose messages are the same in both versions."""

_SERVICES = (
    PROCESS.split("/")[1],
    "grpc.health.v1.Health",
    *(method.split("/")[1] for method in REFLECTIONS),
)

_METHOD = """method {{
  name: "{0}" input_type: ".grpc.health.v1.Health{1}Request"
  output_type: ".grpc.health.v1.Health{1}Response" server_streaming: {2}
}}"""
# `HealthStream` answers with bytes of these messages.
_HEALTH = f"""
name: "grpc/health/v1/health.proto" package: "grpc.health.v1" syntax: "proto3"
message_type {{
  name: "HealthCheckRequest"
  field {{ name: "service" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }}
}}
message_type {{
  name: "HealthCheckResponse"
  field {{
    name: "status" number: 1 label: LABEL_OPTIONAL type: TYPE_ENUM
    type_name: ".grpc.health.v1.HealthCheckResponse.ServingStatus"
  }}
  enum_type {{
    name: "ServingStatus"
    {" ".join(f'value {{ name: "{each}" number: {n} }}' for n, each in enumerate(STATUSES))}
  }}
}}
message_type {{ name: "HealthListRequest" }}
message_type {{
  name: "HealthListResponse"
  field {{
    name: "statuses" number: 1 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".grpc.health.v1.HealthListResponse.StatusesEntry"
  }}
  nested_type {{
    name: "StatusesEntry"
    field {{ name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }}
    field {{
      name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE
      type_name: ".grpc.health.v1.HealthCheckResponse"
    }}
    options {{ map_entry: true }}
  }}
}}
service {{
  name: "Health"
  {_METHOD.format("Check", "Check", "false")}
  {_METHOD.format("List", "List", "false")}
  {_METHOD.format("Watch", "Check", "true")}
}}
"""


class OwnCall(NamedTuple):
    """A call to a built-in service.

    Attributes:
      stream: the stream that answers the call.
      is_unary: whether the call ends with its answer.
      stays: whether the call stays open after the client's last request.
    """

    stream: ServerStream
    is_unary: bool = False
    stays: bool = False


def open_own(path: str) -> OwnCall | None:
    """Return the handler of a health or reflection method, or None for other methods."""
    if path in (CHECK, LIST):
        return OwnCall(HealthStream(path), is_unary=True)
    if path == WATCH:
        # Watch is open until the client ends it; the status never changes while the server lives.
        return OwnCall(HealthStream(path), stays=True)
    reflection = open_reflection() if path in REFLECTIONS else None
    return None if reflection is None else OwnCall(reflection)


class HealthStream(ServerStream):
    """A call to a method of the health service."""

    may_wait = False

    def __init__(self, method: str):
        self._method = method

    def answer(self, message: bytes) -> bytes:
        """Return the HealthListResponse or HealthCheckResponse for a request."""
        if self._method == LIST:
            return b"".join(map(_listed, _HEALTHY_SERVICES))
        # Field 1 is the name of the service; without it, the whole server is meant.
        name = message[2:] if message[:1] == b"\x0a" else message
        if name.decode("utf-8", "replace") in _HEALTHY_SERVICES:
            return _SERVING
        if self._method == CHECK:
            raise StreamStatusError("NOT_FOUND", "the server has no such service")
        # Required of Watch, where Check is NOT_FOUND (the health protocol).
        return _SERVICE_UNKNOWN

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def _listed(name: str) -> bytes:
    """Return an entry of the map from service names to health responses."""
    key = name.encode()
    entry = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(_SERVING)]) + _SERVING
    return b"\x0a" + bytes([len(entry)]) + entry


def _with_imports(file: Any, seen: set[str] | None = None) -> Iterator[Any]:
    """Yield all of a file's imports, and then the file."""
    seen = set() if seen is None else seen
    if file.name not in seen:
        seen.add(file.name)
        for each in file.dependencies:
            yield from _with_imports(each, seen)
        yield file


def _pool(own: Any) -> descriptor_pool.DescriptorPool:
    """Return a pool of all files that the reflection service reports.

    Args:
      own: the file of the v1alpha reflection service.
    """
    health = text_format.Parse(_HEALTH, descriptor_pb2.FileDescriptorProto())
    alpha = descriptor_pb2.FileDescriptorProto()
    own.CopyToProto(alpha)
    # grpcio-reflection has v1alpha only; clients such as grpcurl ask for v1 first.
    stable = json_format.MessageToJson(alpha).replace("v1alpha", "v1")
    pool = descriptor_pool.DescriptorPool()
    for made in (health, alpha, json_format.Parse(stable, descriptor_pb2.FileDescriptorProto())):
        pool.AddSerializedFile(made.SerializeToString())
    for each in (dm_env_rpc_pb2.DESCRIPTOR, properties_pb2.DESCRIPTOR):
        for file in _with_imports(each):
            pool.AddSerializedFile(file.serialized_pb)
    return pool


@functools.cache
def _servicer() -> tuple[Any, Any] | None:
    """Return the handler and its request class, or None if grpcio-reflection is not installed."""
    try:
        from grpc_reflection.v1alpha import reflection, reflection_pb2
    except ImportError:
        return None
    servicer = reflection.ReflectionServicer(_SERVICES, _pool(reflection_pb2.DESCRIPTOR))
    return servicer, reflection_pb2.ServerReflectionRequest


def open_reflection() -> ServerStream | None:
    """Return a stream of the reflection service, or None if grpcio-reflection is not installed."""
    found = _servicer()
    return None if found is None else Reflection(*found)


class Reflection(ServerStream):
    """A stream of the reflection service.

    Args:
      servicer: answers the requests.
      request_class: the class of the requests.
    """

    may_wait = False

    def __init__(self, servicer: Any, request_class: Any) -> None:
        self._servicer = servicer
        self._request_class = request_class
        self._requests = 0

    def answer(self, contents: bytes) -> bytes:
        """Return a ServerReflectionResponse for a ServerReflectionRequest."""
        self._requests += 1
        # Limited, because answers may be much larger than requests.
        if self._requests > _MAX_REQUESTS:
            raise StreamStatusError(
                "RESOURCE_EXHAUSTED",
                f"more than {_MAX_REQUESTS} requests on one reflection stream; open another stream",
            )
        try:
            request = self._request_class.FromString(contents)
        except message.DecodeError:
            raise StreamStatusError(
                "INVALID_ARGUMENT", "expected a ServerReflectionRequest"
            ) from None
        (response,) = self._servicer.ServerReflectionInfo([request], None)
        return bytes(response.SerializeToString())

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass
