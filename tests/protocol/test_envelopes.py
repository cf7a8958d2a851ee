"""Envelopes around requests and answers."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2
from google.rpc import status_pb2

from dm_env_rpc_client import DmEnvRpcError, ProtocolError, SpecError, pack_tensor
from dm_env_rpc_client import dm_env_rpc_pb2 as pb
from dm_env_rpc_client.protocol.envelopes import decode_response, encode_request
from tests.support.scripted import extension

A, W = {"a": pack_tensor(1)}, "w"
SPECS = pb.ActionObservationSpecs(actions={1: pb.TensorSpec(name="a")})
STEP = pb.StepRequest(actions={1: pack_tensor([1.5])}, requested_observations=[2])
STEPPED = pb.StepResponse(state=pb.RUNNING, observations={2: pack_tensor("x")})
PAIRS: list[tuple[str, Any, Any]] = [
    ("create_world", pb.CreateWorldRequest(settings=A), pb.CreateWorldResponse(world_name=W)),
    ("join_world", pb.JoinWorldRequest(world_name=W), pb.JoinWorldResponse(specs=SPECS)),
    ("step", STEP, STEPPED),
    ("reset", pb.ResetRequest(settings=A), pb.ResetResponse()),
    ("reset_world", pb.ResetWorldRequest(world_name=W), pb.ResetWorldResponse()),
    ("leave_world", pb.LeaveWorldRequest(), pb.LeaveWorldResponse()),
    ("destroy_world", pb.DestroyWorldRequest(world_name=W), pb.DestroyWorldResponse()),
    ("extension", extension(1), extension(2)),
]
FIELDS = [field for field, _, _ in PAIRS]
each_pair = pytest.mark.parametrize(("field", "request_message", "answer"), PAIRS, ids=FIELDS)


def answered(field: str, answer: Any = None) -> bytes:
    """An answer to the request of a field; without values if there is none."""
    envelope = pb.EnvironmentResponse()
    getattr(envelope, field).SetInParent()
    if answer is not None:
        getattr(envelope, field).MergeFrom(answer)
    return envelope.SerializeToString()


def test_the_table_has_every_request() -> None:
    assert [field.name for field in pb.EnvironmentRequest.DESCRIPTOR.fields] == FIELDS


@each_pair
def test_a_request_goes_into_its_field(field: str, request_message: Any, answer: Any) -> None:
    for message in (request_message, type(request_message)()):
        encoded = encode_request(message)
        assert encoded.field == field
        envelope = pb.EnvironmentRequest.FromString(encoded.message)
        assert envelope.WhichOneof("payload") == field
        assert getattr(envelope, field) == message


@each_pair
def test_an_answer_comes_out_of_its_field(field: str, request_message: Any, answer: Any) -> None:
    for message in (answer, type(answer)()):
        assert decode_response(answered(field, message), field) == message


@each_pair
def test_an_error_status_is_raised(field: str, request_message: Any, answer: Any) -> None:
    status = status_pb2.Status(code=5, message="no")
    envelope = pb.EnvironmentResponse(error=status).SerializeToString()
    with pytest.raises(DmEnvRpcError) as error:
        decode_response(envelope, field)
    assert (error.value.code, error.value.message) == (5, "no")


@each_pair
def test_the_answer_to_another_request_is_a_protocol_error(
    field: str, request_message: Any, answer: Any
) -> None:
    for other in set(FIELDS) - {field}:
        text = f"to a {field} request contains {other}; expected {field}"
        with pytest.raises(ProtocolError, match=text):
            decode_response(answered(other), field)


def test_an_empty_answer_is_a_protocol_error() -> None:
    for empty in (b"", b"\xfa\x07\x01x"):
        with pytest.raises(ProtocolError, match="to a step request contains no payload"):
            decode_response(empty, "step")


def test_encoding_refuses_a_request_class_of_another_pool() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="other.proto",
        package="dm_env_rpc.v1",
        message_type=[descriptor_pb2.DescriptorProto(name="LeaveWorldRequest")],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    stranger = message_factory.GetMessageClass(
        pool.FindMessageTypeByName("dm_env_rpc.v1.LeaveWorldRequest")
    )
    with pytest.raises(SpecError, match="leave_world request cannot be serialized"):
        encode_request(stranger())  # type: ignore[arg-type]


NO_REQUESTS: list[tuple[Any, str]] = [
    *(
        (kind(), "is not a dm_env_rpc request; pack your own")
        for kind in (struct_pb2.Struct, pb.StepResponse, pb.EnvironmentRequest)
    ),
    *((each, "a request must be a protobuf message") for each in (None, b"bytes", pb.StepRequest)),
]


@pytest.mark.parametrize(("given", "text"), NO_REQUESTS)
def test_encoding_refuses_what_is_no_request(given: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        encode_request(given)


NOT_UTF_8 = b"\x0a\x03\x0a\x01\xff"
"""A CreateWorldResponse whose world name is no text."""


@pytest.mark.parametrize("garbage", [b"\xff", b"\x1a\xff", b"\x00", b"\x1a\x05abc", NOT_UTF_8])
def test_garbage_is_a_protocol_error(garbage: bytes) -> None:
    with pytest.raises(
        ProtocolError, match=rf"is not an EnvironmentResponse \({len(garbage)} bytes\)"
    ):
        decode_response(garbage, "create_world")
