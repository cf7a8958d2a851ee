"""Nested dictionaries and flat names are two forms of one thing; what is endless is refused."""

from __future__ import annotations

import math
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dm_env import specs
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import (
    SpecError,
    dm_env_rpc_pb2,
    flatten_dict,
    pack_tensor,
    unflatten_dict,
    unpack_tensor,
)
from dm_env_rpc_client.tensors import nesting, structures
from dm_env_rpc_client.tensors.nesting import MAX_NESTING, check_unambiguous
from dm_env_rpc_client.tensors.settings import pack_settings

CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"a": 1}, {"a": 1}),
    ({"a": {"b": 1, "c": 2}, "d": 3}, {"a.b": 1, "a.c": 2, "d": 3}),
    ({"a": {"b": {"c": {"d": 1}}}}, {"a.b.c.d": 1}),
    ({"a": {}}, {"a": {}}),
    ({"a": {"b": {}}}, {"a.b": {}}),
    ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}),
    ({"": 1}, {"": 1}),
    ({"a": {"": 1}}, {"a.": 1}),
    ({"": {"": 1}}, {".": 1}),
    ({"a": None}, {"a": None}),
    (
        {"a": struct_pb2.Struct(fields={"b": struct_pb2.Value()})},
        {"a": struct_pb2.Struct(fields={"b": struct_pb2.Value()})},
    ),
    ({"a": types.MappingProxyType({"b": 1})}, {"a.b": 1}),
    ({"b": {"d": 1, "c": 2}, "a": 3}, {"b.d": 1, "b.c": 2, "a": 3}),
]


@pytest.mark.parametrize(("nested", "flat"), CASES)
def test_nested_and_flat(nested: dict[str, Any], flat: dict[str, Any]) -> None:
    for separator in (".", "/", "::"):
        renamed = {name.replace(".", separator): value for name, value in flat.items()}
        found = flatten_dict(nested, separator)
        assert (found, list(found)) == (renamed, list(renamed))
        assert unflatten_dict(renamed, separator) == nested


keys = st.text(st.characters(exclude_characters="."), max_size=3)
nested_dicts: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.just({}),
    lambda child: st.dictionaries(keys, child, max_size=4),
    max_leaves=12,
).filter(lambda value: isinstance(value, dict))


@given(nested_dicts)
def test_unflattening_undoes_flattening(nested: dict[str, Any]) -> None:
    assert unflatten_dict(flatten_dict(nested, "."), ".") == nested


@given(st.dictionaries(st.text("ab.", max_size=5), st.integers(), max_size=6))
def test_flattening_undoes_unflattening(flat: dict[str, int]) -> None:
    ambiguous = any(name.startswith(other + ".") for name in flat for other in flat)
    if ambiguous:
        with pytest.raises(SpecError, match="conflict: "):
            unflatten_dict(flat, ".")
    else:
        assert flatten_dict(unflatten_dict(flat, "."), ".") == flat


def test_keys_with_the_separator_are_flat_names_unless_strict() -> None:
    assert flatten_dict({"a.b": {"c": 1}, "a": {"d": 2}}, ".", strict=False) == {
        "a.b.c": 1,
        "a.d": 2,
    }
    with pytest.raises(SpecError, match=r"cannot flatten key 'a.b': it contains the separator '.'"):
        flatten_dict({"a.b": 1}, ".")
    with pytest.raises(SpecError, match=r"cannot flatten key 'x.a.b'"):
        flatten_dict({"x": {"a.b": 1}}, ".")


NUMBERED: Any = {1: 2}


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda: flatten_dict({"a": {"b": 1}, "a.b": 2}, ".", strict=False),
            "'a.b' is given twice",
        ),
        (lambda: flatten_dict({"a": {None: 2}}, "."), "names must be strings, but a."),
        (lambda: flatten_dict(NUMBERED, "."), "names must be strings, but the mapping"),
        (lambda: unflatten_dict(NUMBERED, "."), "names must be strings, got 1"),
        (lambda: flatten_dict({"a": 1}, ""), "separator"),
        (lambda: unflatten_dict({"a": 1}, ""), "separator"),
    ],
)
def test_what_cannot_be_flattened(call: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        call()


def _deep(levels: int) -> dict[str, Any]:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    assert isinstance(value, dict)
    return value


def test_nesting_has_a_limit_both_ways() -> None:
    deepest = _deep(MAX_NESTING)
    assert unflatten_dict(flatten_dict(deepest, "."), ".") == deepest
    for too_deep in (_deep(MAX_NESTING + 1), _deep(10_000)):
        with pytest.raises(SpecError, match=f"more than {MAX_NESTING} levels"):
            flatten_dict(too_deep, ".")
    itself: dict[str, Any] = {}
    itself["a"] = itself
    with pytest.raises(SpecError, match="levels of nesting"):
        flatten_dict(itself, ".")
    for name in (".".join("a" * (MAX_NESTING + 1)), "." * 1_000_000):
        with pytest.raises(SpecError, match=f"more than {MAX_NESTING} levels"):
            unflatten_dict({name: 1}, ".")


@pytest.mark.parametrize(
    "names", [["a", "a.b"], ["a.b.c", "a"], ["", ".a"], ["x", "a.b", "a.b.c.d"]]
)
def test_a_leaf_is_no_parent(names: list[str]) -> None:
    with pytest.raises(SpecError, match="conflict: "):
        check_unambiguous(names)
    with pytest.raises(SpecError, match="conflict: "):
        unflatten_dict(dict.fromkeys(names), ".")
    check_unambiguous([name.replace(".", "/") for name in names])


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
