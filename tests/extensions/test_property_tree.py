"""Properties as a tree with values: what it shows, and that showing it asks nobody."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.rpc import code_pb2, status_pb2

from dm_env_rpc_client import dm_env_rpc_pb2
from dm_env_rpc_client.extensions.properties import (
    MAX_PROPERTIES,
    PropertyAccess,
    PropertyPermissionError,
    PropertySpec,
)


class Shelf(PropertyAccess):
    """Properties in memory; counts what it is asked."""

    def __init__(self, values: dict[str, Any]):
        super().__init__()
        self.values = values
        self.asked: list[str] = []

    def read(self, key: str) -> Any:
        self.asked.append(f"read {key}")
        value = self.values[key]
        if isinstance(value, Exception):
            raise value
        return value

    def write(self, key: str, value: Any) -> None:
        self.asked.append(f"write {key}")
        self.values[key] = value

    def list(self, key: str = "") -> Sequence[PropertySpec]:
        self.asked.append(f"list {key}")
        prefix = f"{key}." if key else ""
        children = dict.fromkeys(
            prefix + name[len(prefix) :].split(".")[0]
            for name in self.values
            if name.startswith(prefix)
        )
        return [self._spec(child) for child in children]

    def _spec(self, key: str) -> PropertySpec:
        is_value = key in self.values
        dtype = dm_env_rpc_pb2.DOUBLE if is_value else dm_env_rpc_pb2.INVALID_DATA_TYPE
        return PropertySpec(
            key,
            dm_env_rpc_pb2.TensorSpec(name=key, dtype=dtype),
            readable=is_value,
            writable=is_value,
            listable=any(name.startswith(f"{key}.") for name in self.values),
            description=f"what {key} is for",
        )


def refusal() -> PropertyPermissionError:
    status = status_pb2.Status(code=code_pb2.PERMISSION_DENIED, message="not <now>")
    return PropertyPermissionError("read", "a", status)


def test_a_tree_prints_its_keys_in_order_with_values_and_descriptions() -> None:
    shelf = Shelf({"a": 1.5, "b.c.d": np.arange(3), "b.c.e": "text", "f": 2.0})
    assert repr(shelf.tree()).splitlines() == [
        "a = 1.5  (read, written)  what a is for",
        "b  (listed)  what b is for",
        "  b.c  (listed)  what b.c is for",
        "    b.c.d = [0, 1, 2]  (read, written)  what b.c.d is for",
        "    b.c.e = 'text'  (read, written)  what b.c.e is for",
        "f = 2.0  (read, written)  what f is for",
    ]


def test_a_part_of_it_can_be_had() -> None:
    shelf = Shelf({"a": 1.5, "b.c": 1.0})
    assert [entry.spec.key for entry in shelf.tree("b").entries] == ["b.c"]
    assert "list " not in shelf.asked


def test_in_a_notebook_it_is_a_table() -> None:
    html = Shelf({"a.b": "<script>", "c": np.arange(40.0), "d": np.arange(3)}).tree()._repr_html_()
    for part in ("a.b", "what c is for", "<svg", "[0 1 2]", "float64", "listed", "&lt;script&gt;"):
        assert part in html
    assert "<script" not in html


def test_what_cannot_be_read_says_why_and_hides_nothing() -> None:
    tree = Shelf({"a": refusal(), "b": 2.0}).tree()
    assert "a (PERMISSION_DENIED: not <now>)" in repr(tree)
    assert "b = 2.0" in repr(tree)
    assert "PERMISSION_DENIED: not &lt;now&gt;" in tree._repr_html_()


def test_what_cannot_be_listed_says_why() -> None:
    class Closed(Shelf):
        def list(self, key: str = "") -> Sequence[PropertySpec]:
            if key:
                raise refusal()
            return super().list(key)

    assert "PERMISSION_DENIED" in repr(Closed({"a.b": 1.0, "c": 2.0}).tree())


def test_showing_a_tree_and_its_owner_asks_nobody() -> None:
    shelf = Shelf({"a": 1.0})
    tree = shelf.tree()
    shelf.asked.clear()
    repr(tree)
    tree._repr_html_()
    repr(shelf)
    shelf._ipython_key_completions_()
    assert shelf.asked == []


def test_keys_that_were_seen_are_completed() -> None:
    shelf = Shelf({"a": 1.0, "b.c": 2.0, "b.d": 3.0})
    assert shelf._ipython_key_completions_() == []
    shelf.specs()
    assert shelf._ipython_key_completions_() == ["a", "b"]
    list(shelf.walk())
    assert shelf._ipython_key_completions_() == ["a", "b", "b.c", "b.d"]
    other = Shelf({"x.y": 1.0})
    other.tree()
    assert other._ipython_key_completions_() == ["x", "x.y"]


def test_an_empty_tree_says_so() -> None:
    tree = Shelf({}).tree()
    assert repr(tree) == "no properties"
    assert "No properties" in tree._repr_html_()


def test_a_tree_without_end_is_cut() -> None:
    class Endless(Shelf):
        def list(self, key: str = "") -> Sequence[PropertySpec]:
            spec = dm_env_rpc_pb2.TensorSpec()
            return [PropertySpec(f"{key}x", spec, readable=False, writable=False, listable=True)]

    tree = Endless({}).tree()
    assert len(tree.entries) == MAX_PROPERTIES
    assert not tree.is_complete
    assert f"more than {MAX_PROPERTIES}" in repr(tree)
    assert f"The first {MAX_PROPERTIES}" in tree._repr_html_()
    assert len(tree._repr_html_()) < 1_000_000
