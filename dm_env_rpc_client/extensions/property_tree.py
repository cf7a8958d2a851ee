"""The properties below a key with their values: a snapshot."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from dm_env_rpc_client.errors import DmEnvRpcError, ProtocolError
from dm_env_rpc_client.extensions.property_spec import PropertySpec
from dm_env_rpc_client.plain_text import printable
from dm_env_rpc_client.tensors.displays import markup
from dm_env_rpc_client.tensors.displays.spec_tables import spec_text
from dm_env_rpc_client.tensors.displays.values import in_short, show_value

MAX_PROPERTIES = 1000
"""The maximum number of properties of a tree; a server may list without end."""

_FEW = 8

Lister = Callable[[str], Sequence[PropertySpec]]


class TreeEntry(NamedTuple):
    """One property of a tree.

    Attributes:
      spec: the server's description of it.
      depth: the number of listed properties above it.
      value: its value; None if it has none.
      refusal: why it could not be read, or listed; "" if it could.
    """

    spec: PropertySpec
    depth: int
    value: Any
    refusal: str


class PropertyTree:
    """A snapshot; showing it asks the server nothing. Made by `PropertyAccess.tree`.

    Args:
      list_below: lists the properties directly below a key.
      read: reads the value of a key.
      key: the key of the tree's root; the empty key is the root of all properties.

    Attributes:
      entries: the properties, parents before their children.
      is_complete: False if there are more than `MAX_PROPERTIES`.
    """

    def __init__(self, list_below: Lister, read: Callable[[str], Any], key: str = ""):
        found = list(itertools.islice(_entries(list_below, read, key), MAX_PROPERTIES + 1))
        self.entries = found[:MAX_PROPERTIES]
        self.is_complete = len(found) == len(self.entries)

    def __repr__(self) -> str:
        lines = [
            "  " * entry.depth + entry.spec.key + _value_text(entry) + _remark(entry)
            for entry in self.entries
        ]
        if not self.is_complete:
            lines.append(f"... and more than {MAX_PROPERTIES} properties")
        return printable("\n".join(lines)) or "no properties"

    def _repr_html_(self) -> str:
        rows = [
            (
                _key_cell(entry),
                _value_cell(entry),
                markup.escape(", ".join(_kinds(entry.spec))),
                markup.escape("" if entry.spec.spec is None else spec_text(entry.spec.spec)),
                markup.escape(entry.spec.description),
            )
            for entry in self.entries
        ]
        if not rows:
            return markup.section("No properties")
        title = "Properties" if self.is_complete else f"The first {len(rows)} properties"
        columns = ("key", "value", "may be", "spec", "description")
        return markup.section(title, markup.table(columns, rows))


def _entries(list_below: Lister, read: Callable[[str], Any], key: str) -> Iterator[TreeEntry]:
    """Yields all properties below one; without recursion, because there may be many levels."""
    seen = {key}
    levels = [iter(list_below(key))]
    while levels:
        spec = next(levels[-1], None)
        if spec is None:
            levels.pop()
            continue
        if spec.key in seen:
            continue
        seen.add(spec.key)
        value, refusal = None, ""
        depth = len(levels) - 1
        if spec.readable:
            try:
                value = read(spec.key)
            except (DmEnvRpcError, ProtocolError) as error:
                refusal = _reason(error)
        if spec.listable:
            try:
                levels.append(iter(list_below(spec.key)))
            except DmEnvRpcError as error:
                refusal = refusal or _reason(error)
        yield TreeEntry(spec, depth, value, refusal)


def _key_cell(entry: TreeEntry) -> str:
    indent = f"padding-left:{1.2 * min(entry.depth, 20):.1f}em"
    return f'<span style="{indent}"><b>{markup.escape(entry.spec.key, 200)}</b></span>'


def _value_cell(entry: TreeEntry) -> str:
    if entry.refusal:
        return f"<i>{markup.escape(entry.refusal)}</i>"
    if not entry.spec.readable:
        return ""
    is_short = np.ndim(entry.value) == 1 and len(entry.value) <= _FEW
    return markup.escape(in_short(entry.value)) if is_short else show_value(entry.value)


def _reason(error: DmEnvRpcError | ProtocolError) -> str:
    return f"{error.code_name}: {error.message}" if isinstance(error, DmEnvRpcError) else str(error)


def _kinds(spec: PropertySpec) -> list[str]:
    done = {"readable": "read", "writable": "written", "listable": "listed"}
    return [word for kind, word in done.items() if getattr(spec, kind)]


def _value_text(entry: TreeEntry) -> str:
    if entry.refusal:
        return f" ({entry.refusal})"
    if not entry.spec.readable:
        return ""
    text = " ".join(repr(getattr(entry.value, "tolist", lambda: entry.value)()).split())
    return f" = {markup.shorten(text, 60)}"


def _remark(entry: TreeEntry) -> str:
    kinds = ", ".join(_kinds(entry.spec))
    text = f"  ({kinds})" if kinds else ""
    return f"{text}  {entry.spec.description}".rstrip()
