"""Columns: rows that take values as a single environment's codec takes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dm_env import specs
from google.protobuf import any_pb2, wrappers_pb2

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.columns import Column
from dm_env_rpc_client.tensors.spec_manager import TensorField
from dm_env_rpc_client.tensors.specs import dm_env_spec_to_tensor_spec

ROWS = 3

DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")

NUMBERS: list[Any] = [
    0, 1, True, -1, 128, 255, 300, 1 << 15, 1 << 31, 1 << 63, -(1 << 63), 0.0, -0.0, 0.5, 1.7,
    65504.0, 1e5, 3.4e38, 3.5e38, -3.5e38, 1e300, float("nan"), float("inf"), -float("inf"),
]  # fmt: skip


def values() -> list[Any]:
    found: list[Any] = [*NUMBERS, None, "0.5", 1j, b"1", [1], [[1]], [1, 2], object()]
    for number in NUMBERS:
        for dtype in DTYPES:
            with np.errstate(all="ignore"):
                try:
                    scalar = np.array(number).astype(dtype)
                except (OverflowError, ValueError):
                    continue
            found += [scalar[()], scalar, scalar.reshape(1), np.repeat(scalar, 2)]
            found += [np.ma.array(np.repeat(scalar, 2), mask=[False, True]), scalar.astype(dtype)]
    return found


@pytest.mark.parametrize("shape", [(), (1,), (2,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_takes_what_a_single_environment_may_return(
    dtype: str, shape: tuple[int, ...]
) -> None:
    spec = specs.Array(shape, np.dtype(dtype), "seen")
    field = TensorField(1, dm_env_spec_to_tensor_spec(spec), "observation")
    taken = refused = 0
    for value in values():
        column = Column(spec, (ROWS,), "observation 'seen'")
        before = column.array.copy()
        expected, text = None, ""
        try:
            expected = field.conform(value, check_range=False)
        except SpecError as error:
            text = str(error).replace(" (uid 1)", "")
        if expected is None:
            with pytest.raises(SpecError) as caught:
                column.array[1] = column.taken(value)
            assert str(caught.value) == text
            np.testing.assert_array_equal(column.array, before)
            refused += 1
            continue
        column.array[1] = column.taken(value)
        assert column.array.dtype == expected.dtype
        assert column.array[1].tobytes() == expected.tobytes(), value
        np.testing.assert_array_equal(column.array[[0, 2]], before[[0, 2]])
        taken += 1
    assert taken > 40
    assert refused > 500


@pytest.mark.parametrize("dtype", ["i2", "u2", "f2", ">i4", ">f8", "i4"])
def test_an_array_may_keep_the_dtype_of_its_spec(dtype: str) -> None:
    spec = specs.Array((2,), np.dtype(dtype), "seen")
    column = Column(spec, (ROWS,), "seen", spec.dtype)
    assert column.array.dtype == np.dtype(dtype)
    column.array[0] = column.taken(np.array([1, 2]))
    assert column.array[0].tolist() == [1, 2]
    for value in ([1 << 40, 1], ["1", "2"], [1, 2, 3], 1):
        if dtype != ">f8" or value != [1 << 40, 1]:
            with pytest.raises(SpecError, match="seen: "):
                column.taken(value)


def test_texts_and_messages() -> None:
    texts = Column(specs.StringArray((), name="said"), (ROWS,), "said")
    assert texts.array.tolist() == [""] * ROWS
    texts.array[1] = texts.taken("hello")
    assert texts.array.tolist() == ["", "hello", ""]
    for value in (5, None, b"hello", ["hello"], "\ud800"):
        with pytest.raises(SpecError, match="said: "):
            texts.taken(value)
    # A text of NumPy has a length, at which an array of that dtype would cut others off.
    fixed = Column(specs.Array((2,), np.dtype("<U3"), "said"), (ROWS,), "said")
    fixed.array[0] = fixed.taken(np.array(["hello", "x"]))
    assert fixed.array[0].tolist() == ["hello", "x"]
    messages = Column(specs.Array((), object, "told"), (ROWS,), "told")
    assert messages.array.tolist() == [any_pb2.Any()] * ROWS
    message = wrappers_pb2.Int32Value(value=3)
    messages.array[1] = messages.taken(message)
    assert messages.array[1] is message
    with pytest.raises(SpecError, match="told: "):
        messages.taken("text")
