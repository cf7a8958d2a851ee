"""Actions and observations by name and UID; packing is strict and says where."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import SpecError, SpecManager, dm_env_rpc_pb2, set_bounds
from dm_env_rpc_client.tensors.nesting import MAX_NESTING
from tests.tensors import strategies

Tensor: TypeAlias = dm_env_rpc_pb2.Tensor
TensorSpec: TypeAlias = dm_env_rpc_pb2.TensorSpec


def spec(
    name: str, dtype: Any = "float32", shape: Any = (), low: Any = None, high: Any = None
) -> TensorSpec:
    made = TensorSpec(name=name, shape=shape)
    made.dtype = strategies.DATA_TYPES[dtype] if isinstance(dtype, str) else dtype
    if low is not None or high is not None:
        set_bounds(made, low, high)
    return made


def actions(*specs: TensorSpec) -> SpecManager:
    """The specs under the UIDs 3, 4 and so on."""
    return SpecManager(dict(enumerate(specs, 3)), "action")


def one(dtype: Any = "float32", shape: Any = (), low: Any = None, high: Any = None) -> SpecManager:
    return actions(spec("arm.torque", dtype, shape, low, high))


def pack(manager: SpecManager, value: Any) -> Tensor:
    return manager.pack({"arm.torque": value})[3]


# Lookup.


def test_names_and_uids_are_in_the_order_of_the_uids() -> None:
    specs = {20: spec("b"), 3: spec("c"), 2**64 - 1: spec("a")}
    manager = SpecManager(specs)
    assert list(manager.uids()) == [3, 20, 2**64 - 1]
    assert list(manager.names()) == ["c", "b", "a"]
    for uid, one_spec in specs.items():
        assert manager.uid_to_name(uid) == one_spec.name
        assert manager.name_to_uid(one_spec.name) == uid
        assert manager.uid_to_spec(uid) == manager.name_to_spec(one_spec.name) == one_spec
    for found, expected in (
        (manager.specs_by_uid, specs),
        (manager.specs_by_name, {one_spec.name: one_spec for one_spec in specs.values()}),
    ):
        assert type(found) is dict
        assert found == expected
        found.clear()
    assert manager.specs_by_uid == specs
    assert repr(manager) == "SpecManager(tensors: c, b, a)"
    assert repr(SpecManager({})) == "SpecManager(tensors: none)"


def test_the_specs_are_copied() -> None:
    original = spec("a", "float32", (2,))
    manager = SpecManager({1: original})
    original.name = "changed"
    assert manager.uid_to_spec(1).name == "a"


def test_what_is_unknown_is_an_error_that_says_what_is_known() -> None:
    manager = actions(spec("arm.torque"), spec("grip"))
    known = "actions: 'arm.torque', 'grip'$"
    meant = r"did you mean 'arm.torque'\?"
    with pytest.raises(SpecError, match=f"^unknown action 'arm.torqe'; {meant} {known}"):
        manager.name_to_uid("arm.torqe")
    with pytest.raises(SpecError, match=f"^unknown action 'zzz'; {known}"):
        manager.name_to_spec("zzz")
    for lookup in (manager.uid_to_name, manager.uid_to_spec):
        with pytest.raises(SpecError, match=r"^unknown action uid 9; uids: 3, 4$"):
            lookup(9)
    with pytest.raises(SpecError, match="unknown action 'zzz'"):
        manager.pack({"zzz": 1})
    with pytest.raises(SpecError, match="unknown action uid 9"):
        manager.unpack({9: Tensor()})
    with pytest.raises(SpecError, match="uids: none"):
        SpecManager({}).uid_to_name(1)
    with pytest.raises(SpecError, match="tensors: none"):
        SpecManager({}).name_to_uid("a")


# What cannot be is refused when the manager is made.


def _nan_bound() -> TensorSpec:
    made = spec("a")
    made.min.floats.array.append(math.nan)
    return made


@pytest.mark.parametrize(
    ("specs", "text"),
    [
        ([spec("a"), spec("a")], r"action 'a' \(uid 4\): has the same name as uid 3"),
        ([spec("a"), spec("a.b")], "names of actions: 'a' and 'a.b' conflict: "),
        ([spec("a.b.c.d"), spec("a.b")], "names of actions: 'a.b' and 'a.b.c.d' conflict"),
        ([spec("a"), spec("a.")], "conflict: "),
        ([_nan_bound()], r"action 'a' \(uid 3\): min: is NaN"),
        ([spec("a", "float32", (-1, 2, -7))], r"action 'a' \(uid 3\): .*more than one variable"),
        ([spec("a", 0)], r"action 'a' \(uid 3\): 0 is not a data type"),
        ([spec(".".join("a" * (MAX_NESTING + 1)))], f"more than {MAX_NESTING} levels of nesting"),
        ([spec("." * 1_000)], "levels of nesting"),
        ([spec("." * 1_000_000)], "has 1000000 bytes; at most 4096"),
    ],
)
def test_specs_that_cannot_be_are_refused_at_once(specs: list[TensorSpec], text: str) -> None:
    with pytest.raises(SpecError, match=text):
        actions(*specs)


# Packing.


def test_some_of_the_actions_may_be_left_out() -> None:
    manager = actions(spec("a"), spec("b"))
    assert set(manager.pack({"b": 1.0})) == {4}
    assert manager.pack({}) == {}


@pytest.mark.parametrize("length", [0, 1, 5])
def test_a_variable_dimension_takes_every_length(length: int) -> None:
    manager = one("int32", (2, -1), 0, 9)
    tensor = pack(manager, np.zeros((2, length), np.int32))
    assert list(tensor.shape) == [2, length]
    assert manager.unpack({3: tensor})["arm.torque"].shape == (2, length)


@pytest.mark.parametrize(
    ("shape", "value", "found"),
    [
        ((), [1.0], "[1]"),
        ((1,), 1.0, "[]"),
        ((2,), [1.0], "[1]"),
        ((2, 2), [1.0, 2.0], "[2]"),
        ((2, -1), [1.0, 2.0], "[2]"),
        ((2, -1), [[1.0]], "[1, 1]"),
        ((-1,), 1.0, "[]"),
    ],
)
def test_another_shape_is_refused(shape: Any, value: Any, found: str) -> None:
    with pytest.raises(SpecError) as error:
        pack(one("float32", shape), value)
    assert str(error.value) == (
        f"action 'arm.torque' (uid 3): has shape {found}; expected {list(shape)}"
    )


def tiled(values: Any, times: int) -> Any:
    """The elements, if there are several, several times over."""
    return values * times if isinstance(values, list) else values


# Few elements are compared in another way than many.
SIZES = pytest.mark.parametrize("times", [1, 9])


@SIZES
@pytest.mark.parametrize(
    ("low", "high", "good", "bad", "text"),
    [
        (-1, 1, [-1, 1], [0, 1.5], r"element \[1\] is 1.5, outside its bounds \[-1.0, 1.0\]"),
        (-1, None, [-1, 9e9], [-2, 0], r"element \[0\] is -2.0, outside its bounds \[-1.0, inf\]"),
        (None, 1, [-9e9, 1], [0, 2], r"element \[1\] is 2.0, outside its bounds \[-inf, 1.0\]"),
        ([0, 5], [1, 6], [1, 5], [1, 4], r"element \[1\] is 4.0, outside its bounds \[5.0, 6.0\]"),
        (0, [1, 6], [0, 6], [0, -1], r"element \[1\] is -1.0, outside its bounds \[0.0, 6.0\]"),
        (None, None, [0, 3e38], [0, math.inf], r"element \[1\] is inf; expected a finite value"),
        (None, None, [0, 0], [0, math.nan], r"element \[1\] is nan; expected a finite value"),
        ([0, 0], [1, 1], [0, 0], [0, math.nan], r"element \[1\] is nan; expected a finite value"),
        ([-3e38, -3e38], 3e38, [3e38, 3e38], [math.inf, -math.inf], r"element \[0\] is inf"),
        (0, None, [0, 0], [0, math.inf], r"element \[1\] is inf; expected a finite value"),
        (0, math.inf, [0, math.inf], [0, -math.inf], r"element \[1\] is -inf"),
        (-math.inf, math.inf, [math.inf, -math.inf], [0, math.nan], r"element \[1\] is nan"),
    ],
)
def test_range_and_finiteness_are_checked(
    low: Any, high: Any, good: Any, bad: Any, text: str, times: int
) -> None:
    low, high, good, bad = (tiled(values, times) for values in (low, high, good, bad))
    for dtype in ("float32", "float64"):
        if dtype == "float64" or text.count("38") == 0:
            manager = one(dtype, (2 * times,), low, high)
            assert np.array_equal(
                manager.unpack({3: pack(manager, good)})["arm.torque"], np.array(good, dtype)
            )
            for value in (bad, np.array(bad, dtype)):
                with pytest.raises(SpecError, match=rf"^action 'arm.torque' \(uid 3\): {text}"):
                    pack(manager, value)


@pytest.mark.parametrize("count", [1, 17])
@pytest.mark.parametrize("dtype", strategies.INTEGERS)
def test_integer_ranges_are_checked_to_the_last_digit(dtype: str, count: int) -> None:
    info = np.iinfo(dtype)
    low, high = int(info.min) + 1, int(info.max) - 1
    for bounds in ((low, high), ([low] * count, [high] * count), (low, None), (None, high)):
        manager = one(dtype, (count,), *bounds)
        for value in (low, high):
            values = [value] * count
            assert manager.unpack({3: pack(manager, values)})["arm.torque"].tolist() == values
        for value, bound in ((low - 1, bounds[0]), (high + 1, bounds[1])):
            text = rf"element \[0\] is {value}, outside its bounds"
            if bound is not None:
                with pytest.raises(SpecError, match=text):
                    pack(manager, [value] * count)


def test_a_scalar_out_of_range_is_called_the_value() -> None:
    text = r"^action 'arm.torque' \(uid 3\): the value is 5, outside its bounds \[0, 4\]$"
    with pytest.raises(SpecError, match=text):
        pack(one("int32", (), 0, 4), 5)


def test_empty_values_have_no_range() -> None:
    assert list(pack(one("float32", (0,), 1, 2), []).shape) == [0]
    assert list(pack(one("float32", (-1,), 1, 2), []).shape) == [0]
    assert list(pack(one("float32", (0,), np.empty(0), np.empty(0)), []).shape) == [0]


@given(strategies.arrays(min_dims=0))
def test_what_is_packed_is_unpacked(array: strategies.Array) -> None:
    manager = one(array.dtype.name, array.shape)
    if array.dtype.kind == "f" and not np.all(np.isfinite(array)):
        with pytest.raises(SpecError, match="expected a finite value"):
            pack(manager, array)
        return
    unpacked = manager.unpack({3: pack(manager, array)})["arm.torque"]
    assert strategies.same_bits(unpacked, array)


def pairs(numbers: st.SearchStrategy[float]) -> st.SearchStrategy[list[float]]:
    return st.lists(numbers, min_size=2, max_size=2)


BOUNDS = st.none() | pairs(st.floats(allow_nan=False, width=32))


@given(pairs(st.floats(width=32)), BOUNDS, BOUNDS, st.sampled_from([1, 9]))
def test_exactly_the_values_within_the_bounds_are_packed(
    value: list[float], low: list[float] | None, high: list[float] | None, times: int
) -> None:
    if low is not None and high is not None:
        low, high = list(map(min, low, high)), list(map(max, low, high))
    elif math.inf in (low or []) or -math.inf in (high or []):
        return  # Refused: there is no number in between.
    value, low, high = (tiled(values, times) for values in (value, low, high))
    manager = one("float32", (2 * times,), low, high)
    fits = all(
        (low is None or x >= low[i])
        and (high is None or x <= high[i])
        and (math.isfinite(x) or (high if x > 0 else low) is not None)
        for i, x in enumerate(value)
    )
    if fits:
        assert list(pack(manager, value).floats.array) == value
    else:
        with pytest.raises(SpecError):
            pack(manager, value)


# Unpacking.


def test_another_payload_is_refused() -> None:
    manager = one("float32", (1,))
    text = r"^action 'arm.torque' \(uid 3\): has dtype int32; expected float32$"
    with pytest.raises(SpecError, match=text):
        manager.unpack({3: Tensor(shape=[1], int32s=Tensor.Int32Array(array=[1]))})
    with pytest.raises(SpecError, match="the tensor has no payload"):
        manager.unpack({3: Tensor(shape=[1])})


def floats(elements: int, shape: Any) -> Tensor:
    return Tensor(shape=shape, floats=Tensor.FloatArray(array=range(elements)))


@pytest.mark.parametrize(
    ("spec_shape", "elements", "shape", "full"),
    [
        ((2, 3), 6, [2, 3], (2, 3)),
        ((2, 3), 1, [2, 3], (2, 3)),
        ((2, 3), 6, [2, -1], (2, 3)),
        ((2, -1), 6, [2, 3], (2, 3)),
        ((2, -1), 6, [2, -1], (2, 3)),
        ((2, -1), 6, [-1, 3], (2, 3)),
        ((2, -1), 1, [2, 3], (2, 3)),
        ((2, -1), 0, [2, -1], (2, 0)),
        ((-1,), 1, [-1], (1,)),
        ((), 1, [], ()),
    ],
)
def test_a_tensor_of_the_specs_shape_is_unpacked(
    spec_shape: Any, elements: int, shape: Any, full: Any
) -> None:
    value = one("float32", spec_shape).unpack({3: floats(elements, shape)})["arm.torque"]
    assert np.shape(value) == full


@pytest.mark.parametrize(
    ("spec_shape", "elements", "shape"),
    [
        ((2, 3), 6, [3, 2]),
        ((2, 3), 6, [6]),
        ((2, 3), 6, [3, -1]),
        ((2, 3), 5, [2, 3]),
        ((2, 3), 1, [2, -1]),
        ((2, -1), 6, [3, 2]),
        ((2, -1), 6, [-1, -1]),
        ((2, -1), 6, [6]),
        ((2,), 1, []),
        ((), 1, [1]),
        ((), 2, []),
        ((-1,), 1, [2**31 - 1]),
    ],
)
def test_a_tensor_of_another_shape_is_refused(spec_shape: Any, elements: int, shape: Any) -> None:
    with pytest.raises(SpecError, match=r"^action 'arm.torque' \(uid 3\): "):
        one("float32", spec_shape).unpack({3: floats(elements, shape)})
