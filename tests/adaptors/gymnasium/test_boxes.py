"""Boxes whose bounds take no arrays are those of a local environment in everything else."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from gymnasium import spaces
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from dm_env_rpc_client.adaptors.gymnasium import elements, space_json
from dm_env_rpc_client.adaptors.gymnasium.spaces import (
    ExactBox,
    Room,
    WideBox,
    WideExactBox,
    WideMultiBinary,
    spec_to_space,
)
from dm_env_rpc_client.errors import ProtocolError
from dm_env_rpc_client.tensors.casting import MAX_DIMENSIONS
from dm_env_rpc_client.tensors.specs import dm_env_spec_to_tensor_spec

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
