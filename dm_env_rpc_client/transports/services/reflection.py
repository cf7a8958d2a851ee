"""gRPC server reflection, v1 and v1alpha: which services there are, and their descriptors.

Tools such as grpcurl ask for it, to be used without `.proto` files. As a health check it needs no
token: what it tells is the protocol, and the same of every server. Its messages and those of the
health service are built from tables here, in a pool of their own: other packages of a program may
have registered theirs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

from dm_env_rpc_client._proto import dm_env_rpc_pb2, properties_pb2
from dm_env_rpc_client.transports.server_streams import ServerStream, StreamStatusError
from dm_env_rpc_client.transports.services.health import STATUSES
from dm_env_rpc_client.transports.status import PROCESS

_MAX_REQUESTS = 1000
"""Requests of one stream."""

_NOT_FOUND = 5
_UNIMPLEMENTED = 12

_Table = dict[str, list[str]]

# Fields as "name number type"; * for repeated; a type in capitals is a message of the same file.
_HEALTH: _Table = {
    "HealthCheckRequest": ["service 1 string"],
    "HealthCheckResponse": ["status 1 ServingStatus"],
    "HealthListRequest": [],
    "HealthListResponse": ["statuses 1 *HealthListResponse.StatusesEntry"],
}
_REFLECTION: _Table = {
    "ServerReflectionRequest": [
        "host 1 string", "file_by_filename 3 string", "file_containing_symbol 4 string",
        "file_containing_extension 5 ExtensionRequest", "all_extension_numbers_of_type 6 string",
        "list_services 7 string",
    ],
    "ExtensionRequest": ["containing_type 1 string", "extension_number 2 int32"],
    "ServerReflectionResponse": [
        "valid_host 1 string", "original_request 2 ServerReflectionRequest",
        "file_descriptor_response 4 FileDescriptorResponse",
        "all_extension_numbers_response 5 ExtensionNumberResponse",
        "list_services_response 6 ListServiceResponse", "error_response 7 ErrorResponse",
    ],
    "FileDescriptorResponse": ["file_descriptor_proto 1 *bytes"],
    "ExtensionNumberResponse": ["base_type_name 1 string", "extension_number 2 *int32"],
    "ListServiceResponse": ["service 1 *ServiceResponse"],
    "ServiceResponse": ["name 1 string"],
    "ErrorResponse": ["error_code 1 int32", "error_message 2 string"],
}  # fmt: skip
_ONEOFS = {
    "ServerReflectionRequest": "message_request",
    "ServerReflectionResponse": "message_response",
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {"string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES, "int32": _Field.TYPE_INT32}


def _field(row: str, package: str) -> _Field:
    name, number, kind = row.split()
    is_repeated = kind.startswith("*")
    kind = kind.removeprefix("*")
    field = _Field(
        name=name,
        number=int(number),
        label=_Field.LABEL_REPEATED if is_repeated else _Field.LABEL_OPTIONAL,
        type=_SCALARS.get(kind, _Field.TYPE_MESSAGE),
    )
    if kind not in _SCALARS:
        field.type_name = f".{package}.{kind}"
    return field


def _file(
    path: str, package: str, table: _Table, service: str, methods: dict[str, tuple[str, str, bool]]
) -> descriptor_pb2.FileDescriptorProto:
    """Returns a file with messages and a service; its methods: request, response, is streaming."""
    made = descriptor_pb2.FileDescriptorProto(name=path, package=package, syntax="proto3")
    for name, rows in table.items():
        added = made.message_type.add(name=name)
        for row in rows:
            field = added.field.add()
            field.CopyFrom(_field(row, package))
            # In both messages all fields but the first ones are the alternatives.
            if name in _ONEOFS and field.number >= 3:
                field.oneof_index = 0
        if name in _ONEOFS:
            added.oneof_decl.add(name=_ONEOFS[name])
    offered = made.service.add(name=service)
    for method, (asked, told, is_streaming) in methods.items():
        offered.method.add(
            name=method,
            input_type=f".{package}.{asked}",
            output_type=f".{package}.{told}",
            server_streaming=is_streaming,
        )
    return made


def _health_file() -> descriptor_pb2.FileDescriptorProto:
    package = "grpc.health.v1"
    check = ("HealthCheckRequest", "HealthCheckResponse")
    listing = ("HealthListRequest", "HealthListResponse")
    methods = {"Check": (*check, False), "List": (*listing, False), "Watch": (*check, True)}
    made = _file("grpc/health/v1/health.proto", package, _HEALTH, "Health", methods)
    _, response, _, listed = made.message_type
    response.field[0].type = _Field.TYPE_ENUM
    response.field[0].type_name = f".{package}.HealthCheckResponse.ServingStatus"
    statuses = response.enum_type.add(name="ServingStatus")
    for number, name in enumerate(STATUSES):
        statuses.value.add(name=name, number=number)
    entry = listed.nested_type.add(name="StatusesEntry")
    entry.options.map_entry = True
    for row in ("key 1 string", "value 2 HealthCheckResponse"):
        entry.field.add().CopyFrom(_field(row, package))
    return made


def _reflection_file(version: str) -> descriptor_pb2.FileDescriptorProto:
    path = f"grpc/reflection/{version}/reflection.proto"
    messages = ("ServerReflectionRequest", "ServerReflectionResponse", True)
    methods = {"ServerReflectionInfo": messages}
    made = _file(path, f"grpc.reflection.{version}", _REFLECTION, "ServerReflection", methods)
    made.service[0].method[0].client_streaming = True
    return made


_VERSIONS = ("v1", "v1alpha")

REFLECTIONS = tuple(
    f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in _VERSIONS
)
"""The methods of the service, whose messages are the same in both versions."""

_SERVICES = (
    PROCESS.split("/")[1],
    "grpc.health.v1.Health",
    *(method.split("/")[1] for method in REFLECTIONS),
)


def _with_imports(file: Any, seen: set[str] | None = None) -> Iterator[Any]:
    """Yields a file after all that it imports."""
    seen = set() if seen is None else seen
    if file.name not in seen:
        seen.add(file.name)
        for each in file.dependencies:
            yield from _with_imports(each, seen)
        yield file


@functools.cache
def _pool() -> descriptor_pool.DescriptorPool:
    """Returns all files that are told."""
    pool = descriptor_pool.DescriptorPool()
    for made in (_health_file(), *map(_reflection_file, _VERSIONS)):
        pool.AddSerializedFile(made.SerializeToString())
    for own in (dm_env_rpc_pb2.DESCRIPTOR, properties_pb2.DESCRIPTOR):
        for each in _with_imports(own):
            pool.AddSerializedFile(each.serialized_pb)
    return pool


@functools.cache
def _message(name: str) -> Any:
    """Returns the class ServerReflectionRequest or ServerReflectionResponse."""
    found = _pool().FindMessageTypeByName(f"grpc.reflection.v1.ServerReflection{name}")
    return message_factory.GetMessageClass(found)


class Reflection(ServerStream):
    """A stream of the reflection service."""

    may_wait = False

    def __init__(self) -> None:
        self._requests = 0

    def answer(self, contents: bytes) -> bytes:
        """Returns a ServerReflectionResponse for a ServerReflectionRequest."""
        self._requests += 1
        if self._requests > _MAX_REQUESTS:
            raise StreamStatusError(
                "RESOURCE_EXHAUSTED", f"a stream of reflection has {_MAX_REQUESTS} requests at most"
            )
        try:
            request = _message("Request").FromString(contents)
        except message.DecodeError:
            raise StreamStatusError(
                "INVALID_ARGUMENT", "expected a ServerReflectionRequest"
            ) from None
        response = _message("Response")()
        response.valid_host = request.host
        response.original_request.CopyFrom(request)
        kind = request.WhichOneof("message_request")
        files = {
            "file_by_filename": _pool().FindFileByName,
            "file_containing_symbol": _pool().FindFileContainingSymbol,
        }
        if kind == "list_services":
            for name in _SERVICES:
                response.list_services_response.service.add(name=name)
        elif kind in files:
            try:
                found = _with_imports(files[kind](getattr(request, kind)))
                told = [each.serialized_pb for each in found]
                response.file_descriptor_response.file_descriptor_proto.extend(told)
            except KeyError:
                _refuse(response, _NOT_FOUND, "there is no such file or symbol here")
        else:
            _refuse(response, _UNIMPLEMENTED, "messages of this server have no extensions")
        return bytes(response.SerializeToString())

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


def _refuse(response: Any, code: int, text: str) -> None:
    response.error_response.error_code = code
    response.error_response.error_message = text
