"""Tensor messages and arrays, both ways, with PyPI's dm-env-rpc as the peer."""

from __future__ import annotations

import math
import struct
import types
from typing import Any, TypeAlias

import numpy as np
import pytest
from dm_env_rpc.v1 import tensor_utils
from google.protobuf import any_pb2, descriptor_pb2, struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import SpecError, dm_env_rpc_pb2, pack_tensor, unpack_tensor
from dm_env_rpc_client.tensors import codecs
from tests.fuzz import wire
from tests.reliability.recording import Seen
from tests.tensors import strategies
from tests.tensors.strategies import VALUES, element_bytes, packed, record

Tensor: TypeAlias = dm_env_rpc_pb2.Tensor


SHAPES: list[list[int]] = [[6], [2, 3], [1, 6, 1]]


def payload(dtype: str, elements: list[Any], shape: list[int]) -> Tensor:
    """A message made with protobuf alone."""
    tensor = Tensor(shape=shape)
    part = getattr(tensor, strategies.FIELDS[dtype])
    part.SetInParent()
    if dtype in ("int8", "uint8"):
        part.array = struct.pack(f"{len(elements)}{'b' if dtype == 'int8' else 'B'}", *elements)
    else:
        part.array.extend(elements)
    return tensor


@pytest.mark.parametrize("shape", [*SHAPES, [0], [2, 0]])
@pytest.mark.parametrize("dtype", VALUES)
def test_an_array_and_its_message(dtype: str, shape: list[int]) -> None:
    elements = VALUES[dtype][: math.prod(shape)]
    array = np.array(elements, dtype).reshape(shape)
    message = payload(dtype, elements, shape)
    assert pack_tensor(array) == message
    assert message.WhichOneof("payload") == strategies.FIELDS[dtype]
    assert strategies.same_bits(unpack_tensor(message), array)


@pytest.mark.parametrize("dtype", VALUES)
def test_a_scalar_and_its_message(dtype: str) -> None:
    for value in VALUES[dtype]:
        scalar = np.dtype(dtype).type(value)
        message = payload(dtype, [value], [])
        assert pack_tensor(scalar) == message
        assert pack_tensor(np.array(scalar)) == message
        unpacked = unpack_tensor(message)
        assert isinstance(unpacked, np.generic)
        assert strategies.same_bits(unpacked, scalar)


TEXTS = ["", "a", "été", "日本", "🎲", "a\x00b\x00"]


@pytest.mark.parametrize("shape", SHAPES)
def test_strings_and_their_message(shape: list[int]) -> None:
    array = np.array(TEXTS, object).reshape(shape)
    message = Tensor(strings=Tensor.StringArray(array=TEXTS), shape=shape)
    assert pack_tensor(array) == message
    assert pack_tensor(array.tolist()) == message
    unpacked = unpack_tensor(message)
    assert unpacked.dtype == object
    assert unpacked.tolist() == array.tolist()
    assert unpack_tensor(pack_tensor("日本")) == "日本"
    assert unpack_tensor(pack_tensor(np.array(["a", "bcd"]))).tolist() == ["a", "bcd"]


def test_protos_and_their_message() -> None:
    messages = [[record(a=1)], [packed(record(b=2))], [struct_pb2.Value(number_value=3)]]
    tensor = pack_tensor(messages)
    assert list(tensor.shape) == [3, 1]
    value = struct_pb2.Value(number_value=3)
    assert list(tensor.protos.array) == list(map(packed, (record(a=1), record(b=2), value)))
    unpacked = unpack_tensor(tensor)
    assert (unpacked.dtype, unpacked.shape) == (np.dtype(object), (3, 1))
    scalar = unpack_tensor(pack_tensor(record(a=1)))
    assert scalar == packed(record(a=1))
    assert pack_tensor(unpacked) == tensor


@pytest.mark.parametrize("layout", strategies.LAYOUTS)
@pytest.mark.parametrize("dtype", VALUES)
def test_elements_travel_row_major_from_every_layout(dtype: str, layout: str) -> None:
    array = np.array(VALUES[dtype], dtype).reshape(2, 3)
    assert pack_tensor(strategies.LAYOUTS[layout](array)) == payload(dtype, VALUES[dtype], [2, 3])


def test_a_bool_of_any_true_byte_is_true() -> None:
    array = np.array([0, 1, 2, 128, 255], np.uint8).view(np.bool_)
    assert list(pack_tensor(array).bools.array) == [False, True, True, True, True]
    assert list(pack_tensor(array[::-2]).bools.array) == [True, True, False]


@pytest.mark.parametrize("dtype", VALUES)
@pytest.mark.parametrize("elements", [6, 1])
def test_results_are_writable_and_alias_nothing(dtype: str, elements: int) -> None:
    message = payload(dtype, VALUES[dtype][:elements], [2, 3])
    before = message.SerializeToString()
    first, second = unpack_tensor(message), unpack_tensor(message)
    assert first.flags.writeable
    assert first.dtype.isnative
    assert not np.shares_memory(first, second)
    first[...] = np.logical_not(first)
    assert strategies.same_bits(unpack_tensor(message), second)
    assert message.SerializeToString() == before


@pytest.mark.parametrize("shape", [[2], []])
def test_unpacked_protos_are_no_part_of_the_message(shape: list[int]) -> None:
    message = Tensor(shape=shape)
    message.protos.array.add(type_url="x")
    unpacked = np.asarray(unpack_tensor(message), object).ravel()
    unpacked[0].type_url = "changed"
    assert message.protos.array[0].type_url == "x"
    assert [element.type_url for element in unpacked[1:]] == ["x"] * (unpacked.size - 1)


def test_packed_messages_do_not_alias_their_input() -> None:
    array, given_any = np.zeros(3), any_pb2.Any(type_url="x")
    numbers, protos = pack_tensor(array), pack_tensor([given_any])
    array[:], given_any.type_url = 1, "changed"
    assert list(numbers.doubles.array) == [0, 0, 0]
    assert protos.protos.array[0].type_url == "x"


@pytest.mark.parametrize(
    ("shape", "elements", "full"),
    [
        ([-1], 0, (0,)),
        ([-1], 6, (6,)),
        ([2, -1], 6, (2, 3)),
        ([-5, 3], 6, (2, 3)),
        ([2, -1, 3], 6, (2, 1, 3)),
        ([2, -1], 0, (2, 0)),
        ([-1, 2, 2], 1, (1, 2, 2)),
        ([2, 3], 1, (2, 3)),
        ([1], 1, (1,)),
        ([], 1, ()),
        ([0, 3], 1, (0, 3)),
        ([2**31 - 1, 0], 0, (2**31 - 1, 0)),
        ([1] * 32, 1, (1,) * 32),
    ],
)
def test_the_elements_settle_the_shape(shape: list[int], elements: int, full: Any) -> None:
    for dtype in VALUES:
        array = unpack_tensor(payload(dtype, VALUES[dtype][:elements], shape))
        assert np.shape(array) == full
        if elements == 1:
            assert np.all(array == np.dtype(dtype).type(VALUES[dtype][0]))
    strings = unpack_tensor(Tensor(shape=shape, strings=Tensor.StringArray(array=["x"] * elements)))
    assert np.shape(strings) == full
    protos = Tensor.ProtoArray(array=[any_pb2.Any()] * elements)
    if shape:
        assert unpack_tensor(Tensor(shape=shape, protos=protos)).shape == full


@pytest.mark.parametrize(
    ("shape", "elements", "text"),
    [
        ([], 0, "scalar"),
        ([], 2, "scalar"),
        ([3], 2, "requires 3 elements"),
        ([2, 2], 5, "requires 4 elements"),
        ([0], 2, "requires 0 elements"),
        ([-1, -1], 4, "more than one variable"),
        ([4, -1], 6, "cannot fill"),
        ([0, -1], 6, "cannot fill"),
        ([1] * 33, 1, "33 dimensions"),
        ([0, *[2**31 - 1] * 4], 1, "a message holds"),
        ([-1, 0, *[2**31 - 1] * 4], 1, "a message holds"),
        ([2**31 - 1] * 4, 6, "requires"),
    ],
)
def test_elements_that_do_not_fit_are_refused(shape: list[int], elements: int, text: str) -> None:
    for dtype in VALUES:
        with pytest.raises(SpecError, match=f"^tensor: .*{text}"):
            unpack_tensor(payload(dtype, VALUES[dtype][:elements], shape))
    with pytest.raises(SpecError, match=text):
        unpack_tensor(Tensor(shape=shape, strings=Tensor.StringArray(array=["x"] * elements)))
    protos = Tensor.ProtoArray(array=[any_pb2.Any()] * elements)
    with pytest.raises(SpecError, match=text):
        unpack_tensor(Tensor(shape=shape, protos=protos))


BOMBS = [
    Tensor(shape=[2**29], floats=Tensor.FloatArray(array=[1])),
    Tensor(shape=[2**31 - 1], bools=Tensor.BoolArray(array=[True])),
    Tensor(shape=[2**31 - 1, 2**31 - 1], uint8s=Tensor.Uint8Array(array=b"\1")),
    Tensor(shape=[-1, 2**31 - 1, 2**31 - 1], doubles=Tensor.DoubleArray(array=[1])),
    Tensor(shape=[2**31 - 1] * 32, int64s=Tensor.Int64Array(array=[1])),
    Tensor(shape=[2**26], strings=Tensor.StringArray(array=["x" * 60_000])),
    Tensor(shape=[2**20], protos=Tensor.ProtoArray(array=[any_pb2.Any(value=b"x")])),
    Tensor(shape=[2**14], protos=Tensor.ProtoArray(array=[any_pb2.Any(value=b"x" * 60_000)])),
]


@pytest.mark.row(21)
@pytest.mark.parametrize("bomb", BOMBS, ids=lambda bomb: bomb.WhichOneof("payload"))
def test_a_bomb_is_refused_before_memory_is_taken(bomb: Tensor, seen: Seen) -> None:
    def unpack() -> None:
        with pytest.raises(SpecError, match="bytes beyond their size in the message"):
            unpack_tensor(bomb)

    seconds, peak = strategies.cost(unpack)
    seen(tensors=1, tensor_refused_after_ms=seconds * 1e3, memory_mib=peak / 2**20)
    assert seconds < 0.05
    assert peak < 1 << 20


@pytest.mark.row(21)
def test_strings_of_different_lengths_are_not_padded() -> None:
    texts = ["x" * 100_000] + [""] * 1000
    message = Tensor(shape=[1001], strings=Tensor.StringArray(array=texts))
    assert unpack_tensor(message).tolist() == texts
    _, peak = strategies.cost(lambda: unpack_tensor(message))
    assert peak < 1 << 20


_TAGS = {field.name: field.number for field in Tensor.DESCRIPTOR.fields}


def in_tensor(dtype: str, array_message: bytes, shape: list[int]) -> Tensor:
    number = _TAGS[strategies.FIELDS[dtype]]
    return Tensor.FromString(
        wire.field(number, 2, array_message)
        + wire.field(15, 2, b"".join(map(strategies.varint, shape)))
    )


UNKNOWN = wire.field(9, 2, b"unknown") + wire.field(10, 0, strategies.varint(2**40))


REPEATED = [dtype for dtype in VALUES if dtype not in ("int8", "uint8")]


@pytest.mark.parametrize("dtype", REPEATED)
def test_every_encoding_of_a_repeated_field_decodes(dtype: str) -> None:
    array = np.array(VALUES[dtype], dtype).reshape(2, 3)
    encoded = [element_bytes(dtype, value) for value in VALUES[dtype]]

    def block_of(part: list[tuple[int, bytes]]) -> bytes:
        return wire.field(1, 2, b"".join(contents for _, contents in part))

    block = block_of(encoded)
    chunks = b"".join(map(block_of, (encoded[:1], encoded[1:4], encoded[4:])))
    unpacked = b"".join(wire.field(1, *element) for element in encoded)
    mixed = wire.field(1, *encoded[0]) + block_of(encoded[1:])
    for known in (block, chunks, unpacked, mixed):
        for around in (known, UNKNOWN + known, known + UNKNOWN, UNKNOWN + known + UNKNOWN):
            assert strategies.same_bits(unpack_tensor(in_tensor(dtype, around, [2, 3])), array)


def test_a_true_bool_may_be_any_varint() -> None:
    array_message = wire.field(1, 2, b"\x00\x02\x80\x01\x80\x00")
    found = unpack_tensor(in_tensor("bool", array_message, [-1]))
    assert found.tolist() == [False, True, True, False]


@pytest.mark.parametrize("dtype", strategies.FIELDS)
def test_a_data_type_is_named_in_several_ways(dtype: str) -> None:
    number = strategies.DATA_TYPES[dtype]
    ways = (dtype, np.dtype(dtype), np.dtype(dtype).type, number, np.int64(number))
    for way in (*ways, np.dtype(dtype).newbyteorder(">")):
        assert pack_tensor([0, 1], way).WhichOneof("payload") == strategies.FIELDS[dtype]
    assert codecs.codec_for(dtype).name == dtype


def test_strings_and_protos_are_data_types_too() -> None:
    for way in (str, np.str_, "U5", dm_env_rpc_pb2.STRING):
        assert pack_tensor(["a"], way).WhichOneof("payload") == "strings"
        assert pack_tensor([], way).WhichOneof("payload") == "strings"
    for proto in (object, np.object_, dm_env_rpc_pb2.PROTO):
        assert pack_tensor([record()], proto).WhichOneof("payload") == "protos"
    assert pack_tensor(np.array([], str)).WhichOneof("payload") == "strings"
    assert pack_tensor(np.array([], object)).WhichOneof("payload") == "protos"
    assert codecs.codec_for(str).name == "string"


@pytest.mark.parametrize(
    "dtype", ["nonsense", 0, 12, 99, -1, "S3", complex, "datetime64[s]", 3.5, object(), np.float16]
)
def test_an_unknown_data_type_is_refused(dtype: Any) -> None:
    with pytest.raises(SpecError, match=r"not a data type of the protocol|is not a dtype"):
        pack_tensor([1], dtype)


@pytest.mark.parametrize("text", ["\udc80", "a\ud83d", "\udfff" * 3])
def test_half_a_surrogate_pair_is_a_spec_error(text: str) -> None:
    for value in (text, [text], ["ok", text], np.array([text]), np.array([text], object)):
        with pytest.raises(SpecError, match="value: cannot be packed"):
            pack_tensor(value)


def test_shapes_that_no_message_holds_are_spec_errors() -> None:
    unfinished = descriptor_pb2.UninterpretedOption.NamePart()  # A field of it is required.
    for value in (np.empty((2**31, 0)), unfinished):
        with pytest.raises(SpecError, match="cannot be packed"):
            pack_tensor(value)
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        with pytest.raises(SpecError, match="more than 32 dimensions"):
            pack_tensor(np.zeros((1,) * 33))
    with pytest.raises(SpecError, match="a message holds"):
        pack_tensor(np.broadcast_to(np.uint8(1), (2**31,)))


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        ([0.0, -0.0], 2),
        ([float("nan"), float("nan")], 1),
        ([[2, 2], [2, 2]], 1),
        ([], 0),
        (["a", "a"], 1),
        (["a", "b"], 2),
        ([1], 1),
        (5, 1),
    ],
)
def test_only_elements_that_are_the_same_are_sent_as_one(value: Any, elements: int) -> None:
    tensor = pack_tensor(value, try_compress=True)
    part = getattr(tensor, str(tensor.WhichOneof("payload")))
    assert len(part.array) == elements
    assert str(np.asarray(unpack_tensor(tensor)).tolist()) == str(value)


@given(strategies.arrays(), st.sampled_from(sorted(strategies.LAYOUTS)), st.booleans())
def test_packing_undoes_unpacking(array: strategies.Array, layout: str, compress: bool) -> None:
    tensor = pack_tensor(strategies.LAYOUTS[layout](array), try_compress=compress)
    assert strategies.same_bits(tensor_utils.unpack_tensor(tensor), array), "the peer"
    if not compress:
        sent = tensor_utils.pack_tensor(array)
        assert tensor.SerializeToString(deterministic=True) == sent.SerializeToString(
            deterministic=True
        )
    assert strategies.same_bits(unpack_tensor(Tensor.FromString(tensor.SerializeToString())), array)


def test_a_repeated_field_that_makes_no_array_is_iterated() -> None:
    # Before protobuf 7.34, repeated fields were sequences and no more.
    message: Any = types.SimpleNamespace(int32s=types.SimpleNamespace(array=[1, -2]))
    unpacked = codecs.codec_for(np.int32).unpack(message)
    assert strategies.same_bits(unpacked, np.array([1, -2], np.int32))


@pytest.mark.parametrize("count", [1, 32, 33])
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
def test_integers_are_encoded_as_protobuf_encodes_them(dtype: str, count: int) -> None:
    codec, info = codecs.codec_for(dtype), np.iinfo(dtype)
    for value in (0, 127, 128, info.min, info.max):
        for values in ([value] * count, [0] * (count - 1) + [value]):
            expected = codec.payload_class(array=values).SerializeToString()
            assert codec.encode(np.array(values, dtype)) == expected
