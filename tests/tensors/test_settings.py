"""Settings, nested or flat, become Tensors by flat name."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dm_env_rpc_client import SpecError, dm_env_rpc_pb2, pack_tensor, unpack_tensor
from dm_env_rpc_client.tensors.settings import pack_settings


@pytest.mark.parametrize(
    ("settings", "flat"),
    [
        ({}, {}),
        ({"rows": 5, "name": "catch"}, {"rows": 5, "name": "catch"}),
        ({"size": {"rows": 5, "columns": 6}}, {"size.rows": 5, "size.columns": 6}),
        ({"size.rows": 5, "size": {"columns": 6}}, {"size.rows": 5, "size.columns": 6}),
        ({"été.日本": "🎲"}, {"été.日本": "🎲"}),
        ({"noise": math.inf, "fast": True}, {"noise": math.inf, "fast": True}),
    ],
)
def test_settings_are_packed_by_flat_name(settings: Any, flat: dict[str, Any]) -> None:
    packed = pack_settings(settings)
    assert packed == {name: pack_tensor(value) for name, value in flat.items()}
    request = dm_env_rpc_pb2.CreateWorldRequest(settings=packed)
    assert {name: unpack_tensor(tensor) for name, tensor in request.settings.items()} == flat


def test_arrays_and_lists_are_packed() -> None:
    packed = pack_settings({"a": np.array([1, 2], np.float32), "b": ["x", "y"]})
    assert packed["a"].WhichOneof("payload") == "floats"
    assert list(packed["b"].strings.array) == ["x", "y"]


def test_a_tensor_is_sent_as_it_is() -> None:
    tensor = dm_env_rpc_pb2.Tensor(shape=[-1])
    tensor.int8s.array = b"abc"
    assert pack_settings({"a": {"b": tensor}}) == {"a.b": tensor}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"a": None}, "setting 'a': cannot be packed"),
        ({"a": {"b": [1, "x"]}}, "setting 'a.b': mixes"),
        ({"a": [[1], []]}, "setting 'a': ragged"),
        ({"a": {}}, "setting 'a': cannot be packed"),
        ({"a": "\udc80"}, "setting 'a': cannot be packed"),
        ({"\udc80": 1}, "its name is not valid text"),
        ({"a": {"b": 1}, "a.b": 2}, "'a.b' is given twice"),
        ({1: 2}, "names must be strings"),
    ],
)
def test_settings_that_cannot_be_packed_are_refused(settings: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        pack_settings(settings)
