"""Casts are exact or they are errors: row 22 of the reliability scorecard."""

from __future__ import annotations

import enum
import math
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from google.protobuf import struct_pb2

from dm_env_rpc_client import SpecError, SpecManager, dm_env_rpc_pb2, pack_tensor, unpack_tensor
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS, as_array, exact_cast
from tests.reliability.recording import Seen
from tests.tensors import strategies

SOURCES = (*strategies.FIELDS, "int16", "uint16", "float16")
TARGETS = tuple(strategies.FIELDS)

_INTEGER_EDGES = {
    sign * (1 << power) + offset
    for power in (0, 1, 7, 8, 11, 15, 16, 24, 31, 32, 53, 63, 64)
    for sign in (-1, 1)
    for offset in (-1, 0, 1)
}
_FLOAT_EDGES = {
    *map(float, sorted(_INTEGER_EDGES)),
    *(math.nextafter(2.0**power, 0.0) for power in (7, 8, 24, 31, 32, 53, 63, 64)),
    *(math.nextafter(-(2.0**power), -math.inf) for power in (7, 31, 63)),
    *(0.5, -0.5, 1.9, 300.0, 0.1, 5e-324, 1e-45, 1.7976931348623157e308),
    *(3.4028234663852886e38, 3.4028235677973366e38, 3.402823567797336e38, -3.5e38),
    *(65504.0, 65520.0),
}


def edge_values(dtype: str) -> list[Any]:
    """Python values that `dtype` holds exactly, at the limits of every dtype."""
    if dtype == "bool":
        return [False, True]
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return sorted(n for n in _INTEGER_EDGES | {0} if info.min <= n <= info.max)
    with np.errstate(over="ignore"):
        held = np.array(sorted(_FLOAT_EDGES), np.float64).astype(dtype)
    return [*sorted(set(held.tolist())), -0.0, math.inf, -math.inf, math.nan]


def expected(value: Any, target: str) -> Any:
    """What `value` is in `target` by Python's own arithmetic; None where it cannot be."""
    if target == "bool":
        return bool(value) if value in (0, 1) else None
    if target.startswith(("int", "uint")):
        info = np.iinfo(target)
        if isinstance(value, float) and not value.is_integer():
            return None
        return int(value) if info.min <= int(value) <= info.max else None
    code = "f" if target == "float32" else "d"
    try:
        (rounded,) = struct.unpack(f"<{code}", struct.pack(f"<{code}", value))
    except OverflowError:
        return None
    if isinstance(value, float):
        return rounded  # Only a float may round.
    return rounded if math.isfinite(rounded) and Fraction(rounded) == value else None


def is_same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or struct.pack("<d", left) == struct.pack("<d", right)
    return type(left) is type(right) and bool(left == right)


@pytest.mark.row(22)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_dtype_pair_is_exact_or_an_error(source: str, target: str, seen: Seen) -> None:
    exact = refused = 0
    spec = dm_env_rpc_pb2.TensorSpec(name="a", shape=[1])
    spec.dtype = strategies.DATA_TYPES[target]
    actions = SpecManager({7: spec}, "action")
    for value in edge_values(source):
        array = np.array([value], source)
        want = expected(array.item(), target)
        if want is None:
            refused += 1
            with pytest.raises(SpecError, match=r"x: element \[0\]"):
                exact_cast(as_array(array, "x"), np.dtype(target), "x")
            with pytest.raises(SpecError):
                pack_tensor(array, target)
            with pytest.raises(SpecError, match=r"action 'a' \(uid 7\)"):
                actions.pack({"a": array})
            continue
        exact += 1
        cast = exact_cast(as_array(array, "x"), np.dtype(target), "x")
        assert cast.dtype == target
        assert is_same(cast.item(), want)
        tensor = pack_tensor(array, target)
        assert tensor.WhichOneof("payload") == strategies.FIELDS[target]
        assert is_same(unpack_tensor(tensor).item(), want)
        if not (isinstance(want, float) and not math.isfinite(want)):
            assert is_same(unpack_tensor(actions.pack({"a": array})[7]).item(), want)
    seen(exact_casts=exact, refused_casts=refused)


@pytest.mark.row(22)
@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.9, np.int32),
        ("False", np.bool_),
        ("1", np.int32),
        (2**53 + 1, np.float64),
        (1, str),
        (True, str),
        (1, object),
        ("a", object),
        (struct_pb2.Struct(), str),
    ],
)
def test_a_cast_that_would_change_the_value_is_an_error(value: Any, dtype: Any) -> None:
    with pytest.raises(SpecError):
        pack_tensor(value, dtype)


INT32 = r"which int32 cannot hold \(-2147483648 to 2147483647\)$"


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (
            [[1], [300]],
            np.int8,
            r"element \[1, 0\] is 300, which int8 cannot hold \(-128 to 127\)$",
        ),
        (2, bool, r"the value is 2, which bool cannot hold \(0 or 1\)$"),
        (1.5, np.int32, r"the value is 1\.5, which is not an integer; .* int32$"),
        (-0.25, np.int32, r"the value is -0\.25, which is not an integer; .* int32$"),
        (2.0**40 + 0.5, np.int32, r"the value is 1099511627776\.5, which is not an integer"),
        (np.nan, np.int32, f".*{INT32}"),
        (np.inf, np.int32, f".*{INT32}"),
        (2.0**40, np.int32, f".*{INT32}"),
        ("x" * 100, np.float32, "expected float32, got strings or messages"),
    ],
)
def test_an_error_names_the_element_and_the_range(value: Any, dtype: Any, text: str) -> None:
    with pytest.raises(SpecError, match=f"^where: {text}"):
        exact_cast(as_array(value, "where"), np.dtype(dtype), "where")


@pytest.mark.parametrize("size", [1, 1024, 1025])
@pytest.mark.parametrize(
    ("wide", "narrow", "outside"),
    [("i8", "i4", 2**31), ("i8", "i4", -(2**31) - 1), ("u8", "u1", 256), ("u8", "i8", 2**63),
     ("i4", "u4", -1), (">i8", "i4", 2**32 + 1), ("i1", "u8", -1)],
)  # fmt: skip
def test_many_integers_are_checked_as_few_are(
    size: int, wide: str, narrow: str, outside: int
) -> None:
    array = np.resize(np.array([0, 1], wide), size)
    cast = exact_cast(array, np.dtype(narrow), "x")
    assert cast.dtype == narrow
    assert cast.tolist() == array.tolist()
    array[-1] = outside
    with pytest.raises(SpecError, match=rf"x: element \[{size - 1}\] is {outside}, which"):
        exact_cast(array, np.dtype(narrow), "x")


def test_an_array_of_the_right_dtype_is_not_copied() -> None:
    array = np.arange(3.0)
    assert as_array(array, "x") is array
    assert exact_cast(array, np.dtype(np.float64), "x") is array


@pytest.mark.parametrize("dtype", TARGETS)
def test_an_empty_array_casts_to_everything(dtype: str) -> None:
    assert exact_cast(as_array([], "x"), np.dtype(dtype), "x").dtype == dtype
    assert exact_cast(as_array([], "x"), np.dtype(object), "x").dtype == object


class Colour(enum.IntEnum):
    RED = 1


class HasArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.arange(2, dtype=np.int32)


@pytest.mark.parametrize(
    ("value", "dtype", "elements"),
    [
        (3, "int64", 3),
        (2**63, "uint64", 2**63),
        (-(2**63), "int64", -(2**63)),
        (2.5, "float64", 2.5),
        (True, "bool", True),
        ("x", "object", "x"),
        ([], "float64", []),
        ([[], []], "float64", [[], []]),
        ([1, 2], "int64", [1, 2]),
        ((1, 2**63), "uint64", [1, 2**63]),
        (range(3), "int64", [0, 1, 2]),
        ([1, 2.5], "float64", [1.0, 2.5]),
        ([2**53, 0.5], "float64", [2.0**53, 0.5]),
        ([True, False], "bool", [True, False]),
        ([[1, 2], (3, 4)], "int64", [[1, 2], [3, 4]]),
        ([Colour.RED], "int64", [1]),
        (np.float16(0.5), "float32", 0.5),
        (np.int16(-5), "int32", -5),
        (np.uint16(65535), "uint32", 65535),
        (np.str_("x"), "object", "x"),
        (np.array(["a", "bc"]), "object", ["a", "bc"]),
        (np.array([1, 2], object), "int64", [1, 2]),
        (np.array(7, object), "int64", 7),
        (np.array([], object), "float64", []),
        (np.ma.array([1, 2], mask=[False, False]), "int64", [1, 2]),
        (HasArray(), "int32", [0, 1]),
        ([np.float32(0.1)], "float32", [np.float32(0.1).item()]),
        ([np.float32(0.1), 0.1], "float64", [np.float32(0.1).item(), 0.1]),
        ([np.int8(1), np.int16(2)], "int32", [1, 2]),
        ([np.uint64(2**64 - 1), np.int64(1)], "uint64", [2**64 - 1, 1]),
        ([np.int8(1), np.float32(0.5)], "float32", [1.0, 0.5]),
        ([np.zeros(2, np.uint8), np.ones(2, np.uint8)], "uint8", [[0, 0], [1, 1]]),
        ([np.zeros(1, np.float32), np.ones(1)], "float64", [[0.0], [1.0]]),
        ([np.array([1]), [2]], "int64", [[1], [2]]),
        ([np.array(1.5), np.array(2.5)], "float64", [1.5, 2.5]),
        ([np.array(["a"]), np.array(["bc"])], "object", [["a"], ["bc"]]),
    ],
)
def test_a_value_becomes_an_array_of_its_own_kind(value: Any, dtype: str, elements: Any) -> None:
    array = as_array(value, "x")
    assert array.dtype == dtype
    assert array.tolist() == elements


def test_messages_that_look_like_sequences_or_mappings_are_elements() -> None:
    numbers = struct_pb2.ListValue()
    numbers.extend([1, 2])
    record = struct_pb2.Struct()
    record.update({"a": 1})
    for message in (numbers, record, struct_pb2.Struct()):
        assert as_array(message, "x").shape == ()
        assert as_array([message, message], "x").shape == (2,)
        assert as_array([[message], [message]], "x").shape == (2, 1)


def _nested_in_itself() -> Any:
    value: list[Any] = [1]
    value[0] = value
    return value


def _rows_and_itself() -> Any:
    value: list[Any] = [np.zeros(2)]
    value.append(value)
    return value


def _deep() -> Any:
    value: Any = 1
    for _ in range(10_000):
        value = [value]
    return value


class RaisesInArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise RuntimeError("on another device")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([[1, 2], [3]], "ragged"),
        ([[1], 2], "ragged"),
        ([[], [1]], "ragged"),
        ([np.zeros(2), np.zeros(3)], "ragged"),
        ([np.zeros(2), 3.0], "ragged"),
        (np.array([[1], [2, 3]], object), "of type list"),
        ([1, "a"], "mixes int and string"),
        ([1, True], "mixes bool and int"),
        (["a", struct_pb2.Struct()], "mixes message and string"),
        (np.array([1, "a"], object), "mixes"),
        (None, "of type NoneType"),
        ([None], "of type NoneType"),
        (b"bytes", "of type bytes"),
        (1j, "of type complex"),
        ({"a": 1}, "of type dict"),
        ({1, 2}, "of type set"),
        ([object()], "of type object"),
        (Fraction(1, 2), "of type Fraction"),
        (np.array([1j]), "complex128"),
        (np.array([b"x"]), "no type for NumPy dtype"),
        (np.datetime64("2020-01-01"), "datetime64"),
        ([np.timedelta64(1, "s")], "timedelta64"),
        (np.zeros(1, [("a", np.int32)]), "no type for NumPy dtype"),
        (2**64, "neither int64 nor uint64"),
        ([2**63, -1], "neither int64 nor uint64"),
        ([np.uint64(2**63), np.int8(-1)], "neither int64 nor uint64"),
        (10**5000, "neither int64 nor uint64"),
        ([2**53 + 1, 0.5], "float64 cannot hold"),
        ([np.int64(2**53 + 1), np.float32(0.5)], "float64 cannot hold"),
        ([10**400, 0.5], "too large"),
        (np.ma.array([1, 2], mask=[False, True]), "masked"),
        (np.ma.masked, "masked"),
        (RaisesInArray(), "on another device"),
        ([[np.zeros((1,) * 31)]], "more than 32 dimensions"),
        (_nested_in_itself(), f"more than {MAX_DIMENSIONS} dimensions"),
        (_rows_and_itself(), "ragged"),
        (_deep(), f"more than {MAX_DIMENSIONS} dimensions"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_array_is_refused(value: Any, text: str) -> None:
    with pytest.raises(SpecError, match=f"^x: .*{text}"):
        as_array(value, "x")


@pytest.mark.skipif(np.dtype(np.longdouble) == np.float64, reason="long double is double here")
@pytest.mark.parametrize("value", [np.longdouble(1), [np.longdouble("1e4000"), 1.0]])
def test_extended_precision_is_refused(value: Any) -> None:
    with pytest.raises(SpecError):
        as_array(value, "x")
