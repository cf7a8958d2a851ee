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
]


@pytest.mark.parametrize(("nested", "flat"), CASES)
def test_nested_and_flat(nested: dict[str, Any], flat: dict[str, Any]) -> None:
    for separator in (".", "/", "::"):
        renamed = {name.replace(".", separator): value for name, value in flat.items()}
        assert flatten_dict(nested, separator) == renamed
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


def test_the_order_is_kept() -> None:
    assert list(flatten_dict({"b": {"d": 1, "c": 2}, "a": 3}, ".")) == ["b.d", "b.c", "a"]
    assert list(unflatten_dict({"b.c": 1, "a": 2, "b.d": 3}, ".")) == ["b", "a"]


def test_every_mapping_is_a_level() -> None:
    proxy = types.MappingProxyType({"b": 1})
    assert flatten_dict({"a": proxy}, ".") == {"a.b": 1}


def test_a_message_is_a_leaf_even_if_it_is_a_mapping() -> None:
    record = struct_pb2.Struct()
    record.update({"b": 1})
    assert flatten_dict({"a": record}, ".") == {"a": record}


def test_keys_with_the_separator_are_flat_names_unless_strict() -> None:
    assert flatten_dict({"a.b": {"c": 1}, "a": {"d": 2}}, ".", strict=False) == {
        "a.b.c": 1,
        "a.d": 2,
    }
    with pytest.raises(SpecError, match=r"cannot flatten key 'a.b': it contains the separator '.'"):
        flatten_dict({"a.b": 1}, ".")
    with pytest.raises(SpecError, match=r"cannot flatten key 'x.a.b'"):
        flatten_dict({"x": {"a.b": 1}}, ".")


def test_one_name_twice_is_refused() -> None:
    with pytest.raises(SpecError, match=r"'a\.b' is given twice"):
        flatten_dict({"a": {"b": 1}, "a.b": 2}, ".", strict=False)


@pytest.mark.parametrize(
    ("key", "where"),
    [({1: 2}, "the mapping"), ({"a": {None: 2}}, "a."), ({b"a": 1}, "the mapping")],
)
def test_keys_are_strings(key: Any, where: str) -> None:
    with pytest.raises(SpecError, match=f"names must be strings, but {where}"):
        flatten_dict(key, ".")


def test_names_are_strings() -> None:
    bad: Any = {1: 2}
    with pytest.raises(SpecError, match="names must be strings, got 1"):
        unflatten_dict(bad, ".")


def test_a_separator_is_not_empty() -> None:
    for convert in (flatten_dict, unflatten_dict):
        with pytest.raises(SpecError, match="separator"):
            convert({"a": 1}, "")


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
