"""Specs become spaces that hold the same values, and values come back as they were."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from dm_env_rpc_client import SpecError
from dm_env_rpc_client.adaptors.gymnasium import elements, space_json
from dm_env_rpc_client.adaptors.gymnasium.row_spaces import SpecSpaces
from dm_env_rpc_client.adaptors.gymnasium.spaces import (
    AnyText,
    ExactBox,
    Room,
    WideBox,
    WideExactBox,
    WideMultiBinary,
    from_space,
    spec_to_space,
    to_space,
)
from dm_env_rpc_client.environment.many.rows import Rows, RowSpecs, split_action
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.specs import (
    VariableArray,
    VariableBoundedArray,
    VariableStringArray,
    dm_env_spec_to_tensor_spec,
)
from tests.tensors.strategies import FIELDS, same_bits, strings

Leaf = tuple[specs.Array, Any]


def _elements(dtype: np.dtype[Any], low: Any, high: Any) -> st.SearchStrategy[Any]:
    if dtype.kind in "iu":
        return st.integers(int(low), int(high))
    width: Any = dtype.itemsize * 8
    return st.floats(float(low), float(high), width=width, allow_nan=False)


@st.composite
def leaves(draw: st.DrawFn) -> Leaf:
    """A spec and a value of it; bounds reach to the ends of every dtype."""
    kind = draw(st.sampled_from([*FIELDS, "str"]))
    shape = draw(npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    if kind == "str":
        assume(0 not in shape)
        value: Any = np.empty(shape, object)
        for index in np.ndindex(shape):
            value[index] = draw(strings())
        return specs.StringArray(shape), value if shape else value.item()
    dtype = np.dtype(kind)
    if dtype.kind == "b":
        return specs.Array(shape, bool), draw(npst.arrays(dtype, shape))
    info: Any = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    if not draw(st.booleans()):
        value = draw(npst.arrays(dtype, shape, elements=_elements(dtype, info.min, info.max)))
        return specs.Array(shape, dtype), value
    bound = st.one_of(
        _elements(dtype, info.min, info.max), st.sampled_from([info.min, 0, 1, info.max])
    )
    # A sum, for there is no number between 0.0 and -0.0.
    low, high = sorted([draw(bound) + 0, draw(bound) + 0])
    if draw(st.booleans()):
        spec = specs.BoundedArray(
            shape, dtype, np.full(shape, low, dtype), np.full(shape, high, dtype)
        )
    else:
        spec = specs.BoundedArray(shape, dtype, low, high)
    value = draw(npst.arrays(dtype, shape, elements=_elements(dtype, low, high)))
    if shape == () and dtype.kind in "iu" and low == 0 and 0 <= high < np.iinfo(np.int64).max:
        assume(high < np.iinfo(dtype).max)
        spec = specs.DiscreteArray(int(high) + 1, dtype)
    return spec, value


def same(left: Any, right: Any) -> bool:
    if isinstance(right, str) or np.asarray(right).dtype == object:
        return bool(np.array_equal(np.asarray(left, object), np.asarray(right, object)))
    return same_bits(left, right)


@given(leaves(), st.integers(0, 2**31))
def test_samples_are_actions(leaf: Leaf, seed: int) -> None:
    spec, _ = leaf
    space = spec_to_space(spec, "it")
    space.seed(seed)
    for _ in range(3):
        sample = space.sample()
        assert sample in space
        action = from_space(spec, sample, "it")
        if spec.dtype.kind in "biuf":
            assert spec.validate(action).dtype == spec.dtype
        else:
            assert np.shape(action) == spec.shape


@given(leaves())
def test_observations_are_in_the_space_and_come_back_as_they_were(leaf: Leaf) -> None:
    spec, value = leaf
    space = spec_to_space(spec, "it")
    observation = to_space(space, value)
    assert observation in space
    if not isinstance(space, spaces.Tuple | spaces.Text):
        assert observation.dtype == space.dtype
    assert same(from_space(spec, observation, "it"), value)


def row_specs(flat_specs: dict[str, specs.Array]) -> RowSpecs:
    """Those of environments whose observations are their actions."""
    number = specs.Array((), np.float64)
    return RowSpecs(flat_specs, flat_specs, number, number)


def array_of(value: Any, spec: specs.Array) -> Any:
    """An action as an array; discrete ones are integers of Python, with the spec's dtype."""
    return np.asarray(value, spec.dtype) if type(value) is int else value


@given(st.dictionaries(st.sampled_from(["a", "b.c", "b.d"]), leaves(), min_size=1), st.booleans())
def test_batches_hold_the_same(structure: dict[str, Leaf], unwrap_single: bool) -> None:
    flat_specs = {name: spec for name, (spec, _) in structure.items()}
    flat = {name: value for name, (_, value) in structure.items()}
    rows_of = row_specs(flat_specs)
    of_rows = SpecSpaces(rows_of, unwrap_single)
    rows = Rows(rows_of, 3)
    rows.observations = of_rows.empty(3)
    for index in (2, 0, 1):
        rows.put(index, dm_env.restart(flat))
    batch = of_rows.observations(rows.lend(None))
    assert batch in batch_space(of_rows.observation_space, 3)
    single = of_rows.observation(flat)
    assert single in of_rows.observation_space
    # What is observed by all is done by all.
    for action in split_action(of_rows.actions(batch, 3), flat_specs, 3):
        assert action.keys() == flat.keys()
        for name, value in flat.items():
            assert same(array_of(action[name], flat_specs[name]), value)
    space = batch_space(of_rows.action_space, 3)
    for sample in (space.sample(), space.sample()):
        assert sample in space
        for action in split_action(of_rows.actions(sample, 3), flat_specs, 3):
            for name, spec in flat_specs.items():
                if spec.dtype.kind in "biuf":
                    spec.validate(array_of(action[name], spec))


@pytest.mark.parametrize(
    ("spec", "space"),
    [
        (specs.DiscreteArray(3, np.int32), spaces.Discrete(3)),
        (specs.BoundedArray((), np.int8, -3, 4), spaces.Discrete(8, start=-3)),
        (specs.BoundedArray((), np.uint8, 0, 255), spaces.Discrete(256)),
        (specs.Array((), bool), spaces.Discrete(2)),
        (specs.Array((2, 3), bool), spaces.MultiBinary((2, 3))),
        (specs.Array((), np.uint8), ExactBox(0, 255, (), np.uint8)),
        (specs.Array((4, 3), np.uint8), ExactBox(0, 255, (4, 3), np.uint8)),
        (specs.Array((0, 3), bool), spaces.Box(0, 1, (0, 3), np.int8)),
        (
            specs.BoundedArray((), np.int64, -(2**63), 2**63 - 1),
            ExactBox(np.array(-(2**63)), np.array(2**63 - 1), dtype=np.int64),
        ),
        (
            specs.BoundedArray((), np.uint64, 1, 2**64 - 1),
            ExactBox(np.array(1, np.uint64), np.array(2**64 - 1, np.uint64), dtype=np.uint64),
        ),
        (specs.Array((2,), np.float32), spaces.Box(-np.inf, np.inf, (2,), np.float32)),
        (specs.BoundedArray((2,), np.float32, 0, [1, 2]), None),
        (
            specs.BoundedArray((), np.float64, 0, np.finfo(np.float64).max),
            spaces.Box(0.0, np.inf, (), np.float64),
        ),
        (specs.StringArray(()), AnyText()),
        (specs.StringArray((2,)), spaces.Tuple((AnyText(), AnyText()))),
        (
            {"a": specs.DiscreteArray(2), "b": [specs.Array((), bool)]},
            spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple((spaces.Discrete(2),))}),
        ),
    ],
)
def test_the_table(spec: Any, space: spaces.Space[Any] | None) -> None:
    found = spec_to_space(spec, "it")
    if space is None:
        space = spaces.Box(np.array([0, 0], np.float32), np.array([1, 2], np.float32))
    assert type(found) is type(space)
    assert found == space


@pytest.mark.parametrize(
    ("spec", "value", "is_stacked"),
    [
        (VariableArray((-1, 2), np.float32), np.ones((3, 2), np.float32), True),
        (VariableArray((-1,), np.int32), np.arange(3, dtype=np.int32), False),
        (VariableBoundedArray((-1,), np.int64, 0, 5), np.arange(3), False),
        (VariableArray((-1, 3), bool), np.ones((2, 3), bool), True),
        (VariableStringArray((-1,)), np.array(["a", "b"], object), False),
        (VariableStringArray((-1,)), np.array([], object), False),
        # Tuples of Text cannot be stacked.
        (VariableStringArray((-1, 2)), np.array([["a", "b"], ["c", "d"]], object), False),
    ],
)
def test_variable_lengths_are_sequences(spec: specs.Array, value: Any, is_stacked: bool) -> None:
    space = spec_to_space(spec, "it")
    assert isinstance(space, spaces.Sequence)
    assert space.stack is is_stacked
    observation = to_space(space, value)
    assert observation in space
    assert same(from_space(spec, observation, "it"), value)
    space.seed(0)
    for _ in range(10):
        action = from_space(spec, space.sample(), "it")
        assert action.ndim == len(spec.shape)
        if len(action):
            spec.validate(action)


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (specs.Array((), object), "array of object"),
        (specs.Array((), np.complex64), "complex64"),
        (specs.StringArray((2, 0)), r"shape \[2, 0\]"),
        (VariableArray((2, -1), np.int32), r"\[2, -1\].*first axis"),
        ({"a": {"b": specs.Array((), object)}}, r"'it\.a\.b'.*requested_observations"),
    ],
)
def test_some_specs_have_no_space(spec: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        spec_to_space(spec, "it")


@pytest.mark.parametrize(
    ("spec", "value", "text"),
    [
        ({"a": specs.Array((), int)}, {"b": 1}, r"'it'.*keys \['a'\], got \['b'\]"),
        ({"a": specs.Array((), int)}, 1, r"'it'.*keys \['a'\], got int"),
        ([specs.Array((), int)], (1, 2), "'it'.*tuple of 1 values"),
        ({"a": specs.Array((), np.int8)}, {"a": 300}, r"'it\.a'.*300.*int8"),
        (specs.Array((), np.int8), "left", "'it'.*int8"),
    ],
)
def test_values_of_another_structure_are_refused(spec: Any, value: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        from_space(spec, value, "it")


LOCAL: dict[str, spaces.Space[Any]] = {
    "floats": spaces.Box(-1, 1, (300, 500), np.float64),
    "floats without bounds": spaces.Box(-np.inf, np.inf, (300, 500, 2), np.float32),
    "floats above 0": spaces.Box(0, np.inf, (300, 500, 2), np.float32),
    "an image": spaces.Box(0, 255, (512, 512, 3), np.uint8),
    "integers without a lower bound": spaces.Box(-np.inf, 7, (300, 500), np.int64),
    "integers without bounds": spaces.Box(-np.inf, np.inf, (600, 600), np.int16),
    "bits": spaces.MultiBinary((600, 600)),
}

KINDS = (WideBox, WideMultiBinary)


def sent(space: spaces.Space[Any]) -> Any:
    return space_json.from_json(space_json.to_json(space, "space", []), "space")


@pytest.mark.parametrize("name", LOCAL)
def test_a_wide_space_is_the_local_one(name: str) -> None:
    local: Any = copy.deepcopy(LOCAL[name])
    wide = sent(local)
    assert isinstance(wide, KINDS)
    assert wide == local
    assert local == wide
    assert wide == sent(local)
    assert wide not in (spaces.Box(3, 6, local.shape, local.dtype.type), spaces.Discrete(2))
    assert repr(wide) == repr(local)
    for space in (local, wide):
        space.seed(3)
    for _ in range(2):
        expected, sample = local.sample(), wide.sample()
        assert sample.dtype == expected.dtype
        np.testing.assert_array_equal(sample, expected)
        assert wide.contains(sample)
    assert space_json.to_json(wide, "space", []) == space_json.to_json(local, "space", [])


@pytest.mark.parametrize("name", LOCAL)
def test_copies_and_pickles_of_wide_spaces_are_small_and_equal(name: str) -> None:
    wide = sent(LOCAL[name])
    wide.seed(7)
    assert len(pickle.dumps(wide)) < 5000
    for made in (copy.deepcopy(wide), pickle.loads(pickle.dumps(wide))):
        assert type(made) is type(wide)
        assert made == wide
        np.testing.assert_array_equal(made.sample(), copy.deepcopy(wide).sample())
    if isinstance(wide, WideBox):
        local: Any = LOCAL[name]
        for manner in ("both", "below", "above"):
            assert wide.is_bounded(manner) == local.is_bounded(manner)
            assert copy.deepcopy(wide).is_bounded(manner) == local.is_bounded(manner)
        for side in ("low", "high"):
            assert getattr(wide, side).strides == (0,) * len(wide.shape)
            assert not getattr(wide, side).flags.writeable


@pytest.mark.parametrize("name", LOCAL)
def test_batches_of_wide_spaces_are_those_of_gymnasium(name: str) -> None:
    local, wide = LOCAL[name], sent(LOCAL[name])
    expected, batch = batch_space(local, 2), batch_space(wide, 2)
    assert batch == expected
    assert expected == batch
    assert repr(batch) == repr(expected)
    assert isinstance(batch, WideBox)
    rows = [wide.sample(), wide.sample()]
    empty: Any = create_empty_array(wide, 2)
    out = concatenate(wide, rows, empty)
    for row, found in zip(rows, iterate(batch, out), strict=True):
        np.testing.assert_array_equal(row, found)


def test_specs_of_wide_spaces_have_one_bound() -> None:
    for name, low, high in (("floats", -1, 1), ("an image", 0, 255), ("bits", 0, 1)):
        spec = elements.to_spec(sent(LOCAL[name]), "observation")
        assert (spec.minimum.shape, spec.maximum.shape) == ((), ())
        assert (spec.minimum, spec.maximum) == (low, high)
        assert spec.shape == LOCAL[name].shape
        assert dm_env_spec_to_tensor_spec(spec).ByteSize() < 100


def test_integers_of_specs_are_sampled_as_such() -> None:
    spec = specs.BoundedArray((600, 600), np.int64, -(2**63), 2**63 - 1)
    wide = spec_to_space(spec, "observation")
    assert isinstance(wide, WideExactBox)
    small = spec_to_space(specs.BoundedArray((2,), np.int64, -(2**63), 2**63 - 1), "observation")
    assert type(small) is ExactBox
    assert wide.contains(wide.sample())
    assert isinstance(batch_space(wide, 3), WideExactBox)


def test_small_boxes_have_arrays_that_can_be_written() -> None:
    space = sent(spaces.Box(0, 255, (84, 84, 4), np.uint8))
    assert type(space) is spaces.Box
    space.low[0] = 1
    room = Room()
    kinds = {
        type(spec_to_space(specs.BoundedArray((100, 100), np.float32, 0, 1), "o", room))
        for _ in range(20)
    }
    assert kinds == {spaces.Box, WideBox}


def test_a_box_may_have_as_many_dimensions_as_a_tensor() -> None:
    box = spaces.Box(0, 1, (1,) * MAX_DIMENSIONS, np.float32)
    assert sent(box) == box
    value = space_json.to_json(box, "space", [])
    value["shape"] = [*value["shape"], 1]
    with pytest.raises(ProtocolError, match="shape"):
        space_json.from_json(value, "space")
