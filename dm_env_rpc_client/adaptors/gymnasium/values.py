"""Values of Gymnasium environments as JSON that returns them as they were. Needs `gymnasium`.

An info, the options of a reset, and elements of spaces for which there are no arrays. What JSON
has itself is written as it is; anything else is an object whose key `$` names its kind:

| value | `$` | beside it |
| --- | --- | --- |
| NaN, infinities | `float` | `value`: "nan", "inf" or "-inf" |
| NumPy scalar | `scalar` | `dtype`, such as "float64", and `value` |
| array of numbers | `array` | `dtype`, `shape` and `base64`: the elements, little-endian |
| complex, date, span of time, bytes of NumPy | `array` | their numbers; `as`: their dtype |
| masked array | `array`, `objects` | its data; `mask`, an array; `fill_value` |
| other array | `objects` | `shape` and `items`; `dtype` "object" if they are not all strings |
| bytes | `bytes` | `base64` |
| tuple | `tuple` | `items` |
| element of a Graph | `graph` | `items`: nodes, edges, edge links |
| mapping that has other keys than strings, or the key `$` | `dict` | `items`: pairs |

What is a single value and not an array of shape () has `scalar`, true. A value of any other type
becomes its `repr`, and so does one more than eight levels deep. One that contains itself is
refused.
"""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import bounded_json
from dm_env_rpc_client.tensors.endless import text_of_deep

__all__ = [
    "VERSION",
    "decode",
    "decode_description",
    "encode",
    "encode_extras",
    "from_jsonable",
    "snapshot",
    "to_jsonable",
]

VERSION = 1
"""The version of descriptions of environments."""

KIND = "$"

# Readers that do not know these keys get the numbers, and the data below a mask.
_AS, _SCALAR, _MASK, _FILL = "as", "scalar", "mask", "fill_value"

_MAX_VALUES = 1 << 20

_MAX_CONTAINERS = 1 << 18
"""Lists and objects of one text: an empty one takes 70 bytes here, and as much again as JSON."""

_MOST_DTYPES = 64
"""How many are remembered, of those that a peer names."""

_JSON_TYPES = frozenset((type(None), bool, int, str))


_SCALARS = {
    np.dtype(code).type: np.dtype(code).name
    for code in np.typecodes["All"]
    if np.dtype(code).kind in "biuf" and np.dtype(code).itemsize <= 8
}
"""The types of NumPy's scalars of at most eight bytes, with the names of their dtypes."""

_IMMUTABLE = frozenset((*_JSON_TYPES, float, bytes, *_SCALARS))

_PADDING = 64
"""Characters by which texts in an array may be padded in any case."""

_MAX_LEVELS = 8
"""Each takes up to three levels of JSON; `bounded_json` allows 32."""


def encode(value: Any) -> str:
    """Returns the JSON text of a value; see the table above. SpecError if it contains itself."""
    return bounded_json.encode(to_jsonable(value), "a value").decode("ascii")


def encode_extras(extras: Mapping[str, Any]) -> str:
    """Returns the JSON text of infos that an environment has returned; "" for none.

    Raises:
      RuntimeError: one of them contains itself.
    """
    try:
        return encode(extras) if extras else ""
    except SpecError as error:
        raise RuntimeError(f"an info of the environment cannot be sent: {error}") from error


def decode(text: str, where: str) -> Any:
    """Returns the value of a JSON text.

    Args:
      text: what `encode` returned.
      where: what it is, for error messages.

    Raises:
      ProtocolError: it is not such a text.
    """
    return from_jsonable(_json(text, where), where)


def snapshot(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Returns a value as `encode` would send it now, whatever becomes of its parts.

    Environments may keep an info, or arrays in it, and change them in a later step.

    Args:
      value: a value.
      levels: how many levels of it travel.
    """
    kind = type(value)
    if kind is dict and levels:  # Most infos; without a call for each part of most.
        copied: Any = {}
        for key, part in value.items():
            of_part = type(part)
            is_plain = of_part in _IMMUTABLE
            if not is_plain and of_part is np.ndarray and part.dtype.kind != "O":
                copied[key] = part.copy()
            else:
                copied[key] = part if is_plain else snapshot(part, levels - 1)
        return copied
    if kind in _IMMUTABLE:
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "O" or levels == 0:
            return value.copy()
        copied = np.empty(value.shape, object)
        copied.flat = [snapshot(part, levels - 1) for part in value.flat]
        return copied
    if isinstance(value, np.generic | bytes | str):
        return value
    if levels == 0 or not isinstance(value, dict | list | tuple | Mapping):
        return text_of_deep(value)
    if isinstance(value, Mapping):
        parts = {key: snapshot(part, levels - 1) for key, part in value.items()}
        return parts if isinstance(value, dict) else MappingProxyType(parts)
    items = [snapshot(part, levels - 1) for part in value]
    if isinstance(value, list):
        return items
    return spaces.GraphInstance(*items) if isinstance(value, spaces.GraphInstance) else tuple(items)


def decode_description(text: str, where: str) -> Mapping[str, Any]:
    """Returns the JSON object with which a server describes an environment.

    Args:
      text: the text of the object.
      where: what it is, for error messages.

    Raises:
      ProtocolError: it is not such a text, or of another version.
    """
    value = _json(text, where)
    if not isinstance(value, Mapping) or value.get("version") != VERSION:
        raise ProtocolError(f"{where}: expected version {VERSION}, got {text[:60]}")
    return value


def _json(text: str, where: str) -> Any:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{where}: not UTF-8: {error}") from None
    containers = encoded.count(b"[") + encoded.count(b"{")
    if containers > _MAX_CONTAINERS:
        raise ProtocolError(
            f"{where}: JSON of {len(encoded)} bytes with about {containers} lists and objects; at "
            f"most {_MAX_CONTAINERS} are allowed"
        )
    return bounded_json.decode(encoded, where, _MAX_VALUES)


def to_jsonable(value: Any, levels: int = _MAX_LEVELS) -> Any:
    """Returns the JSON value of a value, for `encode` to put into a larger one."""
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if kind is float:
        return value if math.isfinite(value) else {KIND: "float", "value": str(value)}
    if kind in _SCALARS:
        return {KIND: "scalar", "dtype": _SCALARS[kind], "value": to_jsonable(value.item())}
    if isinstance(value, np.ndarray):
        return _array(value, levels)
    if isinstance(value, np.str_):
        return str(value)
    if isinstance(value, bytes):
        return {KIND: "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, np.generic):
        found = _array(np.asarray(value), levels)
        return {**found, _SCALAR: True} if isinstance(found, dict) else repr(value)
    if kind is complex:
        return {**_array(np.asarray(value), levels), _AS: "complex", _SCALAR: True}
    if levels == 0 or not isinstance(value, dict | list | tuple | Mapping):
        return text_of_deep(value)
    if isinstance(value, dict | Mapping):
        if KIND not in value and all(type(key) is str for key in value):
            return {key: to_jsonable(part, levels - 1) for key, part in value.items()}
        pairs = [
            [to_jsonable(key, levels - 1), to_jsonable(part, levels - 1)]
            for key, part in value.items()
        ]
        return {KIND: "dict", "items": pairs}
    items = [to_jsonable(part, levels - 1) for part in value]
    if isinstance(value, list):
        return items
    return {KIND: "graph" if isinstance(value, spaces.GraphInstance) else "tuple", "items": items}


def from_jsonable(value: Any, where: str) -> Any:
    """Returns the value of a JSON value; ProtocolError if `to_jsonable` does not write it."""
    if type(value) is list:
        return [from_jsonable(part, where) for part in value]
    if type(value) is not dict:
        return value
    if KIND not in value:
        return {
            key: from_jsonable(part, where) if type(part) in (dict, list) else part
            for key, part in value.items()
        }
    try:
        return _READERS[value[KIND]](value, where)
    except ProtocolError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        raise ProtocolError(f"{where}: invalid {arguments.shown(value)}: {text}") from error


def _array(array: np.ndarray[Any, Any], levels: int) -> Any:
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        return _masked_array(array, levels)
    if array.dtype.kind in _MADE_OF_NUMBERS and array.dtype.itemsize:
        numbers, name = _numbers_of(array)
        return {**_array(numbers, levels), _AS: name}
    if array.dtype.kind not in "biuf":
        if levels == 0 or array.dtype.kind not in "OU":
            return text_of_deep(array)
        items = [to_jsonable(item, levels - 1) for item in array.ravel().tolist()]
        dtype = {"dtype": "object"} if array.dtype.kind == "O" else {}
        return {KIND: "objects", **dtype, "shape": list(array.shape), "items": items}
    name, of_wire = _names_of(array.dtype)
    text = base64.b64encode(array.astype(of_wire, copy=False).tobytes()).decode()
    return {KIND: "array", "dtype": name, "shape": list(array.shape), "base64": text}


def _masked_array(array: np.ma.MaskedArray[Any, Any], levels: int) -> Any:
    # Its own conversions put the fill value in the place of what is masked.
    found = _array(np.asarray(array.data), levels)
    if not isinstance(found, dict):
        return repr(array)
    if array is np.ma.masked:
        return {**found, _MASK: True, _SCALAR: True}
    mask = False if array.mask is np.ma.nomask else to_jsonable(np.asarray(array.mask))
    return {**found, _MASK: mask, _FILL: to_jsonable(array.fill_value, levels)}


_MADE_OF_NUMBERS = "cmMS"
"""The kinds of dtypes whose elements are several numbers, or one with a meaning."""


def _numbers_of(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], str]:
    """Returns the numbers that an array of one of these dtypes is made of, and its dtype."""
    dtype = array.dtype.newbyteorder("=")
    own = np.ascontiguousarray(array, dtype).reshape(array.shape)
    if dtype.kind in "mM":
        return own.view(np.int64), dtype.name
    part = np.dtype(np.uint8) if dtype.kind == "S" else own.real.dtype
    size = dtype.itemsize // part.itemsize
    return own.reshape(-1).view(part).reshape(*array.shape, size), dtype.str.lstrip("|<>=")


def _from_numbers(numbers: np.ndarray[Any, Any], name: str) -> Any:
    """Returns the array that `_numbers_of` has taken apart."""
    dtype = np.dtype(name)
    if dtype.kind not in _MADE_OF_NUMBERS:
        raise ValueError(f"dtype {name!r} is not made of numbers")
    if dtype.kind in "mM":
        return numbers.astype(np.int64, casting="safe", copy=False).view(dtype)
    if numbers.ndim == 0 or numbers.shape[-1] * numbers.itemsize != dtype.itemsize:
        raise ValueError(f"shape {list(numbers.shape)} has no elements of dtype {name!r}")
    shape = numbers.shape[:-1]
    return np.ascontiguousarray(numbers).reshape(-1).view(dtype).reshape(shape)


@functools.lru_cache(_MOST_DTYPES)
def _names_of(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any]]:
    """The name of a dtype, and the dtype of the bytes that are sent."""
    return dtype.name, dtype.newbyteorder("<")


@functools.lru_cache(_MOST_DTYPES)
def _number_dtype(name: str) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype {name!r} is not of numbers")
    return dtype


def _read_scalar(value: Mapping[str, Any], where: str) -> Any:
    dtype = _number_dtype(value["dtype"])
    return dtype.type(from_jsonable(value["value"], where))


def _read_array(value: Mapping[str, Any], where: str) -> Any:
    dtype = _number_dtype(value["dtype"])
    data = base64.b64decode(value["base64"], validate=True)
    flat = np.frombuffer(data, _names_of(dtype)[1])
    array: Any = flat.reshape(_shape(value)).astype(dtype)
    if _AS in value:
        array = _from_numbers(array, str(value[_AS]))
    if _SCALAR in value:
        array = array[()]
        return array.item() if value.get(_AS) == "complex" else array
    return array


def _read_objects(value: Mapping[str, Any], where: str) -> Any:
    items = from_jsonable(value["items"], where)
    if "dtype" not in value and items and _fit_one_width(items):
        return np.array(items).reshape(_shape(value))
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(_shape(value))


def _fit_one_width(items: list[Any]) -> bool:
    """Whether items are texts whose array takes little more memory than they do.

    Each text of an array takes as much as the longest. Otherwise they stay objects.
    """
    if not all(isinstance(item, str) for item in items):
        return False
    sizes = [len(item) for item in items]
    return len(sizes) * max(sizes) <= 2 * sum(sizes) + _PADDING


def _shape(value: Mapping[str, Any]) -> list[int]:
    shape = [int(size) for size in value["shape"]]
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape} has a negative size")
    return shape


def _masked(read: Callable[[Mapping[str, Any], str], Any]) -> Callable[..., Any]:
    """Returns what reads an array that may be a masked one."""

    def read_masked(value: Mapping[str, Any], where: str) -> Any:
        data = read(value, where)
        if _MASK not in value:
            return data
        mask = np.asarray(from_jsonable(value[_MASK], where))
        if mask.dtype != np.bool_ or mask.shape not in ((), np.shape(data)):
            raise ValueError("the mask has another shape than the data, or is not of bools")
        if _SCALAR in value:
            return np.ma.masked
        own: Any = mask if mask.shape or mask else np.ma.nomask
        return np.ma.MaskedArray(data, own, fill_value=from_jsonable(value.get(_FILL), where))

    return read_masked


_READERS: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "float": lambda value, where: float(value["value"]),
    "scalar": _read_scalar,
    "array": _masked(_read_array),
    "objects": _masked(_read_objects),
    "bytes": lambda value, where: base64.b64decode(value["base64"], validate=True),
    "tuple": lambda value, where: tuple(from_jsonable(value["items"], where)),
    "graph": lambda value, where: spaces.GraphInstance(*from_jsonable(value["items"], where)),
    "dict": lambda value, where: dict(from_jsonable(value["items"], where)),
}
