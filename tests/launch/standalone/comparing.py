"""Whether what two servers answered is the same."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_same(one: Any, other: Any) -> bool:
    """Whether nested values are equal bit for bit, with types, dtypes and shapes; NaN is itself."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        same_form = (one.dtype, one.shape) == (other.dtype, other.shape)
        if one.dtype == object:
            return same_form and one.tolist() == other.tolist()
        return same_form and one.tobytes() == other.tobytes()
    return bool(one == other or (one != one and other != other))
