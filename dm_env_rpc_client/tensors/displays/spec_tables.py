"""Tables that display the name, dtype, shape and bounds of each spec."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dm_env import specs

from dm_env_rpc_client.tensors.displays import markup, plots
from dm_env_rpc_client.tensors.displays.markup import named_leaves

COLUMNS = ("name", "dtype", "shape", "values")
"""The columns of a table of specs."""

_MAX_LEAVES = 1000


class Range(NamedTuple):
    """The minimum and maximum over all elements of a spec, with None for a missing bound."""

    low: Any
    high: Any


ANY = Range(None, None)


def are_specs(structure: Any) -> bool:
    """Whether a structure has leaves and all of them are dm_env specs."""
    try:
        leaves = named_leaves(structure, "value")
    except RecursionError:
        return False
    return 0 < len(leaves) <= _MAX_LEAVES and all(
        isinstance(leaf, specs.Array) for leaf in leaves.values()
    )


def spec_table(structure: Any, root: str = "value") -> str:
    """Return a table of the specs in a structure.

    Args:
      structure: specs, nested or not.
      root: the name of a structure that is a single spec without a name.
    """
    rows = [
        (f"<b>{markup.escape(name, 200)}</b>", *(markup.escape(fact, 200) for fact in facts))
        for name, *facts in spec_rows(structure, root)
    ]
    return markup.table(COLUMNS, rows) if rows else '<i style="opacity:0.6">none</i>'


def spec_rows(structure: Any, root: str = "value", to: str = "…") -> list[tuple[str, ...]]:
    """Return one table row for each spec in a structure, with the columns in `COLUMNS`.

    Args:
      structure: specs, nested or not.
      root: the name of a structure that is a single spec without a name.
      to: the text between two bounds.
    """
    named = named_leaves(structure, getattr(structure, "name", None) or root)
    return [
        (name, dtype_text(spec), _shape_text(spec.shape, " x ") or "scalar", bounds_text(spec, to))
        for name, spec in named.items()
    ]


def spec_text(spec: specs.Array, to: str = "…") -> str:
    """Return a spec's dtype, shape and bounds as a string, such as "float32 [2], 0 … 1"."""
    shape = f" [{_shape_text(spec.shape)}]" if spec.shape else ""
    bounds = bounds_text(spec, to)
    return f"{dtype_text(spec)}{shape}{f', {bounds}' if bounds else ''}"


def dtype_text(spec: specs.Array) -> str:
    """Return the usual name of a spec's dtype."""
    if isinstance(spec, specs.StringArray):
        return "string"
    dtype = np.dtype(spec.dtype)
    return "proto" if dtype.kind == "O" else str(dtype.name)


def shapes_text(structure: Any) -> str:
    """Return the name, dtype and shape of each leaf, such as "board float32 [10, 5]".

    Args:
      structure: specs, nested or not. A single spec is listed without a name.
    """
    named = named_leaves(structure, "").items()
    return ", ".join(
        f"{name} {dtype_text(leaf)} [{_shape_text(leaf.shape)}]".lstrip() for name, leaf in named
    )


def bounds_text(spec: specs.Array, to: str = "…") -> str:
    """Return the bounds of a spec as text, or "" if the spec has no bounds."""
    if not isinstance(spec, specs.BoundedArray):
        return ""
    low, high = (_side_text(side) for side in (spec.minimum, spec.maximum))
    return f"{low} {to} {high}"


def value_range(spec: specs.Array) -> Range:
    """Return the range of a spec's values, with None for a bound that is missing or infinite."""
    if not isinstance(spec, specs.BoundedArray) or spec.dtype.kind not in "iuf":
        return ANY
    low, high = np.min(spec.minimum), np.max(spec.maximum)
    return Range(low if np.isfinite(low) else None, high if np.isfinite(high) else None)


def _shape_text(shape: tuple[int, ...], separator: str = ", ") -> str:
    return separator.join("any" if size < 0 else str(size) for size in shape)


def _side_text(side: Any) -> str:
    if not np.ndim(side):
        return plots.number(side)
    elements = np.ravel(side)
    if np.all(elements == elements[0]):
        return plots.number(elements[0])
    shown = ", ".join(plots.number(element) for element in elements[:4])
    return f"[{shown}{', …' if elements.size > 4 else ''}]"
