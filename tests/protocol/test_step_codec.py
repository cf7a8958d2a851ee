"""Steps as bytes: the short way and the way through protobuf see the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import pytest
from google.rpc import status_pb2
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import (
    DmEnvRpcClientError,
    DmEnvRpcError,
    ProtocolError,
    SpecError,
    SpecManager,
    dm_env_rpc_pb2,
    pack_tensor,
    set_bounds,
)
from dm_env_rpc_client.protocol import envelopes
from dm_env_rpc_client.protocol.step_codec import StepCodec
from dm_env_rpc_client.protocol.step_layout import StepAnswer, UnreadStep
from tests.tensors import strategies
from tests.tensors.strategies import same_bits, varint
from tests.transports.client_call import feed, framing
from tests.transports.frames import data, greeting, grpc_message

Array: TypeAlias = strategies.Array
StepRequest = dm_env_rpc_pb2.StepRequest
StepResponse = dm_env_rpc_pb2.StepResponse
EnvironmentRequest = dm_env_rpc_pb2.EnvironmentRequest
EnvironmentResponse = dm_env_rpc_pb2.EnvironmentResponse

UIDS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 300), unique=True, max_size=5)


def spec(name: str, value: Any, shape: Any = None) -> dm_env_rpc_pb2.TensorSpec:
    """The spec that `value` has, or one of another shape."""
    dtype = np.asarray(value).dtype
    return dm_env_rpc_pb2.TensorSpec(
        name=name,
        shape=np.shape(value) if shape is None else shape,
        dtype=strategies.DATA_TYPES.get(dtype.name, dm_env_rpc_pb2.STRING),
    )


def codec_of(values: dict[int, Any], shapes: dict[int, Any] | None = None) -> StepCodec:
    """A codec that requests observations like `values`, and takes actions like them."""
    specs = {uid: spec(f"n{uid}", value, (shapes or {}).get(uid)) for uid, value in values.items()}
    return StepCodec(SpecManager(specs, "action"), SpecManager(specs, "observation"), sorted(specs))


def response(values: dict[int, Any], state: int = 1) -> bytes:
    observations = {uid: pack_tensor(value) for uid, value in values.items()}
    answer = StepResponse(state=state, observations=observations)  # type: ignore[arg-type]
    return EnvironmentResponse(step=answer).SerializeToString()


def writable(message: bytes) -> memoryview:
    """The message in memory such as a transport reads into."""
    return memoryview(np.frombuffer(message, np.uint8).copy())


def finite(array: Array) -> Array:
    return np.nan_to_num(array) if array.dtype.kind == "f" else array


def tensors() -> st.SearchStrategy[Any]:
    return strategies.arrays(0) | strategies.strings()


def through_protobuf(codec: StepCodec, message: bytes) -> StepAnswer:
    return codec.interpret(envelopes.decode_response(message, "step"))


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their dtypes, shapes and elements, of which NaN is itself."""
    return {
        name: (np.asarray(value).dtype, np.shape(value), repr(np.asarray(value).tolist()))
        for name, value in values.items()
    }


def outcome(call: Any) -> Any:
    """What a call returns, by its bits, or the kind of error that it raises."""
    try:
        answer = call()
    except DmEnvRpcClientError as error:
        return type(error)
    return answer.state, shown(answer.observations)


@given(UIDS, st.data())
def test_requests_are_what_protobuf_makes_of_the_same_actions(uids: Any, data: Any) -> None:
    values = {uid: finite(np.asarray(data.draw(strategies.arrays(0)))) for uid in uids}
    chosen = data.draw(st.sets(st.sampled_from(sorted(uids)))) if uids else set()
    codec = codec_of(values)
    encoded = codec.encode({f"n{uid}": values[uid] for uid in chosen})
    assert encoded.field == "step"
    expected = StepRequest(
        actions={uid: pack_tensor(values[uid]) for uid in chosen},
        requested_observations=sorted(uids),
    )
    assert EnvironmentRequest.FromString(encoded.message).step == expected


@given(UIDS, st.data(), st.sampled_from([0, 1, 2, 3]))
def test_answers_are_read_as_protobuf_reads_them(uids: Any, data: Any, state: int) -> None:
    values = {uid: data.draw(tensors()) for uid in uids}
    codec = codec_of(values)
    message = response(values, state)
    # The second has what is known of the first.
    for received in (message, bytearray(message), writable(message)):
        decoded = codec.decode(received)
        # Without observations, state 0 is a message of no bytes.
        assert isinstance(decoded, StepAnswer | UnreadStep)
        answer = codec.interpret(decoded)
        assert outcome(lambda answer=answer: answer) == outcome(
            lambda: through_protobuf(codec, message)
        )
        for uid, value in values.items():
            read = answer.observations[f"n{uid}"]
            if isinstance(value, str):
                assert read == value
            else:
                assert same_bits(read, value)
                assert np.shape(value) == () or read.flags.writeable


@pytest.mark.parametrize("dtype", strategies.FIELDS)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 130, 3), (200, 200)])
def test_the_usual_form_of_every_dtype_takes_the_short_way(dtype: str, shape: Any) -> None:
    value = np.ones(shape, dtype) if shape else np.dtype(dtype).type(1)
    codec = codec_of({7: value})
    assert isinstance(codec.decode(response({7: value})), StepAnswer)


def test_large_arrays_are_where_they_were_received_and_small_ones_keep_nothing() -> None:
    values = {1: np.arange(10_000, dtype=np.uint8), 2: np.zeros(3), 3: np.float32(2.5)}
    message = writable(response(values))
    answer = codec_of(values).decode(message)
    assert isinstance(answer, StepAnswer)
    large, small, scalar = answer.observations.values()
    assert np.shares_memory(large, np.asarray(message))
    assert not np.shares_memory(small, np.asarray(message))
    assert isinstance(scalar, np.float32)
    assert small.flags.writeable
    large[:] = 0
    assert np.shares_memory(large, np.asarray(message))


def test_arrays_are_aligned_wherever_their_bytes_were() -> None:
    value = np.arange(1_000, dtype=np.float64)
    for offset in range(16):
        memory = np.zeros(20_000, np.uint8)
        message = response({1: value})
        memory[offset : offset + len(message)] = np.frombuffer(message, np.uint8)
        answer = codec_of({1: value}).decode(memory[offset : offset + len(message)].data)
        assert isinstance(answer, StepAnswer)
        assert answer.observations["n1"].flags.aligned
        assert same_bits(answer.observations["n1"], value)


# Forms that are legal and unusual: (what it is, the bytes of the Tensor, the shape in the
# spec, the value).
ONE_TWO = np.array([1, 2], np.float32)
UNUSUAL: list[tuple[str, bytes, tuple[int, ...], Any]] = [
    ("one for all", b"\x0a\x06\x0a\x04\0\0\x80?\x7a\x01\x03", (3,), np.ones(3, np.float32)),
    ("unpacked", b"\x0a\x0a\x0d\0\0\x80?\x0d\0\0\0@\x7a\x01\x02", (2,), ONE_TWO),
    ("in chunks", b"\x0a\x0c\x0a\x04\0\0\x80?\x0a\x04\0\0\0@\x7a\x01\x02", (2,), ONE_TWO),
    ("no shape", b"\x0a\x0a\x0a\x08\0\0\x80?\0\0\0@\x7a\x0a" + varint(-1), (2,), ONE_TWO),
    ("shape first", b"\x7a\x01\x01\x0a\x06\x0a\x04\0\0\x80?", (1,), np.ones(1, np.float32)),
    ("an unpacked shape", b"\x0a\x06\x0a\x04\0\0\x80?\x78\x01", (1,), np.ones(1, np.float32)),
    ("a long length", b"\x0a\x87\0\x0a\x84\0\0\0\x80?", (), np.float32(1)),
    ("a bool that is 2", b"\x4a\x05\x0a\x03\x02\0\x01\x7a\x01\x03", (3,), np.array([1, 0, 1], "?")),
    ("a long bool", b"\x4a\x05\x0a\x03\x81\0\x01\x7a\x01\x02", (2,), np.array([1, 1], "?")),
    ("a long integer", b"\x22\x04\x0a\x02\x85\0", (), np.int32(5)),
    ("a negative integer", b"\x22\x0c\x0a\x0a" + varint(-5), (), np.int32(-5)),
    ("two payloads", b"\x12\x00\x0a\x06\x0a\x04\0\0\x80?", (), np.float32(1)),
    ("an unknown field", b"\x0a\x06\x0a\x04\0\0\x80?\xa0\x06\x01", (), np.float32(1)),
]


def entry(uid: int, tensor: bytes) -> bytes:
    value = b"\x08" + varint(uid) + b"\x12" + varint(len(tensor)) + tensor
    return b"\x12" + varint(len(value)) + value


def envelope(step: bytes) -> bytes:
    return b"\x1a" + varint(len(step)) + step


@pytest.mark.parametrize(
    ("tensor", "shape", "value"), [case[1:] for case in UNUSUAL], ids=[case[0] for case in UNUSUAL]
)
def test_unusual_forms_are_read_too(tensor: bytes, shape: Any, value: Any) -> None:
    codec = codec_of({5: value}, {5: shape})
    answer = codec.interpret(codec.decode(envelope(b"\x08\x02" + entry(5, tensor))))
    assert answer.state == 2
    assert same_bits(answer.observations["n5"], value)


ONE = entry(5, b"\x0a\x06\x0a\x04\0\0\x80?")
UNUSUAL_RESPONSES = {
    "the last of two": envelope(entry(5, b"\x0a\x06\x0a\x04\0\0\0@") + ONE + b"\x08\x01"),
    "two states": envelope(b"\x08\x03\x08\x01" + ONE),
    "a long state": envelope(b"\x08\x81\0" + ONE),
    "an unknown field": envelope(b"\x08\x01\xa0\x06\x01" + ONE),
    "one unasked for": envelope(b"\x08\x01" + entry(9, b"\x22\x03\x0a\x01\x05") + ONE),
    "in two parts": envelope(b"\x08\x01") + envelope(ONE),
}


@pytest.mark.parametrize("name", UNUSUAL_RESPONSES)
def test_unusual_responses_are_read_too(name: str) -> None:
    codec = codec_of({5: np.float32(1)})
    answer = codec.interpret(codec.decode(UNUSUAL_RESPONSES[name]))
    assert answer == (1, {"n5": np.float32(1)})


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({5: np.float64(1)}, "observation 'n5' .uid 5.: has dtype float64; expected float32"),
        ({5: np.ones(2, np.float32)}, "has shape .2.; expected .3."),
        ({4: np.float32(1)}, "did not send the requested observation 'n5' .uid 5."),
    ],
)
def test_what_breaks_a_spec_says_so(values: dict[int, Any], text: str) -> None:
    codec = codec_of({5: np.ones(3, np.float32)})
    with pytest.raises(ProtocolError, match=text):
        codec.interpret(codec.decode(response(values)))


def test_errors_and_other_answers_are_not_steps() -> None:
    codec = codec_of({})
    with pytest.raises(DmEnvRpcError, match="no"):
        codec.decode(EnvironmentResponse(error=status_pb2.Status(message="no")).SerializeToString())
    with pytest.raises(ProtocolError, match="leave_world"):
        codec.decode(EnvironmentResponse(leave_world={}).SerializeToString())
    for broken in (b"", b"\x1a", b"\x1a\x05", b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"):
        with pytest.raises(ProtocolError):
            codec.decode(broken)


# Actions.


def discrete(dtype: str = "int32", low: int = 0, high: int = 10) -> StepCodec:
    made = dm_env_rpc_pb2.TensorSpec(name="a.b", dtype=strategies.DATA_TYPES[dtype])
    set_bounds(made, low, high)
    return StepCodec(SpecManager({3: made}, "action"), SpecManager({}, "observation"), [])


def sent(codec: StepCodec, action: Any) -> Any:
    request = EnvironmentRequest.FromString(codec.encode(action).message).step
    return SpecManager({3: codec._actions.uid_to_spec(3)}).unpack(request.actions)


@pytest.mark.parametrize("dtype", strategies.INTEGERS)
def test_integers_that_come_again_are_checked_as_the_first(dtype: str) -> None:
    codec = discrete(dtype)
    for _ in range(2):
        for value in (3, np.int8(3), np.uint64(3), np.array(3), 3.0, np.float32(3)):
            assert sent(codec, {"a.b": value}) == {"a.b": 3}
        for value in (3.5, "3", np.timedelta64(3, "ns"), 11, -1, [3], None):
            with pytest.raises(SpecError, match=r"a\.b"):
                codec.encode({"a.b": value})
    # What a bool may be does not depend on what came before.
    assert sent(discrete(dtype), {"a.b": True}) == sent(codec, {"a.b": True}) == {"a.b": 1}


def test_many_different_integers_are_sent_right_and_take_bounded_memory() -> None:
    codec = discrete("int64", -(2**62), 2**62)
    for number in range(-3_000, 3_000):
        assert sent(codec, {"a.b": number * 1_000}) == {"a.b": number * 1_000}
    (writer,) = codec._writers.values()
    assert len(writer.__self__._known) <= 1024  # type: ignore[attr-defined]


def test_an_array_may_have_any_layout() -> None:
    plain = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    codec = codec_of({3: plain})
    for layout in strategies.LAYOUTS.values():
        request = codec.encode({"n3": layout(plain)}).message
        packed = EnvironmentRequest.FromString(request).step.actions[3]
        assert packed == pack_tensor(plain)


def test_actions_too_large_for_a_message_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dm_env_rpc_client.protocol.step_codec.MAX_MESSAGE_BYTES", 1_000)
    codec = codec_of({3: np.zeros(200)})
    with pytest.raises(SpecError, match="a message holds at most 1000"):
        codec.encode({"n3": np.zeros(200)})


@pytest.mark.parametrize("count", [5_000, 30_000, 1 << 20])
def test_a_large_observation_is_not_moved_again_once_it_is_received(count: int) -> None:
    """Elements of eight bytes are aligned in the memory that the transport takes for them."""
    value = np.arange(count, dtype=np.float64)
    client = framing(limit=1 << 30)
    feed(client, greeting() + data(grpc_message(response({1: value}))))
    (message,) = client.messages
    answer = codec_of({1: value}).decode(message)
    assert isinstance(answer, StepAnswer)
    assert np.shares_memory(answer.observations["n1"], np.asarray(message))
    assert same_bits(answer.observations["n1"], value)
