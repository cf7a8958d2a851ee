"""Random values that conform to a spec."""

from __future__ import annotations

from typing import Any

import numpy as np
from dm_env import specs
from google.protobuf import any_pb2

_WIDEST = 2**31 - 1


def sample(spec: specs.Array, random: np.random.Generator) -> Any:
    """Draws a value that conforms to `spec`.

    Bools, and numbers with bounds, are uniformly distributed. Floats without bounds are
    normally distributed, integers without bounds are uniform over 32 bits. For other dtypes it
    is the value that `generate_value` of the spec returns.
    """
    template = spec.generate_value()
    shape, dtype = np.shape(template), spec.dtype
    bounded = isinstance(spec, specs.BoundedArray)
    if dtype.kind == "b":
        return random.integers(2, size=shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = spec.minimum if bounded else max(info.min, -_WIDEST)
        high = spec.maximum if bounded else min(info.max, _WIDEST)
        return random.integers(low, high, size=shape, dtype=dtype, endpoint=True)
    if dtype.kind == "f":
        finite = np.finfo(dtype).max / 2
        low = np.clip(spec.minimum if bounded else -np.inf, -finite, finite)
        high = np.clip(spec.maximum if bounded else np.inf, -finite, finite)
        even = random.random(shape)
        normal = np.clip(random.standard_normal(shape), low, high)
        drawn = np.where(high - low < finite, low + (high - low) * even, normal).astype(dtype)
        return np.clip(drawn, spec.minimum, spec.maximum) if bounded else drawn
    if dtype.kind == "O" and not isinstance(spec, specs.StringArray):
        messages = np.fromiter((any_pb2.Any() for _ in range(template.size)), object, template.size)
        return messages.reshape(shape) if shape else messages[0]
    return template
