"""Servers that have properties, and those among them that break a rule of properties."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from dm_env_rpc.v1 import tensor_utils
from dm_env_rpc.v1.extensions import properties_pb2
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import line_1_0_pb2
from tests.compliance import playground
from tests.compliance.breakage import breaks


def spec(key: str, dtype: int = 0, **flags: bool) -> Any:
    return properties_pb2.PropertySpec(spec=pb2.TensorSpec(name=key, dtype=dtype), **flags)


class Properties(playground.Session):
    """A tree: seed (to read and write), and below arm a mass (to read) and a secret."""

    def __init__(self, worlds: Any):
        super().__init__(worlds)
        self.values: dict[str, Any] = {
            "seed": tensor_utils.pack_tensor(1, pb2.INT64),
            "arm.mass": tensor_utils.pack_tensor(2.0, pb2.FLOAT),
        }

    def on_extension(self, request: any_pb2.Any) -> Any:
        asked = properties_pb2.PropertyRequest()
        if not request.Unpack(asked):
            return super().on_extension(request)
        response = properties_pb2.PropertyResponse()
        field = asked.WhichOneof("payload")
        getattr(response, field).CopyFrom(getattr(self, field)(getattr(asked, field)))
        packed = any_pb2.Any()
        packed.Pack(response)
        return packed

    def tree(self, key: str) -> list[Any]:
        found = {
            "": [
                spec("seed", pb2.INT64, is_readable=True, is_writable=True),
                spec("arm", is_listable=True),
            ],
            "arm": [
                spec("arm.mass", pb2.FLOAT, is_readable=True),
                spec("arm.secret", pb2.STRING, is_writable=True),
            ],
        }.get(key)
        if found is None:
            raise playground.RequestError(f"nothing at {key!r}", code_pb2.NOT_FOUND)
        return found

    def list_property(self, request: Any) -> Any:
        return properties_pb2.ListPropertyResponse(values=self.tree(request.key))

    def read_property(self, request: Any) -> Any:
        if request.key not in self.values:
            raise playground.RequestError(f"cannot read {request.key!r}")
        return properties_pb2.ReadPropertyResponse(value=self.values[request.key])

    def write_property(self, request: Any) -> Any:
        if request.key not in ("seed", "arm.secret"):
            raise playground.RequestError(f"cannot write {request.key!r}")
        return properties_pb2.WritePropertyResponse()


@breaks("properties_can_be_listed")
class ListsAKeyTwice(Properties):
    def tree(self, key: str) -> list[Any]:
        return super().tree(key or "arm") * 2


@breaks("properties_can_be_listed")
class CannotListWhatIsListable(Properties):
    def list_property(self, request: Any) -> Any:
        if request.key:
            raise playground.RequestError("not now")
        return super().list_property(request)


@breaks("properties_can_be_listed")
class AnswersWithAnotherPayload(Properties):
    def on_extension(self, request: any_pb2.Any) -> Any:
        packed = any_pb2.Any()
        packed.Pack(properties_pb2.PropertyResponse())
        return packed


@breaks("unreadable_properties_are_refused")
class ReadsWhatIsNotReadable(Properties):
    def read_property(self, request: Any) -> Any:
        if request.key == "arm.secret":
            return properties_pb2.ReadPropertyResponse(value=tensor_utils.pack_tensor(""))
        return super().read_property(request)


@breaks("readable_properties_can_be_read")
class ReadsAnotherType(Properties):
    def read_property(self, request: Any) -> Any:
        super().read_property(request)
        return properties_pb2.ReadPropertyResponse(value=tensor_utils.pack_tensor("x"))


@breaks("unwritable_properties_are_refused")
class WritesWhatIsNotWritable(Properties):
    def write_property(self, request: Any) -> Any:
        if request.key == "arm.mass":
            return properties_pb2.WritePropertyResponse()
        return super().write_property(request)


@breaks("unknown_properties_are_refused")
class ListsWhatIsUnknown(Properties):
    def list_property(self, request: Any) -> Any:
        try:
            return super().list_property(request)
        except playground.RequestError:
            return properties_pb2.ListPropertyResponse()


class OfLine10(Properties):
    """The same tree in the core protocol, whose requests have no payload for today's messages."""

    def stream(self, requests: Iterator[Any]) -> Iterator[Any]:
        for request in requests:
            asked = line_1_0_pb2.PropertyRequest.FromString(request.SerializeToString())
            if asked.WhichOneof("payload") is None:
                yield from self.answers(request)
            else:
                yield self.answer(asked)

    def on_extension(self, request: any_pb2.Any) -> Any:
        raise playground.RequestError("no extensions", code_pb2.UNIMPLEMENTED)

    def answer(self, asked: Any) -> Any:
        field = asked.WhichOneof("payload")
        response = line_1_0_pb2.PropertyResponse()
        try:
            getattr(response, field).SetInParent()
            getattr(self, field)(getattr(asked, field), getattr(response, field))
        except playground.RequestError as error:
            response.error.CopyFrom(status_pb2.Status(code=error.code, message=str(error)))
        return response

    def list_property(self, request: Any, response: Any = None) -> Any:
        for parent in request.keys:
            for found in self.tree(parent):
                listed = response.properties[found.spec.name]
                listed.is_readable = found.is_readable
                listed.is_writeable = found.is_writable
                listed.is_listable = found.is_listable
                listed.spec.CopyFrom(found.spec)

    def read_property(self, request: Any, response: Any = None) -> Any:
        for key in request.keys:
            read = super().read_property(properties_pb2.ReadPropertyRequest(key=key))
            response.properties[key].CopyFrom(read.value)

    def write_property(self, request: Any, response: Any = None) -> Any:
        for key in request.properties:
            super().write_property(properties_pb2.WritePropertyRequest(key=key))


@breaks("readable_properties_can_be_read")
class LeavesOutWhatItReads(OfLine10):
    def read_property(self, request: Any, response: Any = None) -> Any:
        super().read_property(request, response)
        response.properties.clear()


@breaks("properties_can_be_listed")
class ListsTheParentAgain(OfLine10):
    def tree(self, key: str) -> list[Any]:
        return [*super().tree(key), spec("arm", is_listable=True)]


class AfterAJoin(Properties):
    """Lists its properties to agents only, as those of their world."""

    def list_property(self, request: Any) -> Any:
        self.check_joined()
        return super().list_property(request)


GOOD = (Properties, OfLine10, AfterAJoin)
