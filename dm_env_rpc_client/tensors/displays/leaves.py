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
    if structure is None:
        return {}
    return {_name(path) or root: leaf for path, leaf in leaf_paths(structure)}


def leaf_paths(structure: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yields the leaves of a structure, each with the keys and indices that lead to it."""
    if _is_mapping(structure):
        for key, child in structure.items():
            yield from leaf_paths(child, (*path, key))
    elif isinstance(structure, list | tuple):
        for index, child in enumerate(structure):
            yield from leaf_paths(child, (*path, index))
    else:
        yield path, structure


def rebuild(structure: Any, values: Mapping[str, Any], root: str) -> Any:
    """Returns `structure` with each leaf replaced by the value of the same name.

    Leaves of a mapping without a value are left out.

    Raises:
      KeyError: a leaf of a list or a tuple, or the root, has no value.
    """
    return _rebuild(structure, values, (), root)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) and not isinstance(value, protobuf_message.Message)


def _name(path: tuple[Any, ...]) -> str:
    return _SEPARATOR.join(map(str, path))


def _rebuild(structure: Any, values: Mapping[str, Any], path: tuple[Any, ...], root: str) -> Any:
    if _is_mapping(structure):
        return {
            key: _rebuild(child, values, (*path, key), root)
            for key, child in structure.items()
            if any(_name(below) in values for below, _ in leaf_paths(child, (*path, key)))
        }
    if isinstance(structure, list | tuple):
        children = [
            _rebuild(child, values, (*path, index), root) for index, child in enumerate(structure)
        ]
        if hasattr(structure, "_fields"):
            return type(structure)(*children)
        return type(structure)(children)
    return values[_name(path) or root]
