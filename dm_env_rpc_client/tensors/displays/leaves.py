"""The leaves of nested specs, actions and observations by flat name, in their own order.

Levels are joined by periods, as in the protocol; a structure that is a single leaf has the name
that the caller passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf import message as protobuf_message

_SEPARATOR = "."


def named_leaves(structure: Any, root: str) -> dict[str, Any]:
    """Returns the leaves of nested mappings, lists and tuples.

    Args:
      structure: the structure; None has no leaves.
      root: the name if the structure itself is a leaf.
    """
    return {} if structure is None else dict(_walk(structure, "", root))


def rebuild(structure: Any, values: Mapping[str, Any], root: str) -> Any:
    """Returns `structure` with each leaf replaced by the value of the same name.

    Leaves of a mapping without a value are left out.

    Raises:
      KeyError: a leaf of a list or a tuple, or the root, has no value.
    """
    return _rebuild(structure, values, "", root)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, protobuf_message.Message)


def _walk(value: Any, name: str, root: str) -> Iterator[tuple[str, Any]]:
    prefix = name + _SEPARATOR if name else ""
    if _is_mapping(value):
        for key, child in value.items():
            yield from _walk(child, f"{prefix}{key}", root)
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _walk(child, f"{prefix}{index}", root)
    else:
        yield name or root, value


def _rebuild(structure: Any, values: Mapping[str, Any], name: str, root: str) -> Any:
    prefix = name + _SEPARATOR if name else ""
    if _is_mapping(structure):
        return {
            key: _rebuild(child, values, f"{prefix}{key}", root)
            for key, child in structure.items()
            if set(dict(_walk(child, f"{prefix}{key}", root))) & set(values)
        }
    if isinstance(structure, list | tuple):
        children = [
            _rebuild(child, values, f"{prefix}{index}", root)
            for index, child in enumerate(structure)
        ]
        if hasattr(structure, "_fields"):
            return type(structure)(*children)
        return type(structure)(children)
    return values[name or root]
