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


def own(value: Any, put: Callable[[Any], object]) -> Any:
    """A value that contains itself, once it has been put into itself."""
    put(value)
    return value


def a_view() -> Any:
    inner: dict[str, Any] = {}
    return own(types.MappingProxyType(inner), lambda view: inner.update(own=view))


def far_below() -> Any:
    value = ENDLESS[0]()
    for _ in range(40):
        value = [value]
    return value


ENDLESS: list[Callable[[], Any]] = [
    lambda: own([1], lambda value: value.append(value)),
    lambda: own([], lambda value: value.append(value)),
    lambda: own({}, lambda value: value.update(own=value)),
    lambda: own([{}], lambda value: value[0].update(own=value)),
    lambda: own(([],), lambda value: value[0].append(value)),
    lambda: own(np.empty((2, 1), object), lambda it: it.put(1, {"array": it})),
    a_view,
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
