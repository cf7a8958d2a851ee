"""Conversion between nested dictionaries and flat names, and checks for unbounded nesting.

The protocol has only flat names. A period in a name separates two levels of nesting (see "Nested
actions or observations" in the protocol overview).

Lists, mappings and arrays of objects can contain themselves or have thousands of levels. Packing
code checks for this only after it has descended a limited number of levels, so values of ordinary
depth cost nothing extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf import message as protobuf_message

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import memory_limits


def contains_itself(value: Any) -> bool:
    """Whether a list, tuple, mapping or array of objects contains itself, at any level."""
    # Without recursion, because the value may be deeper than Python's stack.
    above: set[int] = set()
    done: set[int] = set()
    left: list[tuple[Any, bool]] = [(value, False)]
    while left:
        part, is_done = left.pop()
        if is_done:
            above.discard(id(part))
            done.add(id(part))
            continue
        parts = _parts(part)
        if parts is None or id(part) in done:
            continue
        if id(part) in above:
            return True
        above.add(id(part))
        left.append((part, True))
        left.extend((each, False) for each in parts)
    return False


def too_deep(value: Any, where: str, most: int) -> SpecError:
    """Return the error for a value that is nested too deeply to be packed.

    Args:
      value: the value.
      where: the name of the value in the error message.
      most: the maximum number of levels.
    """
    if contains_itself(value):
        return SpecError(f"{where}: {_itself(value)}")
    return SpecError(
        f"{where}: more than {most} levels deep: {arguments.shown(value)}; use fewer levels"
    )


def text_of_deep(value: Any) -> str:
    """Return a string that describes a value nested below the deepest level that is packed.

    Raises:
      SpecError: the value contains itself.
    """
    if contains_itself(value):
        raise SpecError(_itself(value))
    return text_of(value)


def text_of(value: Any) -> str:
    """Return `repr(value)`, or a shorter string if the value is too deeply nested for `repr`."""
    try:
        return repr(value)
    except RecursionError:
        return arguments.shown(value)


def _itself(value: Any) -> str:
    return f"a value contains itself: {arguments.shown(value)}; give a copy without that"


def _parts(value: Any) -> Iterable[Any] | None:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return list(value.flat)
    return None


SEPARATOR = "."

MAX_NESTING = memory_limits.DEFAULT.nesting
"""The maximum number of levels in one name. Each level is a nested dictionary."""


def flatten_dict(
    input_dict: Mapping[str, Any], separator: str, *, strict: bool = True
) -> dict[str, Any]:
    """Join the keys of nested mappings into flat names.

    Args:
      input_dict: the mapping. Values that are mappings are flattened in turn, except for empty
        mappings and protobuf messages (a Struct is a mapping). All other values are leaves.
      separator: the string to insert between the keys of two levels.
      strict: whether to reject keys that contain the separator. If False, a key with the separator
        is treated as a flat name.

    Returns:
      A dict that maps flat names to leaves, in the order of the input.

    Raises:
      SpecError: a key is not a string or, if `strict`, contains the separator; two keys
        result in the same flat name; or there are more than `MAX_NESTING` levels.
    """
    flat: dict[str, Any] = {}
    _flatten_into(flat, input_dict, "", separator, strict, 1)
    return flat


def _flatten_into(
    flat: dict[str, Any],
    nested: Mapping[str, Any],
    prefix: str,
    separator: str,
    strict: bool,
    level: int,
) -> None:
    if level > MAX_NESTING:
        # This also stops at a mapping that contains itself.
        raise SpecError(f"more than {MAX_NESTING} levels of nesting at {prefix[:40]!r}...")
    for key, value in nested.items():
        if not isinstance(key, str):
            raise SpecError(
                f"names must be strings, but {prefix or 'the mapping'} has the key {key!r}"
            )
        if strict and separator in key:
            raise SpecError(
                f"cannot flatten key {prefix + key!r}: it contains the separator {separator!r}"
            )
        name = prefix + key
        is_branch = isinstance(value, Mapping) and not isinstance(value, protobuf_message.Message)
        if is_branch and value:
            _flatten_into(flat, value, name + separator, separator, strict, level + 1)
        elif name in flat:
            raise SpecError(f"{name!r} is given twice, once nested and once as a flat name")
        else:
            flat[name] = value


def unflatten_dict(input_dict: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Rebuild nested dictionaries from flat names (the inverse of `flatten_dict`).

    Args:
      input_dict: a mapping from flat names to leaves.
      separator: the separator between the keys of two levels.

    Returns:
      Nested dicts, in the order in which their keys first appear in the input.

    Raises:
      SpecError: a name is a leaf and also the parent of another name, is not a string, or
        has more than `MAX_NESTING` levels; or the separator is empty.
    """
    check_unambiguous(input_dict, separator)
    return nest(input_dict, separator)


def has_levels(names: Iterable[str]) -> bool:
    """Return whether any of these flat names has several levels."""
    return any(SEPARATOR in name for name in names)


def nest(flat: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Rebuild nested dictionaries from names that `check_unambiguous` has accepted."""
    nested: dict[str, Any] = {}
    for name, value in flat.items():
        *parents, leaf = name.split(separator)
        branch = nested
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[leaf] = value
    return nested


def check_unambiguous(
    names: Iterable[str], separator: str = SEPARATOR, max_nesting: int = MAX_NESTING
) -> None:
    """Raise SpecError if a name is both a leaf and the parent of another name."""
    if not separator:
        raise SpecError("the separator is empty; pass a non-empty string")
    leaves = set(names)
    for name in leaves:
        if not isinstance(name, str):
            raise SpecError(f"names must be strings, got {name!r}")
        if name.count(separator) >= max_nesting:
            raise SpecError(f"{name[:40]!r}... has more than {max_nesting} levels of nesting")
        parent, found, _ = name.rpartition(separator)
        while found:
            if parent in leaves:
                raise SpecError(
                    f"{parent!r} and {name!r} conflict: {parent!r} would be both a value and a "
                    "group of values"
                )
            parent, found, _ = parent.rpartition(separator)
