"""Whether two values are the same, however they are nested."""

from __future__ import annotations

from typing import Any

import numpy as np


def same(first: Any, second: Any) -> bool:
    """Whether two values are the same: types of containers, dtypes, shapes and NaN included."""
    if isinstance(first, dict):
        return (
            isinstance(second, dict)
            and first.keys() == second.keys()
            and all(same(first[key], second[key]) for key in first)
        )
    if isinstance(first, tuple | list):
        return (
            type(first) is type(second)
            and len(first) == len(second)
            and all(map(same, first, second))
        )
    if isinstance(first, np.ndarray) and first.dtype == object:
        return isinstance(second, np.ndarray) and same(first.tolist(), second.tolist())
    if isinstance(first, np.ndarray):
        return (
            isinstance(second, np.ndarray)
            and (first.dtype, first.shape) == (second.dtype, second.shape)
            and np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
        )
    if isinstance(first, float) and first != first:
        return isinstance(second, float) and second != second
    # An element of a Discrete is an int or a NumPy integer, which are equal.
    return bool(first == second) and isinstance(first, str) == isinstance(second, str)
