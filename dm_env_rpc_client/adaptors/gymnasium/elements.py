"""Conversion between elements of Gymnasium spaces and dm_env structures. Needs `gymnasium`.

| space | dm_env |
| --- | --- |
| Box | bounded array; float32 in place of float16 |
| Discrete | integer scalar |
| MultiBinary, MultiDiscrete | bounded array |
| Text | string |
| Dict, Tuple | dict, tuple |
| Sequence of one of the arrays above | array of variable length |
| OneOf, Graph, any other Sequence | string: the JSON of `value_json` |

In names, a Dict key that is empty, or that contains a period or a percent sign, is escaped as in
URLs (`a.b` becomes `a%2Eb`), because periods separate the levels of a name. The observation
names `reward` and `discount` are also escaped (`%72eward`), since they denote the reward and the
discount of a step. A Dict with two keys that have the same name, such as 1 and "1", has no spec.

A batch of N elements is an element of `batch_space(space, N)`. A batch has the structure and the
names of a single element, with arrays and strings stacked along a new first axis.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from dm_env import specs
from gymnasium import spaces

from dm_env_rpc_client.adaptors.gymnasium import value_json
from dm_env_rpc_client.adaptors.gymnasium.spaces import one_bound
from dm_env_rpc_client.adaptors.gymnasium.unsent import Given
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.system.foreign_environments import described
from dm_env_rpc_client.tensors import casting, structures
from dm_env_rpc_client.tensors.specs import (
    VariableArray,
    VariableBoundedArray,
    bounded_array,
)

_TAKEN = ("reward", "discount")

_HALF: np.dtype[Any] = np.dtype(np.float16)
_SINGLE: np.dtype[Any] = np.dtype(np.float32)

ARRAYS = (spaces.Box, spaces.Discrete, spaces.MultiBinary, spaces.MultiDiscrete)
"""The spaces whose elements are arrays of a fixed shape."""


def to_spec(space: spaces.Space[Any], name: str) -> Any:
    """Return the dm_env spec of a space, or a structure of specs.

    Args:
      space: the space, as `space_json.from_json` returns it.
      name: the name of the spec; the specs of parts have names such as "action.0".

    Raises:
      SpecError: two keys of a Dict have the same name.
    """
    if isinstance(space, spaces.Tuple):
        return tuple(to_spec(part, f"{name}.{index}") for index, part in enumerate(space.spaces))
    if isinstance(space, spaces.Dict):
        _check_keys(space, name)
        return {escaped(key): to_spec(part, f"{name}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, ARRAYS):
        return _array_spec(space, name)
    if isinstance(space, spaces.Sequence) and isinstance(space.feature_space, ARRAYS):
        element: Any = _array_spec(space.feature_space, name)
        shape = (-1, *element.shape)
        if isinstance(element, specs.BoundedArray):
            low, high = np.unique(element.minimum), np.unique(element.maximum)
            if (low.size, high.size) == (1, 1):
                return VariableBoundedArray(shape, element.dtype, low[0], high[0], name)
        return VariableArray(shape, element.dtype, name)
    return specs.StringArray((), name=name)


Converter: TypeAlias = Callable[[Any], Any]


class Converting(abc.ABC):
    """A base class whose readers and writers are rebuilt in each copy instead of pickled.

    Readers and writers cannot be pickled. They are stored in attributes with names that begin with
    `_read_` or `_write_`.
    """

    @abc.abstractmethod
    def _make_converters(self) -> None:
        """Build the readers and writers from the other attributes."""

    def __getstate__(self) -> dict[str, Any]:
        prefixes = ("_read_", "_write_")
        return {name: own for name, own in vars(self).items() if not name.startswith(prefixes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_converters()


def to_structure(
    space: spaces.Space[Any], element: Any, name: str, count: int | None = None
) -> Any:
    """Convert one element with `writer`."""
    return writer(space, name, count)(element)


def writer(space: spaces.Space[Any], name: str, count: int | None = None) -> Converter:
    """Return a function that converts elements of a space to structures that match its spec.

    Args:
      space: the space, as `space_json.from_json` returns it.
      name: the name of an element in error messages.
      count: the number of elements in a batch; None for a single element.

    Returns:
      A function that converts an element without checking its bounds. The function raises
      SpecError if the structure of the element does not match the space, or if the dtype of the
      spec cannot represent the element.
    """
    if isinstance(space, spaces.Dict):
        return _dict_writer(space, name, count)
    if isinstance(space, spaces.Tuple):
        return _tuple_writer(space, name, count)
    if isinstance(space, ARRAYS):
        return _array_writer(_wire_dtype(space), name, count)
    if count is not None:
        return _rows_writer(writer(space, name), name, count)
    if isinstance(space, spaces.Text):
        return functools.partial(_text, name)
    if isinstance(space, spaces.Sequence) and isinstance(space.feature_space, ARRAYS):
        part: Any = space.feature_space
        dtype = _wire_dtype(part)
        none = np.empty((0, *part.shape), dtype)
        return lambda element: none.copy() if len(element) == 0 else _cast(element, dtype, name)
    return functools.partial(value_json.encode, where=Given(name))


def _dict_writer(space: spaces.Dict, name: str, count: int | None) -> Converter:
    keys = dict(space.spaces).keys()
    parts = [
        (key, escaped(key), writer(part, f"{name}.{key}", count))
        for key, part in space.spaces.items()
    ]

    def write(element: Any) -> dict[str, Any]:
        is_mapping = isinstance(element, Mapping)
        if not is_mapping:  # The fields of a named tuple or dataclass match by name, too.
            own = structures.parts_by_name(element)
            is_mapping, element = own is not None, element if own is None else own
        # A batch may be a structured array, with the keys as its field names.
        if element.keys() != keys if is_mapping else count is None:
            found = list(element) if is_mapping else type(element).__name__
            raise SpecError(f"{name!r}: expected a mapping with keys {list(keys)}, got {found}")
        structure = {}
        for key, level, write_part in parts:
            structure[level] = write_part(element[key])
        return structure

    return write


def _tuple_writer(space: Any, name: str, count: int | None) -> Converter:
    parts = [writer(part, f"{name}.{index}", count) for index, part in enumerate(space.spaces)]

    def write(element: Any) -> tuple[Any, ...]:
        is_sequence = count is not None or isinstance(element, tuple | list)
        if not is_sequence or len(element) != len(parts):
            given = element if count is None else len(element)
            raise SpecError(f"{name!r}: expected a tuple of {len(parts)} values, got {given!r}")
        return tuple(write_part(element[index]) for index, write_part in enumerate(parts))

    return write


def _array_writer(dtype: np.dtype[Any], name: str, count: int | None) -> Converter:
    def write(element: Any) -> Any:
        array = element
        if type(element) is not np.ndarray or element.dtype != dtype:
            array = _cast(element, dtype, name)
        if count is not None and array.shape[:1] != (count,):
            raise SpecError(f"{name!r}: expected {count} rows, got the shape {list(array.shape)}")
        return array

    return write


def _rows_writer(write_row: Converter, name: str, count: int) -> Converter:
    def write(element: Any) -> Any:
        if len(element) != count:
            raise SpecError(f"{name!r}: expected {count} rows, got {len(element)}")
        rows = np.empty(count, object)
        for index, row in enumerate(element):
            rows[index] = write_row(row)
        return rows

    return write


def _text(name: str, element: Any) -> str:
    if not isinstance(element, str):
        raise SpecError(f"{name!r}: expected a str, got {described(element)}")
    return str(element)


def from_structure(
    space: spaces.Space[Any],
    value: Any,
    name: str,
    as_sampled: bool = False,
    of_rows: bool = False,
) -> Any:
    """Convert one value with `reader`."""
    return reader(space, name, as_sampled, of_rows)(value)


def reader(
    space: spaces.Space[Any], name: str, as_sampled: bool = False, of_rows: bool = False
) -> Converter:
    """Return a function that converts structures that match a space's spec to its elements.

    Args:
      space: the space, as `space_json.from_json` returns it.
      name: the name of an element in error messages.
      as_sampled: whether to convert an element of a Discrete to a NumPy scalar, as returned by
        `sample` and expected by an environment's `step`, instead of an int.
      of_rows: whether an element is a batch.

    Returns:
      A function that converts a value without copying arrays. A mapping with indices as keys is
      accepted in place of a tuple, because nesting the names on the wire creates such mappings.
      The function raises ProtocolError if the JSON of an element is invalid.
    """
    if isinstance(space, spaces.Discrete) and not of_rows:
        return _scalar_reader(np.dtype(space.dtype)) if as_sampled else int
    if isinstance(space, ARRAYS):
        return _array_reader(np.dtype(space.dtype))
    if isinstance(space, spaces.Dict):
        parts = [
            (key, escaped(key), reader(each, name, as_sampled, of_rows))
            for key, each in space.spaces.items()
        ]
        return lambda value: {key: read(part(value, level)) for key, level, read in parts}
    if isinstance(space, spaces.Tuple):
        items = [
            (index, reader(each, name, as_sampled, of_rows))
            for index, each in enumerate(space.spaces)
        ]
        return lambda value: tuple(read(part(value, index)) for index, read in items)
    if of_rows:
        # As `concatenate` of Gymnasium combines samples of such a space.
        return _each(reader(space, name, as_sampled=True))
    if isinstance(space, spaces.Text):
        return str
    if isinstance(space, spaces.Sequence) and isinstance(space.feature_space, ARRAYS):
        if space.stack:
            return _array_reader(np.dtype(space.feature_space.dtype))
        feature: Any = space.feature_space
        return _each(reader(feature, name, as_sampled))
    return lambda value: value_json.decode(str(value), name)


def _scalar_reader(dtype: np.dtype[Any]) -> Converter:
    kind = dtype.type

    def read(value: Any) -> Any:
        # Called with an array instead of a scalar, the type takes ten times as long.
        scalar = value[()] if type(value) is np.ndarray else value
        return scalar if type(scalar) is kind else kind(scalar)

    return read


def _array_reader(dtype: np.dtype[Any]) -> Converter:
    def read(value: Any) -> Any:
        if type(value) is np.ndarray and value.dtype == dtype:
            return value  # Fast path for most values.
        return np.asarray(value, dtype)

    return read


def _each(read: Converter) -> Converter:
    return lambda value: tuple(read(item) for item in value)


def as_array(space: Any, value: Any, name: str) -> Any:
    """Cast elements to the dtype of their spec, or raise SpecError if that changes values."""
    return _cast(value, _wire_dtype(space), name)


def by_name(structure: Any) -> Any:
    """Replace the tuples in a structure with mappings from index to value.

    Empty mappings are omitted, since they have no names.
    """
    if isinstance(structure, tuple):
        structure = {str(index): part for index, part in enumerate(structure)}
    if not isinstance(structure, Mapping):
        return structure
    named = {key: by_name(part) for key, part in structure.items()}
    return {key: part for key, part in named.items() if not isinstance(part, dict) or part}


def escaped(key: Any) -> str:
    """Escape a Dict key for use in a name; see the module's docstring."""
    text = str(key).replace("%", "%25").replace(".", "%2E")
    if text in _TAKEN:
        return f"%{ord(text[0]):02X}{text[1:]}"
    return text or "%"


def part(value: Any, key: Any) -> Any:
    """Return a part of a value, or an empty mapping if the part has no values and was not sent.

    Args:
      value: a mapping or a tuple; a mapping with indices as keys can represent a tuple.
      key: the key, or the index as an int.
    """
    try:
        return value[str(key) if isinstance(value, Mapping) else key]
    except (KeyError, IndexError):
        return {}


def _check_keys(space: spaces.Dict, name: str) -> None:
    keys: dict[str, Any] = {}
    for key in space.spaces:
        level = escaped(key)
        if level in keys:
            raise SpecError(
                f"{name!r}: the keys {keys[level]!r} and {key!r} of a Dict space have the "
                f"same name, {level!r}; rename one of the keys"
            )
        keys[level] = key


def _wire_dtype(space: spaces.Space[Any]) -> np.dtype[Any]:
    dtype = np.dtype(space.dtype)
    return _SINGLE if dtype == _HALF else dtype


def _cast(value: Any, dtype: np.dtype[Any], name: str) -> Any:
    if type(value) is np.ndarray and value.dtype == dtype:
        return value
    where = repr(name)
    return casting.exact_cast(casting.as_array(value, where), dtype, where)


def _array_spec(space: Any, name: str) -> specs.Array:
    dtype = _wire_dtype(space)
    if isinstance(space, spaces.Box):
        if dtype.kind == "b":
            return specs.Array(space.shape, dtype, name)
        low, high = (one_bound(space, side).astype(dtype) for side in ("low", "high"))
        return bounded_array(space.shape, dtype, low, high, name)
    if isinstance(space, spaces.Discrete):
        n, start = int(space.n), int(space.start)
        if start == 0:
            return specs.DiscreteArray(n, dtype, name)
        return specs.BoundedArray((), dtype, start, start + n - 1, name)
    if isinstance(space, spaces.MultiBinary):
        return bounded_array(space.shape, dtype, 0, 1, name)
    # `nvec` counts values, whereas a spec has inclusive bounds.
    low = space.start.astype(np.int64)
    high = low + (space.nvec.astype(np.int64) - 1)
    return specs.BoundedArray(space.shape, dtype, low, high, name)
