"""Values that contain themselves, and values that are too deep to be packed."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dm_env import specs

from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import nesting, structures


def a_list() -> Any:
    value: list[Any] = [1]
    value.append(value)
    return value


def a_list_at_its_beginning() -> Any:
    value: list[Any] = []
    value.append(value)
    return value


def a_dict() -> Any:
    value: dict[str, Any] = {}
    value["own"] = value
    return value


def a_dict_in_a_list() -> Any:
    value: list[Any] = [{}]
    value[0]["own"] = value
    return value


def a_tuple() -> Any:
    inner: list[Any] = []
    value = (inner,)
    inner.append(value)
    return value


def a_view() -> Any:
    inner: dict[str, Any] = {}
    value = types.MappingProxyType(inner)
    inner["own"] = value
    return value


def an_array() -> Any:
    value = np.empty((2, 1), object)
    value[1, 0] = {"array": value}
    return value


def far_below() -> Any:
    value = a_list()
    for _ in range(40):
        value = [value]
    return value


ENDLESS: list[Callable[[], Any]] = [
    a_list,
    a_list_at_its_beginning,
    a_dict,
    a_dict_in_a_list,
    a_tuple,
    a_view,
    an_array,
    far_below,
]


def deep(levels: int = 100_000) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def deep_dict(levels: int = 100_000) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"key": value}
    return value


def test_a_value_that_occurs_twice_does_not_contain_itself() -> None:
    shared = [1, {"two": (3,)}]
    twice: Any = {"a": shared, "b": [shared, shared], "c": np.array([shared, None], object)}
    assert not nesting.contains_itself(twice)
    assert nesting.text_of_deep(shared) == repr(shared)
    doubled: Any = [1]
    for _ in range(200):
        doubled = [doubled, doubled]
    assert not nesting.contains_itself(doubled)
    for value in (None, 1, "text", np.ones(3), deep(), deep_dict()):
        assert not nesting.contains_itself(value)


@pytest.mark.parametrize("make", [deep, deep_dict])
def test_a_deep_value_has_a_short_text(make: Callable[[], Any]) -> None:
    assert len(nesting.text_of_deep(make())) < 100


def test_specs_that_contain_themselves_or_are_too_deep() -> None:
    own: dict[str, Any] = {"number": specs.Array((), np.int32)}
    own["own"] = own
    below: Any = specs.Array((), np.int32)
    for _ in range(1000):
        below = {"below": below}
    for structure, text in ((own, "contains itself"), (below, "more than 64 levels deep")):
        with pytest.raises(SpecError, match=f"specs: .*{text}"):
            structures.leaves(structure)
        with pytest.raises(SpecError, match=f"specs: .*{text}"):
            structures.flattener(structure, "observation")
