"""Specs as tables: name, dtype, shape and bounds of each."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dm_env import specs

from dm_env_rpc_client.tensors.displays import markup, plots
from dm_env_rpc_client.tensors.displays.leaves import named_leaves

_COLUMNS = ("name", "dtype", "shape", "values")
_MAX_LEAVES = 1000


class Range(NamedTuple):
    """The minimum and maximum of a spec over all its elements; None if not limited."""

    low: Any
    high: Any


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
    """Returns a table of the specs in a structure.

    Args:
      structure: specs, nested or not.
      root: the name if the structure is a single spec without a name.
    """
    rows = [
        (
            f"<b>{markup.escape(name, 200)}</b>",
            markup.escape(dtype_text(spec)),
            markup.escape(_shape_text(spec.shape), 200),
            markup.escape(bounds_text(spec)),
        )
        for name, spec in named_leaves(structure, getattr(structure, "name", None) or root).items()
    ]
    return markup.table(_COLUMNS, rows) if rows else '<i style="opacity:0.6">none</i>'


def dtype_text(spec: specs.Array) -> str:
    """Returns the usual name of a spec's dtype."""
    if isinstance(spec, specs.StringArray):
        return "string"
    dtype = np.dtype(spec.dtype)
    return "proto" if dtype.kind == "O" else str(dtype.name)


def shapes_text(structure: Any) -> str:
    """Returns the names, dtypes and shapes in a structure, such as "board float32 [10, 5]".

    Args:
      structure: specs, or spaces of Gymnasium, nested or not; a single one has no name.
    """
    named = named_leaves(structure, "").items()
    return ", ".join(
        f"{name} {dtype_text(leaf)} {[*(leaf.shape or ())]}".lstrip() for name, leaf in named
    )


def bounds_text(spec: specs.Array) -> str:
    """Returns which values a spec allows; empty if it allows all values of its dtype."""
    if isinstance(spec, specs.DiscreteArray):
        return f"0 … {spec.num_values - 1}"
    if not isinstance(spec, specs.BoundedArray):
        return ""
    low, high = (_side_text(side) for side in (spec.minimum, spec.maximum))
    return f"{low} … {high}"


def value_range(spec: specs.Array) -> Range:
    """Returns the range of a spec's values; None for a bound that is missing or infinite."""
    if not isinstance(spec, specs.BoundedArray) or spec.dtype.kind not in "iuf":
        return Range(None, None)
    low, high = np.min(spec.minimum), np.max(spec.maximum)
    return Range(low if np.isfinite(low) else None, high if np.isfinite(high) else None)


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join("any" if size < 0 else str(size) for size in shape) if shape else "scalar"


def _side_text(side: Any) -> str:
    if not np.ndim(side):
        return plots.number(side)
    elements = np.ravel(side)
    if np.all(elements == elements[0]):
        return plots.number(elements[0])
    shown = ", ".join(plots.number(element) for element in elements[:4])
    return f"[{shown}{', …' if elements.size > 4 else ''}]"
