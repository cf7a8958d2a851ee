"""Nested dictionaries and flat names are two forms of one thing."""

from __future__ import annotations

import types
from typing import Any

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from dm_env_rpc_client import SpecError, flatten_dict, unflatten_dict
from dm_env_rpc_client.tensors.nesting import MAX_NESTING, check_unambiguous

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
