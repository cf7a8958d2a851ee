"""What a message may take is counted on its bytes, and what is counted is what protobuf makes."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import Limits, ProtocolError, SpecError, dm_env_rpc_pb2, pack_tensor
from dm_env_rpc_client.tensors import bounded_parsing
from dm_env_rpc_client.tensors.memory_limits import Budget
from dm_env_rpc_client.transports.streams import MAX_MESSAGE_BYTES
from tests.tensors.strategies import mutated

Tensor = dm_env_rpc_pb2.Tensor
TensorSpec = dm_env_rpc_pb2.TensorSpec
Request = dm_env_rpc_pb2.EnvironmentRequest
Response = dm_env_rpc_pb2.EnvironmentResponse


@pytest.fixture(autouse=True)
def _count_small_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_parsing, "SMALL_BYTES", 0)


def parse(message: Request | Response | Tensor, **limits: int) -> None:
    data = message.SerializeToString()
    for form in (data, bytearray(data), memoryview(data)):
        bounded_parsing.check(type(message), form, Budget(Limits(**limits)), "it")
    parsed = bounded_parsing.parse(type(message), data, Budget(Limits(**limits)), "it")
    assert parsed == message


def refused(message: Request | Response | Tensor, text: str, **limits: int) -> None:
    with pytest.raises(SpecError, match=text):
        parse(message, **limits)


@given(st.lists(st.text(max_size=200) | st.just("\n" * 150), max_size=40))
def test_strings_are_counted_one_by_one(texts: list[str]) -> None:
    count = len(texts)
    answer = Response(
        step={"observations": {1: Tensor(strings={"array": texts})}},
    )
    parse(answer, strings=max(1, count))
    if count > 1:
        refused(answer, r"more than \d+ strings \(Limits.strings\)", strings=count - 1)


def test_strings_of_several_tensors_share_the_budget() -> None:
    half = Tensor(strings={"array": ["\n\n\n", "x" * 300, ""]})
    answer = Response(step={"observations": {1: half, 2: half}})
    parse(answer, strings=6)
    refused(answer, "more than 5 strings", strings=5)


def test_messages_are_counted_in_tensors_and_in_details_of_errors() -> None:
    protos = Tensor(protos={"array": [{"type_url": "a/b", "value": b"\n" * 200}] * 7})
    parse(protos, messages=7)
    refused(protos, r"more than 6 protobuf messages \(Limits.messages\)", messages=6)
    error = Response(error={"details": [{"type_url": "a/b"}] * 7})
    parse(error, messages=7)
    refused(error, "more than 6 protobuf messages", messages=6)


@pytest.mark.parametrize(
    "message",
    [
        Response(step={"observations": {uid: Tensor() for uid in range(5)}}),
        Response(
            join_world={
                "specs": {
                    "actions": {uid: TensorSpec(name=str(uid)) for uid in range(2)},
                    "observations": {uid: TensorSpec(name=str(uid)) for uid in range(3)},
                }
            }
        ),
        Request(create_world={"settings": {str(name): Tensor() for name in range(5)}}),
        Request(step={"requested_observations": [1, 1, 300, 1 << 63, 2]}),
    ],
    ids=["observations", "specs", "settings", "requested"],
)
def test_entries_are_counted(message: Request | Response) -> None:
    parse(message, specs=5)
    refused(message, r"more than 4 actions, observations or settings \(Limits.specs\)", specs=4)


@pytest.mark.parametrize(("field", "size"), [("int32s", 4), ("int64s", 8), ("uint64s", 8)])
def test_integers_that_take_fewer_bytes_on_the_wire_are_charged(field: str, size: int) -> None:
    tensor = Tensor()
    getattr(tensor, field).array.extend([1] * 900 + [300] * 100)
    grows = 1000 * size - 1100
    parse(tensor, expanded_bytes=grows)
    refused(tensor, rf"{grows} bytes beyond their size in the message", expanded_bytes=grows - 1)


def test_numbers_that_are_as_large_on_the_wire_cost_nothing() -> None:
    for tensor in (
        Tensor(doubles={"array": [1.5] * 1000}),
        Tensor(floats={"array": [1.5] * 1000}),
        Tensor(uint8s={"array": b"\n" * 1000}),
        Tensor(bools={"array": [True] * 1000}),
        Tensor(int64s={"array": [-1] * 1000}),
    ):
        parse(tensor, expanded_bytes=1, strings=1, messages=1, specs=1)


def test_elements_one_by_one_are_counted() -> None:
    one_by_one = b"\x2a\x06" + b"\x08\x01" * 3
    parsed = bounded_parsing.parse(Tensor, one_by_one, Budget(Limits(strings=3)), "it")
    assert list(parsed.int64s.array) == [1, 1, 1]
    with pytest.raises(SpecError, match="more than 2 strings"):
        bounded_parsing.parse(Tensor, one_by_one, Budget(Limits(strings=2)), "it")


@pytest.mark.parametrize(
    "message",
    [
        Response(create_world={"world_name": "w" * 100}),
        Response(join_world={"specs": {"actions": {1: TensorSpec(name="w" * 100)}}}),
        Request(join_world={"world_name": "w" * 100}),
        Request(join_world={"settings": {"w" * 100: Tensor()}}),
    ],
)
def test_names_are_limited(message: Request | Response) -> None:
    parse(message, name_bytes=100)
    refused(message, r"a name of 100 bytes; at most 99 .*Limits.name_bytes", name_bytes=99)


@pytest.mark.parametrize("field", [b"\x08\x01", b"\x7d\0\0\0\0", b"\x79" + bytes(8), b"\x82\x01\0"])
def test_fields_that_nobody_knows_are_limited_too(field: bytes) -> None:
    limits = Limits(messages=1, specs=1)
    assert bounded_parsing.parse(Response, field * 10, Budget(limits), "it") == (
        Response.FromString(field * 10)
    )
    with pytest.raises(SpecError, match="more fields than"):
        bounded_parsing.parse(Response, field * 11, Budget(limits), "it")


def test_a_group_is_refused() -> None:
    with pytest.raises(SpecError, match="contains a group"):
        bounded_parsing.parse(Response, b"\x7b\x7c", Budget(), "it")


def parsed_as_protobuf_does(data: bytes) -> bool:
    """Whether it is a message, which is read, unless it holds a group."""
    try:
        expected = Response.FromString(data)
    except Exception as error:
        with pytest.raises((type(error), SpecError)):
            bounded_parsing.parse(Response, data, Budget(), "it")
        return False
    refusal = ""
    try:
        assert bounded_parsing.parse(Response, data, Budget(), "it") == expected
    except SpecError as refused:
        refusal = str(refused)
    assert refusal == "" or "group" in refusal
    return not refusal


@given(st.binary(max_size=60))
def test_any_bytes_are_parsed_as_protobuf_does_or_refused(data: bytes) -> None:
    parsed_as_protobuf_does(data)


def test_mutated_messages_are_parsed_as_protobuf_does_or_refused() -> None:
    rng = random.Random(33)
    joined = Response()
    joined.join_world.specs.actions[1].MergeFrom(
        dm_env_rpc_pb2.TensorSpec(name="a", shape=[2], dtype=dm_env_rpc_pb2.FLOAT)
    )
    messages = [
        joined,
        Response(step={"state": 1, "observations": {1: pack_tensor([1.5, 2.5])}}),
        Response(error={"code": 5, "message": "no"}),
    ]
    contents = [message.SerializeToString() for message in messages]
    parsed = sum(parsed_as_protobuf_does(mutated(rng.choice(contents), rng)) for _ in range(3_000))
    assert 100 < parsed < 2_900


def test_the_transports_have_the_same_default() -> None:
    assert Limits().message_bytes == MAX_MESSAGE_BYTES


# JSON.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"[" * 100_000, "about 100001 values"),
        (b"[" * 33 + b"]" * 33, "more than 32 levels"),
        (b'{"a":' * 33 + b"0" + b"}" * 33, "more than 32 levels"),
        (b'["\\"",' + b"[" * 33 + b"]" * 34, "more than 32 levels"),
        (b"\xff", "expected UTF-8 JSON"),
        (b"9" * 5000, "expected UTF-8 JSON"),
        (b"[1,]", "expected UTF-8 JSON"),
        (b"{" + b"," * 70_000, "values"),
    ],
)
def test_json_bombs_are_refused_before_they_go_off(text: bytes, message: str) -> None:
    with pytest.raises(ProtocolError, match=message):
        bounded_parsing.decode(text, "the text")


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 32 + b"]" * 32,
        b"[" + b",".join([b"[]"] * 40) + b"]",
        b'["' + b"[" * 40 + b'"]',
        b'["\\\\","' + b"[" * 40 + b'\\"' + b'"]',
    ],
)
def test_deep_looks_alone_are_no_bomb(text: bytes) -> None:
    assert bounded_parsing.decode(text, "the text") == json.loads(text)


def test_diagnostics_become_what_json_can_hold() -> None:
    nested: Any = 0
    for _ in range(40):
        nested = [nested]
    value = {
        "array": np.array([[1, 2]]),
        "scalar": np.float32(0.5),
        "nan": float("nan"),
        3: (True, None, "text"),
        "object": object(),
    }
    assert bounded_parsing.jsonable(value) == {
        "array": [[1, 2]],
        "scalar": 0.5,
        "nan": None,
        "3": [True, None, "text"],
        "object": "object",
    }
    bounded_parsing.decode(bounded_parsing.encode(bounded_parsing.jsonable(nested), ""), "")
