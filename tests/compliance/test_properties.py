"""The checks of properties, against a server that has properties and servers that break a rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from dm_env_rpc.v1 import tensor_utils
from dm_env_rpc.v1.extensions import properties_pb2
from google.protobuf import any_pb2
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client._proto import line_1_0_pb2
from dm_env_rpc_client.compliance import CHECKS, Options, run
from tests.compliance import playground
from tests.support.stopwatch import patience

NAMES = [
    "properties_can_be_listed",
    "readable_properties_can_be_read",
    "unreadable_properties_are_refused",
    "writable_properties_can_be_written",
    "unwritable_properties_are_refused",
    "unknown_properties_are_refused",
]


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


class ListsAKeyTwice(Properties):
    def tree(self, key: str) -> list[Any]:
        return super().tree(key or "arm") * 2


class CannotListWhatIsListable(Properties):
    def list_property(self, request: Any) -> Any:
        if request.key:
            raise playground.RequestError("not now")
        return super().list_property(request)


class AnswersWithAnotherPayload(Properties):
    def on_extension(self, request: any_pb2.Any) -> Any:
        packed = any_pb2.Any()
        packed.Pack(properties_pb2.PropertyResponse())
        return packed


class ReadsWhatIsNotReadable(Properties):
    def read_property(self, request: Any) -> Any:
        value = self.values.get(request.key, tensor_utils.pack_tensor(""))
        return properties_pb2.ReadPropertyResponse(value=value)


class ReadsAnotherType(Properties):
    def read_property(self, request: Any) -> Any:
        super().read_property(request)
        return properties_pb2.ReadPropertyResponse(value=tensor_utils.pack_tensor("x"))


class WritesWhatIsNotWritable(Properties):
    def write_property(self, request: Any) -> Any:
        return properties_pb2.WritePropertyResponse()


class ListsWhatIsUnknown(Properties):
    def list_property(self, request: Any) -> Any:
        try:
            return super().list_property(request)
        except playground.RequestError:
            return properties_pb2.ListPropertyResponse()


def outcomes(session_class: type[playground.Session]) -> list[str]:
    checks = [check for check in CHECKS if check.name in NAMES]
    with playground.serve(session_class) as address:
        results = list(run(address, Options(timeout=patience(2.0)), checks))
    assert [result.name for result in results] == NAMES
    return [result.name for result in results if result.is_finding] or [
        result.outcome.value for result in results
    ]


def test_a_server_with_properties() -> None:
    assert outcomes(Properties) == ["passed"] * 6


def test_a_server_without_properties() -> None:
    assert outcomes(playground.Session) == ["skipped"] * 6


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (ListsAKeyTwice, "properties_can_be_listed"),
        (CannotListWhatIsListable, "properties_can_be_listed"),
        (AnswersWithAnotherPayload, "properties_can_be_listed"),
        (ReadsWhatIsNotReadable, "unreadable_properties_are_refused"),
        (ReadsAnotherType, "readable_properties_can_be_read"),
        (WritesWhatIsNotWritable, "unwritable_properties_are_refused"),
        (ListsWhatIsUnknown, "unknown_properties_are_refused"),
    ],
)
def test_it_is_noticed(broken: type[Properties], noticed: str) -> None:
    assert outcomes(broken)[0] == noticed


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


class LeavesOutWhatItReads(OfLine10):
    def read_property(self, request: Any, response: Any = None) -> Any:
        super().read_property(request, response)
        response.properties.clear()


class ListsTheParentAgain(OfLine10):
    def tree(self, key: str) -> list[Any]:
        return [*super().tree(key), spec("arm", is_listable=True)]


class ReadsUnknownKeys(OfLine10):
    def read_property(self, request: Any, response: Any = None) -> Any:
        for key in request.keys:
            value = self.values.get(key, tensor_utils.pack_tensor(""))
            response.properties[key].CopyFrom(value)


def test_a_server_of_the_1_0_line() -> None:
    assert outcomes(OfLine10) == ["passed"] * 6


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (LeavesOutWhatItReads, ["readable_properties_can_be_read"]),
        (ListsTheParentAgain, ["properties_can_be_listed"]),
        (ReadsUnknownKeys, ["unreadable_properties_are_refused", NAMES[-1]]),
    ],
)
def test_it_is_noticed_in_the_1_0_line(broken: type[OfLine10], noticed: list[str]) -> None:
    found = outcomes(broken)
    assert found[0] == noticed[0]
    assert set(found) == set(noticed)


class AfterAJoin(Properties):
    """Lists its properties to agents only, as those of their world."""

    def list_property(self, request: Any) -> Any:
        self.check_joined()
        return super().list_property(request)


def test_properties_of_a_world_alone() -> None:
    assert outcomes(AfterAJoin) == ["passed"] * 6
