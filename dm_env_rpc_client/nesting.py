"""Nested dictionaries and their flat form with separated names.

The protocol has flat names only; a period in them stands for a level of nesting
("Nested actions or observations" in the protocol overview).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dm_env_rpc_client.errors import SpecError

__all__ = ["SEPARATOR", "check_unambiguous", "flatten_dict", "unflatten_dict"]

SEPARATOR = "."


def flatten_dict(
    input_dict: Mapping[str, Any], separator: str, *, strict: bool = True
) -> dict[str, Any]:
    """Joins the keys of nested mappings into flat names.

    Args:
      input_dict: the mapping. Values that are mappings, other than empty ones, are
        flattened in turn; everything else is a leaf.
      separator: stands between the keys of two levels.
      strict: refuse keys that hold the separator. Without it such a key counts as
        the flat name that it is.

    Returns:
      A dict from flat name to leaf, in the order of the input.

    Raises:
      SpecError: a key is no string or, if `strict`, holds the separator; two keys
        give the same flat name.
    """
    flat: dict[str, Any] = {}
    _flatten_into(flat, input_dict, "", separator, strict)
    return flat


def _flatten_into(
    flat: dict[str, Any], nested: Mapping[str, Any], prefix: str, separator: str, strict: bool
) -> None:
    for key, value in nested.items():
        if not isinstance(key, str):
            raise SpecError(f"names are strings, but {prefix or 'the mapping'} has key {key!r}")
        if strict and separator in key:
            raise SpecError(
                f"cannot flatten key {prefix + key!r}: it holds the separator {separator!r}"
            )
        name = prefix + key
        if isinstance(value, Mapping) and value:
            _flatten_into(flat, value, name + separator, separator, strict)
        elif name in flat:
            raise SpecError(f"{name!r} is given twice, once nested and once as a flat name")
        else:
            flat[name] = value


def unflatten_dict(input_dict: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Rebuilds nested dictionaries from flat names; undoes `flatten_dict`.

    Args:
      input_dict: a mapping from flat name to leaf.
      separator: stands between the keys of two levels.

    Returns:
      Nested dicts, in the order in which the names first need them.

    Raises:
      SpecError: a name is a leaf and also the parent of another name.
    """
    check_unambiguous(input_dict, separator)
    nested: dict[str, Any] = {}
    for name, value in input_dict.items():
        *parents, leaf = name.split(separator)
        branch = nested
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[leaf] = value
    return nested


def check_unambiguous(names: Iterable[str], separator: str = SEPARATOR) -> None:
    """Raises SpecError if a name is a leaf and also the parent of another name."""
    leaves = set(names)
    for name in leaves:
        parent, found, _ = name.rpartition(separator)
        while found:
            if parent in leaves:
                raise SpecError(
                    f"{parent!r} and {name!r} exclude each other: {parent!r} would have to be "
                    "a value and a group of values at once"
                )
            parent, found, _ = parent.rpartition(separator)
