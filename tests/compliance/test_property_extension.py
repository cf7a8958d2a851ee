"""The checks of properties, against a server that has properties and servers that break a rule."""

from __future__ import annotations

from typing import Any

import pytest
from dm_env_rpc.v1 import dm_env_rpc_pb2 as pb2
from dm_env_rpc.v1 import tensor_utils
from dm_env_rpc.v1.extensions import properties_pb2
from google.protobuf import any_pb2
from google.rpc import code_pb2

from dm_env_rpc_client.compliance import CHECKS, Options, Outcome, run
from tests.compliance import playground

NAMES = [
    "properties_can_be_listed",
    "readable_properties_can_be_read",
    "writable_properties_can_be_written",
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
        results = list(run(address, Options(timeout=2.0), checks))
    assert [result.name for result in results] == NAMES
    return [result.name for result in results if result.outcome is Outcome.FAILED] or [
        result.outcome.value for result in results
    ]


def test_a_server_with_properties() -> None:
    assert outcomes(Properties) == ["passed"] * 4


def test_a_server_without_properties() -> None:
    assert outcomes(playground.Session) == ["skipped"] * 4


@pytest.mark.parametrize(
    ("broken", "noticed"),
    [
        (ListsAKeyTwice, "properties_can_be_listed"),
        (CannotListWhatIsListable, "properties_can_be_listed"),
        (AnswersWithAnotherPayload, "properties_can_be_listed"),
        (ReadsWhatIsNotReadable, "readable_properties_can_be_read"),
        (ReadsAnotherType, "readable_properties_can_be_read"),
        (WritesWhatIsNotWritable, "writable_properties_can_be_written"),
        (ListsWhatIsUnknown, "unknown_properties_are_refused"),
    ],
)
def test_it_is_noticed(broken: type[Properties], noticed: str) -> None:
    assert noticed in outcomes(broken)
