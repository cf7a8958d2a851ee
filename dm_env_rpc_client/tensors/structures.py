"""Nested specs and values, whose parts keep the order in which they were written.

A structure is either a leaf or a mapping, list, tuple, named tuple, dataclass or attrs instance
whose parts are structures. Any object with `shape` and `dtype` is a leaf.

dm-tree traverses a mapping in the order of its sorted keys. However, agents that flatten
`observation.values()` rely on the order of the mapping itself, so a server's names and UIDs follow
that order.
"""

from __future__ import annotations

import collections
import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from dm_env_rpc_client.tensors import nesting

_Take: TypeAlias = Callable[[Any, list[Any]], None]
"""A function that appends the leaves of a value to a list."""

_LISTED = 8
"""The maximum number of keys that an error message lists."""


def is_nested(structure: Any) -> bool:
    """Whether a value is a structure with parts rather than a leaf."""
    return parts_of(structure) is not None


def leaves(structure: Any) -> list[Any]:
    """Return the leaves of a structure, or an empty list if the structure is None."""
    return [leaf for _, leaf in leaves_with_path(structure)]


def leaves_with_path(structure: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the leaves of a structure, each with its path of keys and indices."""
    return [] if structure is None else list(_walk(structure, ()))


def parts_by_name(structure: Any) -> Mapping[Any, Any] | None:
    """Return the named parts of a structure as a mapping, or None if it has no named parts."""
    if isinstance(structure, Mapping):
        return structure
    names = _names(structure)
    return None if names is None else {name: getattr(structure, name) for name in names}


def single_leaf(structure: Any) -> tuple[tuple[Any, ...], Any]:
    """Find the only array in a structure.

    Args:
      structure: a structure of specs.

    Returns:
      The keys that lead to the array, and the spec of the array. If the structure has several
      arrays or none, the result is no keys, and the structure itself.
    """
    path: list[Any] = []
    part = structure
    while isinstance(part, Mapping) and len(part) == 1:
        ((key, part),) = part.items()
        path.append(key)
    if isinstance(part, Mapping | list | tuple):
        return (), structure
    return tuple(path), part


def flattener(structure: Any, where: str) -> Callable[[Any], list[Any]]:
    """Return a function that flattens values shaped like a structure, in the order of `leaves`.

    A structure with named parts can be a mapping, named tuple, dataclass or attrs instance,
    regardless of the type in the original structure. Its parts are found by name.

    Args:
      structure: a structure of specs, or None if there are no leaves.
      where: the name of the values in errors, such as "observation".

    Returns:
      A function that flattens a value. It raises a RuntimeError if the parts of the value differ
      from those of the structure.
    """
    if structure is None:
        return lambda value: []
    if not is_nested(structure):
        return lambda value: [value]
    take = _taker(structure, where, ())

    def flatten(value: Any) -> list[Any]:
        found: list[Any] = []
        take(value, found)
        return found

    keys = _leaf_keys(structure)
    if not keys:
        return flatten
    # One call of C for all parts. For a single key, `itemgetter` does not return a tuple.
    parts_in: Callable[[Any], Any] = operator.itemgetter(*keys)
    count, is_single = len(keys), len(keys) == 1

    def flatten_leaves(value: Any) -> list[Any]:
        if type(value) is dict and len(value) == count:
            try:  # Fast path for most values: no call for each part.
                return [parts_in(value)] if is_single else [*parts_in(value)]
            except KeyError:
                pass  # `flatten` raises the error with the details.
        return flatten(value)

    return flatten_leaves


def nester(structure: Any) -> Callable[[Iterator[Any]], Any]:
    """Return a function that rebuilds a structure from its values, ordered as in `leaves`."""
    parts = parts_of(structure)
    if parts is None:
        return next
    nesters = [nester(part) for _, part in parts]
    kind: Any = type(structure)
    if isinstance(structure, Mapping):
        keys = [key for key, _ in parts]

        def nest_mapping(values: Iterator[Any]) -> Any:
            made = {}
            for key, nest in zip(keys, nesters, strict=True):
                made[key] = nest(values)
            if kind is dict:
                return made
            if isinstance(structure, collections.defaultdict):
                return kind(structure.default_factory, made)
            return kind(made)

        return nest_mapping
    if isinstance(structure, list | tuple) and _names(structure) is None:
        return lambda values: kind(nest(values) for nest in nesters)
    return lambda values: kind(*(nest(values) for nest in nesters))


def _walk(structure: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    parts = parts_of(structure)
    if parts is None:
        yield path, structure
        return
    _check_depth(structure, path)
    for key, part in parts:
        yield from _walk(part, (*path, key))


def _check_depth(structure: Any, path: Sequence[Any]) -> None:
    """Raise SpecError for a structure that contains itself or is nested too deeply for names."""
    if len(path) >= nesting.MAX_NESTING:
        raise nesting.too_deep(structure, "specs", nesting.MAX_NESTING)


def parts_of(structure: Any) -> list[tuple[Any, Any]] | None:
    """Return the parts of a structure, each with its key or index, or None for a leaf."""
    if hasattr(structure, "shape") and hasattr(structure, "dtype"):
        return None
    named = parts_by_name(structure)
    if named is not None:
        return list(named.items())
    return list(enumerate(structure)) if isinstance(structure, list | tuple) else None


def _names(structure: Any) -> list[str] | None:
    """Return the field names of an object, or None for a mapping or an object without fields."""
    if isinstance(structure, tuple):
        names = getattr(structure, "_fields", None)
        return None if names is None else list(names)
    if isinstance(structure, type):
        return None
    attributes = getattr(type(structure), "__attrs_attrs__", None)
    if attributes is not None:
        return [attribute.name for attribute in attributes]
    if dataclasses.is_dataclass(structure):
        return [field.name for field in dataclasses.fields(structure)]
    return None


def _leaf_keys(structure: Any) -> list[Any] | None:
    """Return the keys of a mapping whose values are all leaves, or None for other structures."""
    if isinstance(structure, Mapping) and not any(map(is_nested, structure.values())):
        return list(structure)
    return None


def _taker(structure: Any, where: str, path: tuple[Any, ...]) -> _Take:
    parts = parts_of(structure)
    if parts is None:
        return lambda value, found: found.append(value)
    _check_depth(structure, path)
    named = parts_by_name(structure) is not None
    takers = [(key, _taker(part, where, (*path, key))) for key, part in parts]

    def take_named(value: Any, found: list[Any]) -> None:
        if type(value) is not dict:
            own = parts_by_name(value)
            if own is None:
                raise _mismatch(structure, value, where, path)
            value = own
        if len(value) != len(takers):
            raise _mismatch(structure, value, where, path)
        for key, take in takers:
            if key not in value:
                raise _mismatch(structure, value, where, path)
            take(value[key], found)

    def take_indexed(value: Any, found: list[Any]) -> None:
        if not isinstance(value, list | tuple) or len(value) != len(takers):
            raise _mismatch(structure, value, where, path)
        for (_, take), part in zip(takers, value, strict=True):
            take(part, found)

    return take_named if named else take_indexed


def _mismatch(structure: Any, value: Any, where: str, path: Sequence[Any]) -> RuntimeError:
    """Return the error for a value whose parts differ from those of its spec."""
    place = ".".join(map(str, path))
    label = f"{where} {place!r}" if place else f"the {where}"
    expected, found = parts_by_name(structure), parts_by_name(value)
    if expected is None:
        size = len(structure)
        count = f" of {len(value)}" if isinstance(value, list | tuple) else ""
        text = f"is a {type(value).__name__}{count}; its spec is a {type(structure).__name__}"
        return _violates(f"{label} {text} of {size}")
    if found is None:
        text = f"is a {type(value).__name__}; its spec has the keys {_listed(expected)}"
        return _violates(f"{label} {text}")
    lacks = [key for key in expected if key not in found]
    more = [key for key in found if key not in expected]
    texts = []
    if lacks:
        texts.append(f"lacks {_listed(lacks)}")
    if more:
        texts.append(f"has {_listed(more)}, which the spec does not have")
    return _violates(f"{label} {' and '.join(texts)}; the spec has {_listed(expected)}")


def _violates(text: str) -> RuntimeError:
    return RuntimeError(f"the environment violates its own specs: {text}")


def _listed(keys: Any) -> str:
    names = list(keys)
    more = ", ..." if len(names) > _LISTED else ""
    return (", ".join(map(repr, names[:_LISTED])) or "no parts") + more
