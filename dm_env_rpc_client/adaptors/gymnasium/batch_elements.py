"""Elements of batches of Gymnasium's spaces as dm_env structures of arrays [N, ...], and back.

The structure and the names are those of one element, see `elements`; its arrays, and its strings,
are stacked along a new first axis. So the rows of a batch and single environments have the same
names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium import elements, values
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors.batch_specs import VARIABLE, batch_spec

__all__ = ["from_structure", "to_spec", "to_structure"]


def to_spec(space: spaces.Space[Any], count: int, name: str) -> Any:
    """Returns the spec of `count` elements of a space, or a structure of specs.

    Args:
      space: the space of one element.
      count: the number of rows, N.
      name: the name of the spec.

    Raises:
      SpecError: the elements are arrays of variable length.
    """

    def batched(spec: specs.Array) -> specs.Array:
        if isinstance(spec, VARIABLE):
            raise SpecError(f"{spec.name!r} is of variable length, and rows have one shape")
        return batch_spec(spec, count)

    return tree.map_structure(batched, elements.to_spec(space, name))


def to_structure(space: spaces.Space[Any], batch: Any, count: int, name: str) -> Any:
    """Returns a batch of elements as a value of its spec.

    Args:
      space: the space of one element.
      batch: the elements, as an element of `batch_space(space, count)`.
      count: the number of rows.
      name: what it is called in errors.

    Raises:
      SpecError: it has another structure, or the dtype of its spec cannot represent it.
    """
    if isinstance(space, spaces.Dict):
        if isinstance(batch, Mapping) and batch.keys() != space.spaces.keys():
            raise SpecError(
                f"{name!r}: expected a mapping with keys {list(space)}, got {list(batch)}"
            )
        return {
            elements.escaped(key): to_structure(part, batch[key], count, f"{name}.{key}")
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        if len(batch) != len(space.spaces):
            raise SpecError(
                f"{name!r}: expected a tuple of {len(space.spaces)} values, got {len(batch)}"
            )
        return tuple(
            to_structure(part, batch[index], count, f"{name}.{index}")
            for index, part in enumerate(space.spaces)
        )
    if isinstance(space, elements.ARRAYS):
        array = elements.as_array(space, batch, name)
        if array.shape[:1] != (count,):
            raise SpecError(f"{name!r}: expected {count} rows, got the shape {list(array.shape)}")
        return array
    if len(batch) != count:
        raise SpecError(f"{name!r}: expected {count} rows, got {len(batch)}")
    rows = np.empty(count, object)
    for index, row in enumerate(batch):
        rows[index] = elements.to_structure(space, row, name)
    return rows


def from_structure(space: spaces.Space[Any], value: Any, name: str) -> Any:
    """Returns the element of `batch_space(space, count)` that a value of its spec stands for.

    Args:
      space: the space of one element.
      value: the value, nested as names over the wire are. Arrays are not copied.
      name: what it is called in errors.

    Raises:
      ProtocolError: the JSON of an element is invalid.
    """
    if isinstance(space, elements.ARRAYS):
        return np.asarray(value, space.dtype)
    if isinstance(space, spaces.Dict):
        return {
            key: from_structure(part, elements.part(value, elements.escaped(key)), name)
            for key, part in space.spaces.items()
        }
    if isinstance(space, spaces.Tuple):
        return tuple(
            from_structure(each, elements.part(value, index), name)
            for index, each in enumerate(space.spaces)
        )
    if isinstance(space, spaces.Text):
        return tuple(map(str, value))
    return tuple(values.decode(str(text), name) for text in value)
