"""TensorSpecs and dm_env specs, both ways, and the bounds in them: row 23 of the scorecard."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import pytest
from dm_env import specs
from dm_env_rpc.v1 import dm_env_utils, tensor_spec_utils
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dm_env_rpc_client import (
    SpecError,
    bounds,
    dm_env_rpc_pb2,
    dm_env_spec_to_tensor_spec,
    set_bounds,
    tensor_spec_to_dm_env_spec,
)
from dm_env_rpc_client.tensors.specs import (
    VariableArray,
    VariableBoundedArray,
    VariableStringArray,
    check_spec,
    sample,
)
from tests.fuzz import wire
from tests.tensors import strategies
from tests.tensors.strategies import element_bytes

TensorSpec: TypeAlias = dm_env_rpc_pb2.TensorSpec
NUMERIC = [dtype for dtype in strategies.FIELDS if dtype != "bool"]


def tensor_spec(
    dtype: Any, shape: Any = (), minimum: Any = None, maximum: Any = None, name: str = "a"
) -> TensorSpec:
    spec = TensorSpec(name=name, shape=shape)
    spec.dtype = strategies.DATA_TYPES[dtype] if isinstance(dtype, str) else dtype
    for side, value in (("min", minimum), ("max", maximum)):
        if value is not None:
            part = getattr(getattr(spec, side), strategies.FIELDS[str(dtype)])
            part.SetInParent()
            if dtype in ("int8", "uint8"):
                part.array = np.asarray(value, str(dtype)).tobytes()
            else:
                part.array.extend(np.asarray(value, str(dtype)).ravel().tolist())
    return spec


def limits(dtype: str) -> tuple[Any, Any]:
    if np.dtype(dtype).kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


# Row 23: bounds at the extremes of every integer dtype.


@pytest.mark.row(23)
@pytest.mark.parametrize("dtype", strategies.INTEGERS)
@pytest.mark.parametrize("shape", [(), (2,)])
def test_bounds_at_the_extremes_give_a_spec_that_validates_them(dtype: str, shape: Any) -> None:
    low, high = limits(dtype)
    for minimum, maximum in [
        *((low, high), (0, high), (low, 0), (None, high), (low, None)),
        *((high, high), (low, low), (0, 0), (0, high - 1), (1, high)),
    ]:
        spec = tensor_spec_to_dm_env_spec(tensor_spec(dtype, shape, minimum, maximum))
        assert isinstance(spec, specs.BoundedArray)
        assert (spec.shape, spec.dtype, spec.name) == (shape, dtype, "a")
        first = low if minimum is None else minimum
        last = high if maximum is None else maximum
        for value in (first, last):
            spec.validate(np.full(shape, value, dtype))
        spec.validate(spec.generate_value())
        for value in {first - 1, last + 1}:
            if low <= value <= high:
                with pytest.raises(ValueError, match="bounds"):
                    spec.validate(np.full(shape, value, dtype))
        discrete = shape == () and first == 0 and maximum is not None
        assert isinstance(spec, specs.DiscreteArray) == discrete
        if isinstance(spec, specs.DiscreteArray):
            assert spec.num_values == last + 1
        back = dm_env_spec_to_tensor_spec(spec)
        assert bounds(back) == (first, last)


def test_a_discrete_array_that_dm_env_refuses_is_a_bounded_array(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*args: Any) -> None:
        raise ValueError("num_values")

    monkeypatch.setattr(specs, "DiscreteArray", refuse)
    spec = tensor_spec_to_dm_env_spec(tensor_spec("int8", (), 0, 127))
    assert type(spec) is specs.BoundedArray


# Both directions, one table.


@pytest.mark.parametrize(
    ("message", "spec"),
    [
        (tensor_spec("float32", (2, 3)), specs.Array((2, 3), np.float32, "a")),
        (tensor_spec("bool"), specs.Array((), np.bool_, "a")),
        (tensor_spec("int8", (0,)), specs.Array((0,), np.int8, "a")),
        (
            tensor_spec("float64", (2,), -1.0, 1.0),
            specs.BoundedArray((2,), np.float64, -1.0, 1.0, "a"),
        ),
        (
            tensor_spec("float32", (2,), -math.inf, math.inf),
            specs.BoundedArray((2,), np.float32, -np.inf, np.inf, "a"),
        ),
        (
            tensor_spec("uint8", (2, 2), [[1, 2], [3, 4]], 5),
            specs.BoundedArray((2, 2), np.uint8, [[1, 2], [3, 4]], 5, "a"),
        ),
        (tensor_spec("int32", (), 0, 4), specs.DiscreteArray(5, np.int32, "a")),
        (tensor_spec("int64", (1,), 0, 4), specs.BoundedArray((1,), np.int64, 0, 4, "a")),
        (tensor_spec("int32", (), 1, 4), specs.BoundedArray((), np.int32, 1, 4, "a")),
        (tensor_spec(dm_env_rpc_pb2.STRING, (2,)), specs.StringArray((2,), name="a")),
        (tensor_spec(dm_env_rpc_pb2.PROTO), specs.Array((), object, "a")),
        (tensor_spec("float32", (2, -1)), VariableArray((2, -1), np.float32, "a")),
        (tensor_spec("int32", (-1,), 0, 4), VariableBoundedArray((-1,), np.int32, 0, 4, "a")),
        (tensor_spec(dm_env_rpc_pb2.STRING, (-1,)), VariableStringArray((-1,), name="a")),
    ],
)
def test_a_message_and_its_spec(message: TensorSpec, spec: specs.Array) -> None:
    converted = tensor_spec_to_dm_env_spec(message)
    assert type(converted) is type(spec)
    assert converted == spec
    assert converted.name == "a"
    assert dm_env_spec_to_tensor_spec(spec) == message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (specs.Array((1,), np.float32), tensor_spec("float32", (1,), name="")),
        (specs.Array((1,), np.int16, "a"), tensor_spec("int32", (1,))),
        (specs.Array((1,), np.float16, "a"), tensor_spec("float32", (1,))),
        (specs.Array((1,), ">i4", "a"), tensor_spec("int32", (1,))),
        (specs.Array((1,), np.str_, "a"), tensor_spec(dm_env_rpc_pb2.STRING, (1,))),
        (specs.Array((-1,), np.int8, "a"), tensor_spec("int8", (-1,))),
        (specs.DiscreteArray(3, np.uint16, "a"), tensor_spec("uint32", (), 0, 2)),
        (specs.BoundedArray((2,), np.bool_, False, True, "a"), tensor_spec("bool", (2,))),
        (
            specs.BoundedArray((2, 3), np.float64, [0, 1, 2], 5, "a"),
            tensor_spec("float64", (2, 3), [[0, 1, 2], [0, 1, 2]], 5),
        ),
        (
            specs.BoundedArray((2, 2), np.int8, [[1], [2]], [5], "a"),
            tensor_spec("int8", (2, 2), [[1, 1], [2, 2]], 5),
        ),
    ],
)
def test_a_spec_of_another_form_has_a_message_too(spec: Any, message: TensorSpec) -> None:
    assert dm_env_spec_to_tensor_spec(spec) == message


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (specs.Array((1,), np.complex64, "a"), "no type for NumPy dtype"),
        (specs.Array((1,), "S3", "a"), "no type for NumPy dtype"),
        (specs.StringArray((1,), bytes, "a"), "must be str, not bytes"),
        (specs.BoundedArray((), np.float32, np.nan, 1, "a"), "NaN"),
        (specs.BoundedArray((), np.float32, 0, np.nan, "a"), "NaN"),
        (specs.Array((-1, -1), np.float32, "a"), "more than one variable"),
        (specs.Array((1,) * 33, np.float32, "a"), "33 dimensions"),
        (specs.Array((2**31,), np.float32, "a"), "cannot be packed"),
        (specs.Array((2**30,), np.float32, "a"), "a message holds"),
        (specs.Array((1,), np.float32, 5), "cannot be packed"),
        (specs.Array((1,), np.float32, "\udc80"), "cannot be packed"),
    ],
)
def test_a_spec_without_a_message_is_refused(spec: Any, text: str) -> None:
    with pytest.raises(SpecError, match=f"^spec .*{text}"):
        dm_env_spec_to_tensor_spec(spec)


@st.composite
def tensor_specs(draw: Any) -> TensorSpec:
    dtype = draw(st.sampled_from(NUMERIC))
    shape = draw(strategies.shapes(min_side=0))
    elements: dict[str, Any] = {"allow_nan": False} if np.dtype(dtype).kind == "f" else {}
    scalar = npst.arrays(np.dtype(dtype), (), elements=elements or None)
    per_element = npst.arrays(np.dtype(dtype), shape, elements=elements or None)
    side = st.none() | scalar | per_element
    low, high = draw(side), draw(side)
    if low is not None and high is not None:
        low, high = np.minimum(low, high), np.maximum(low, high)
    # One side of infinity leaves no number where the other is the dtype's limit.
    assume(low is None or not np.any(np.isposinf(low)))
    assume(high is None or not np.any(np.isneginf(high)))
    if shape and draw(st.booleans()) and all(np.ndim(s) == 0 for s in (low, high) if s is not None):
        shape = (*shape[:-1], -1)
    spec = tensor_spec(dtype, shape)
    set_bounds(spec, low, high)
    return spec


@given(tensor_specs())
def test_a_message_comes_back_from_its_spec(message: TensorSpec) -> None:
    spec = tensor_spec_to_dm_env_spec(message)
    back = dm_env_spec_to_tensor_spec(spec)
    assert (back.name, back.shape, back.dtype) == (message.name, message.shape, message.dtype)
    assert tensor_spec_to_dm_env_spec(back) == spec
    if message.HasField("min") or message.HasField("max"):
        # A side that is left out becomes the limit of the dtype.
        for ours, theirs in zip(bounds(back), bounds(message), strict=True):
            assert np.array_equal(ours, theirs)
    if 0 not in spec.shape:
        spec.validate(spec.generate_value())


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("sides", [("min",), ("max",), ("min", "max")])
@pytest.mark.parametrize("shape", [(), (2,)])
def test_a_bound_that_is_present_without_a_value_is_the_limit_of_the_dtype(
    dtype: str, sides: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    message = tensor_spec(dtype, shape)
    for side in sides:
        getattr(message, side).SetInParent()
    spec = tensor_spec_to_dm_env_spec(message)
    assert spec == dm_env_utils.tensor_spec_to_dm_env_spec(message)
    assert isinstance(spec, specs.BoundedArray)


@given(tensor_specs())
def test_the_peer_reads_the_same_bounds(message: TensorSpec) -> None:
    assume(0 not in message.shape)  # The peer's own IndexError.
    ours, theirs = bounds(message), tensor_spec_utils.bounds(message)
    for mine, its in ((ours.min, theirs.min), (ours.max, theirs.max)):
        # The peer gives an array for a shape of one element.
        assert np.array_equal(np.ravel(mine), np.ravel(its))
        assert np.asarray(mine).dtype == np.asarray(its).dtype
    if all(size > 0 for size in message.shape):  # The peer has no variable ones.
        try:
            peer_spec = dm_env_utils.tensor_spec_to_dm_env_spec(message)
        except (ValueError, OverflowError, RuntimeWarning):
            return  # Row 23: the peer has no spec for the extremes.
        spec = tensor_spec_to_dm_env_spec(message)
        for attribute in ("shape", "dtype", "name"):
            assert getattr(spec, attribute) == getattr(peer_spec, attribute)


# bounds and set_bounds.


@pytest.mark.parametrize("dtype", NUMERIC)
def test_bounds_that_are_set_are_read(dtype: str) -> None:
    cases: list[tuple[Any, Any, Any]] = [
        ((), 1, 2),
        ((2,), 1, 2),
        ((2,), [1, 2], 3),
        ((2, 1), 1, [[1], [2]]),
        ((1,), [1], [2]),
        ((3,), [1], None),
        ((-1,), 1, 2),
        ((0,), np.empty(0, dtype), None),
        ((), None, 1),
        ((), None, None),
    ]
    for shape, minimum, maximum in cases:
        message = tensor_spec(dtype, shape, 5, 6 if np.ndim(minimum) == 0 else None)
        set_bounds(message, minimum, maximum)
        assert message.HasField("min") == (minimum is not None)
        assert message.HasField("max") == (maximum is not None)
        found = bounds(TensorSpec.FromString(message.SerializeToString()))
        for side, given_side in zip(found, (minimum, maximum), strict=True):
            if given_side is not None:
                assert np.array_equal(np.ravel(side), np.ravel(given_side))


@pytest.mark.parametrize(
    ("message", "minimum", "maximum", "text"),
    [
        (tensor_spec("int8"), 128, None, "min: the value is 128"),
        (tensor_spec("int8"), None, -129, "max: the value is -129"),
        (tensor_spec("int8"), 0.5, None, "min: the value is 0.5"),
        (tensor_spec("uint8", (2,)), [0, -1], None, r"min: element \[1\] is -1"),
        (tensor_spec("float32"), math.nan, None, "min: is NaN"),
        (tensor_spec("float32"), 2, 1, "min 2.0 is above max 1.0"),
        (tensor_spec("float32", (2,)), [1, 2, 3], None, r"min: has shape \[3\]"),
        (tensor_spec("float32", (-1,)), [1, 2], None, r"min: has shape \[2\]"),
        (tensor_spec("float32"), "x", None, "min: expected float32"),
        (tensor_spec("float32"), [[1], []], None, "min: ragged"),
        (tensor_spec("bool"), 0, None, "dtype bool cannot have bounds"),
        (tensor_spec(dm_env_rpc_pb2.PROTO), None, None, "dtype proto cannot have bounds"),
        (tensor_spec(0), None, None, "0 is not a data type"),
    ],
)
def test_bounds_that_cannot_be_leave_the_spec_as_it_was(
    message: TensorSpec, minimum: Any, maximum: Any, text: str
) -> None:
    before = message.SerializeToString()
    with pytest.raises(SpecError, match=f"^spec 'a': .*{text}"):
        set_bounds(message, minimum, maximum)
    assert message.SerializeToString() == before


def with_min(dtype: dm_env_rpc_pb2.DataType, **payload: Any) -> TensorSpec:
    return TensorSpec(name="a", dtype=dtype, min=payload)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (tensor_spec("float32", (), math.nan), "min: is NaN"),
        (tensor_spec("float64", (2,), None, [1, math.nan]), "max: is NaN"),
        (tensor_spec("float32", (), 2, 1), "min 2.0 is above max 1.0"),
        (tensor_spec("float32", (2,), [0, 2], [1, 1]), "is above max"),
        (tensor_spec("uint64", (), 2**64 - 1, 2**64 - 2), "is above max"),
        (tensor_spec("int64", (), -(2**63) + 1, -(2**63)), "is above max"),
        (tensor_spec("float32", (), math.inf), "is above max"),
        (tensor_spec("float32", (), None, -math.inf), "is above max"),
        (tensor_spec("float32", (3,), [1, 2]), "min: has 2 elements"),
        (tensor_spec("float32", (), []), "min: has 0 elements"),
        (tensor_spec("float32", (-1,), [1, 2]), "min: has 2 elements"),
        (tensor_spec("float32", (2**31 - 1,), [1, 2]), "a message holds"),
        (
            with_min(dm_env_rpc_pb2.FLOAT, int32s={"array": [1]}),
            "min: has dtype int32, but .* float32",
        ),
        (
            with_min(dm_env_rpc_pb2.STRING, int8s={"array": b"\1"}),
            "min: has dtype int8, but .* string",
        ),
        (tensor_spec("float32", (-1, -1)), "more than one variable dimension"),
        (tensor_spec("float32", (1,) * 33), "33 dimensions"),
        (tensor_spec("float32", (2**31 - 1, 2**31 - 1)), "a message holds"),
        (tensor_spec("float32", (0, *(2**31 - 1,) * 4)), "a message holds"),
        (tensor_spec("float32", (2, *(1,) * 70), [1, 2]), "71 dimensions"),
        (tensor_spec(0), "0 is not a data type"),
        (tensor_spec(99), "99 is not a data type"),
    ],
)
def test_a_message_that_cannot_be_is_refused(message: TensorSpec, text: str) -> None:
    with pytest.raises(SpecError, match=f"^spec 'a': .*{text}"):
        tensor_spec_to_dm_env_spec(message)
    with pytest.raises(SpecError, match=f"^here: .*{text}"):
        check_spec(message, "here")
    with pytest.raises(SpecError, match=f"^spec 'a': .*{text}"):
        bounds(message)


@pytest.mark.parametrize("dtype", ["bool", dm_env_rpc_pb2.STRING, dm_env_rpc_pb2.PROTO])
def test_only_numbers_have_bounds(dtype: Any) -> None:
    with pytest.raises(SpecError, match="cannot have bounds"):
        bounds(tensor_spec(dtype))


def test_bounds_do_not_alias_the_message() -> None:
    message = tensor_spec("float32", (2,), [1, 2], [3, 4])
    found = bounds(message)
    found.min[:] = 9
    assert bounds(message).min.tolist() == [1, 2]


# Scalar bounds of the 1.0 line, whose numbers today's protocol reserves.

LINE_1_0 = ("float32", "float64", "int32", "int64", "uint32", "uint64", "int8", "uint8")
"""In the order of their fields, the first of which has the number 1."""


def line_1_0_spec(dtype: str, minimum: Any, maximum: Any, bound: str | None = None) -> TensorSpec:
    """A spec as such a server sends it; `bound` is the type of its bounds."""
    sent = bound or dtype
    message = tensor_spec(dtype, (2,)).SerializeToString()
    for field, value in ((4, minimum), (5, maximum)):
        if value is not None:
            scalar = wire.field(1 + LINE_1_0.index(sent), *element_bytes(sent, value))
            message += wire.field(field, wire.BLOCK, scalar)
    return TensorSpec.FromString(message)


@pytest.mark.parametrize("dtype", LINE_1_0)
def test_bounds_of_the_1_0_line_are_read(dtype: str) -> None:
    low, high = limits(dtype)
    for minimum, maximum in [(low, high), (0, 1), (None, 1), (low, None), (None, None)]:
        found = bounds(line_1_0_spec(dtype, minimum, maximum))
        assert found.min == (low if minimum is None else minimum)
        assert found.max == (high if maximum is None else maximum)
        assert found.min.dtype == found.max.dtype == dtype
    spec = tensor_spec_to_dm_env_spec(line_1_0_spec(dtype, 0, 1))
    assert spec == specs.BoundedArray((2,), dtype, 0, 1)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (line_1_0_spec("int8", 300, None), "min: the value is 300"),
        (line_1_0_spec("uint8", None, 256), "max: the value is 256"),
        (line_1_0_spec("float32", math.nan, None), "min: is NaN"),
        (line_1_0_spec("int32", 2, 1), "is above max"),
        (line_1_0_spec("int32", 1, None, "int64"), "min: has type int64, but .* int32"),
        (line_1_0_spec("float32", 1, None, "float64"), "min: has type double, but .* float32"),
    ],
)
def test_bounds_of_the_1_0_line_that_cannot_be_are_refused(message: TensorSpec, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        bounds(message)


@pytest.mark.parametrize(
    "spec",
    [
        specs.DiscreteArray(3),
        specs.DiscreteArray(256, np.uint8),
        specs.BoundedArray((2, 3), np.int64, -(2**63), 2**63 - 1),
        specs.Array((), np.int8),
        specs.Array((4,), np.uint64),
        specs.BoundedArray((100,), np.float32, -1, 1),
        specs.BoundedArray((3,), np.float32, [0, 1, 2], [1, 2, 2]),
        specs.BoundedArray((3,), np.float64, 2, np.inf),
        specs.BoundedArray((3,), np.float64, -np.inf, [2, 3, 4]),
        specs.BoundedArray((3,), np.float64, -1.7e308, 1.7e308),
        specs.Array((3,), np.float32),
        specs.Array((2,), bool),
        specs.StringArray((2,)),
    ],
)
def test_samples_conform_to_their_specs(spec: specs.Array) -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        value = sample(spec, random)
        spec.validate(value)
        if spec.dtype.kind == "f":
            assert np.all(np.isfinite(value))


def test_samples_reach_both_ends() -> None:
    random = np.random.default_rng(0)
    assert {int(sample(specs.DiscreteArray(3), random)) for _ in range(100)} == {0, 1, 2}
