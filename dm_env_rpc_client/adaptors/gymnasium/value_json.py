"""Type-preserving JSON for the values of Gymnasium environments. Needs `gymnasium`.

The values are infos, the options of a reset, and elements of spaces that cannot be sent as arrays,
such as Graph. Values of JSON's own types are written directly. Any other value is written as an
object whose key `$` specifies the kind of the value:

| value | `$` | further keys |
| --- | --- | --- |
| NaN, infinities | `float` | `value`, which is "nan", "inf" or "-inf" |
| NumPy scalar | `scalar` | `dtype`, such as "float64", and `value` |
| array of numbers | `array` | `dtype`, `shape` and `base64`: the elements, little-endian |
| complex, date, time span, NumPy bytes | `array` | their numbers; `as`: their dtype |
| masked array | `array`, `objects` | its data; `mask`, an array; `fill_value` |
| other array | `objects` | `shape` and `items`; `dtype` "object" if they are not all strings |
| array of another library | `array` | as for NumPy arrays |
| array moved to another observation | `block` | `dtype`, `shape`, and `at`: its first byte |
| bytes | `bytes` | `base64` |
| tuple, set, frozenset | `tuple`, `set`, `frozenset` | `items` |
| Python date or time | `date`, `datetime`, `timedelta` | `items`: the arguments of the type |
| element of a Graph | `graph` | `items`: nodes, edges, edge links |
| mapping with keys other than strings, or with the key `$` | `dict` | `items`: pairs |

A single value also has `scalar` set to true, which distinguishes it from an array of shape (). An
instance of a subclass of int, float, complex, str or bytes, such as a member of an IntEnum, is
written as a value of that base class.

A value of any other type (including a datetime with a time zone and a set with members that arrive
as a type without a hash), or a value more than eight levels deep, has no form in JSON. If an
environment returned the value, it is replaced by its `repr`, and logged once for each key. If a
caller passed the value, SpecError is raised instead. A value that contains itself is rejected.

Additional keys, which older readers ignore, distinguish similar types. The key `char` is the type
code of a scalar, since int64 and long long share a dtype name. The key `order` is ">" for
big-endian numbers. The key `as` is the dtype of an array of strings or of `bytes`. For older
readers, a NumPy string is written as a plain string. For readers that request exact types, it is
an object with `$` set to `str` and the string as `value`.
"""

from __future__ import annotations

import base64
import datetime
import functools
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from dm_env_rpc_client import arguments
from dm_env_rpc_client.adaptors.gymnasium.unsent import Where, replaced
from dm_env_rpc_client.errors import ProtocolError, SpecError
from dm_env_rpc_client.tensors import array_kinds, bounded_parsing

VERSION = 1
"""The version of the format of environment descriptions."""

INFO_LEVELS = 7
"""The number of levels of a nested info that are transferred. An object around the info adds one
level."""

KIND = "$"

# Readers without support for these keys read the numbers, and the data below a mask.
_AS, _SCALAR, _MASK, _FILL = "as", "scalar", "mask", "fill_value"
_CHAR, _ORDER = "char", "order"

_MAX_VALUES = 1 << 20

_MAX_CONTAINERS = 1 << 18
"""The maximum number of lists and objects in one JSON string. Even an empty list or object takes 70
bytes, and its parsed JSON takes another 70 bytes."""

_MOST_DTYPES = 64
"""The maximum number of cached dtypes whose names were sent by a peer."""

_JSON_TYPES = frozenset((type(None), bool, int, str))

_DATE = ("year", "month", "day")
_DATES: Mapping[type, tuple[str, ...]] = {
    datetime.date: _DATE,
    datetime.datetime: (*_DATE, "hour", "minute", "second", "microsecond"),
    datetime.timedelta: ("days", "seconds", "microseconds"),
}

_CONTAINERS = (dict, list, tuple, Mapping, set, frozenset)


_SCALARS: dict[type, dict[str, str]] = {
    dtype.type: {
        KIND: "scalar",
        "dtype": dtype.name,
        # Added where two types share a name, such as long and long long.
        **({} if np.dtype(dtype.name).type is dtype.type else {_CHAR: dtype.char}),
    }
    for dtype in map(np.dtype, np.typecodes["All"])
    if dtype.kind in "biuf" and dtype.itemsize <= 8
}
"""For each NumPy scalar type of at most eight bytes, the JSON object without its value."""

_IMMUTABLE = frozenset((*_JSON_TYPES, float, bytes, complex, *_SCALARS))

_PLAIN: Sequence[tuple[type, Callable[[Any], Any]]] = (
    (np.generic, lambda value: np.asarray(value)[()]),
    (str, str.__str__),
    (bytes, lambda value: bytes(memoryview(value))),
    (int, int.__pos__),
    (float, float.__pos__),
    (complex, complex.__pos__),
)
"""Conversions of instances of subclasses to plain values, without the methods of the subclasses.

Their classes may not exist, or fail, in the process that receives them."""

_BLOCK_BYTES = 1024
"""The minimum size, in bytes, of an array that is moved to another observation."""

_PADDING = 64
"""The number of padding characters that are allowed in any array of strings."""

_MAX_LEVELS = INFO_LEVELS + 1
"""The maximum depth of a nested value. Each level of a value takes up to three of the 32 levels
that are allowed in JSON."""


def encode(value: Any, is_exact: bool = False, where: Where = "a value") -> str:
    """Convert a value to JSON as in the table above.

    Args:
      value: the value.
      is_exact: whether the reader supports NumPy strings.
      where: the name of the value in error messages and in the log.

    Raises:
      SpecError: the value contains itself; or `where` is `Given`, and the value has a part without
        a form in JSON.
    """
    return text_of(to_jsonable(value, is_exact=is_exact, where=where))


def text_of(jsonable: Any) -> str:
    """Convert a JSON value to a string."""
    return bounded_parsing.encode(jsonable, "a value").decode("ascii")


def encode_extras(extras: Mapping[str, Any], is_exact: bool = False) -> str:
    """Convert the infos of an environment to a JSON string, or to "" if there are none.

    Args:
      extras: the infos.
      is_exact: as for `encode`.

    Raises:
      RuntimeError: an info contains itself.
    """
    try:
        return encode(extras, is_exact, "") if extras else ""
    except SpecError as error:
        raise RuntimeError(
            f"the environment returned an info that cannot be sent: {error}"
        ) from error


class _Block(NamedTuple):
    """A placeholder for an array that was moved to another observation."""

    jsonable: dict[str, Any]


def moved(value: Any, blocks: list[bytes]) -> Any:
    """Replace the large arrays in infos with placeholders, and append their bytes to `blocks`."""
    if type(value) is dict:
        return {key: moved(part, blocks) for key, part in value.items()}
    if (
        type(value) is not np.ndarray
        or value.nbytes < _BLOCK_BYTES
        or value.dtype.kind not in "biuf"
    ):
        return value
    found, of_wire = _form_of(value.dtype)
    at = sum(map(len, blocks))
    blocks.append(value.astype(of_wire, copy=False).tobytes())
    return _Block({**found, KIND: "block", "shape": list(value.shape), "at": at})


def placed(value: Any, arrays: np.ndarray[Any, Any], where: str) -> Any:
    """Put moved arrays back into infos, or raise ProtocolError if an array is missing."""
    if type(value) is dict:
        return {key: placed(part, arrays, where) for key, part in value.items()}
    if type(value) is not _Block:
        return value
    own = value.jsonable
    try:
        dtype = _number_dtype(own["dtype"], own.get(_ORDER, "="))
        size = math.prod(_shape(own)) * dtype.itemsize
        flat = np.frombuffer(arrays[own["at"] :][:size].tobytes(), dtype.newbyteorder("<"))
        return flat.reshape(_shape(own)).astype(dtype)
    except Exception as error:
        text = f"{where}: invalid {arguments.shown(own)}: {arguments.cause(error)}"
        raise ProtocolError(text) from error


def decode(text: str, where: str) -> Any:
    """Decode the value in a JSON string.

    Args:
      text: the result of `encode`.
      where: the name of the text in error messages.

    Raises:
      ProtocolError: the text is invalid.
    """
    return from_jsonable(_json(text, where), where)


def snapshot(value: Any, levels: int = _MAX_LEVELS, where: Where = "info") -> Any:
    """Copy a value, so that `encode` can later send it as it is now.

    Environments can keep an info, or its arrays, and change them in a later step.

    Args:
      value: a value.
      levels: the maximum number of nested levels to transfer.
      where: as for `encode`.
    """
    kind = type(value)
    if kind is dict and levels:  # Fast path for most infos, without a call for most parts.
        # For the few values of most infos a loop takes half as long as `all` or a set's
        # `issuperset`; see `tests.benchmarks.versions --only "RemoteVectorEnv of 64"`.
        for part in value.values():
            if type(part) not in _IMMUTABLE:
                break
        else:
            return value.copy()
        copied: Any = {}
        for key, part in value.items():
            of_part = type(part)
            is_plain = of_part in _IMMUTABLE
            if not is_plain and of_part is np.ndarray and part.dtype.kind != "O":
                copied[key] = part.copy()
            else:
                copied[key] = part if is_plain else snapshot(part, levels - 1, (where, key))
        return copied
    if kind in _IMMUTABLE:
        return value
    if isinstance(value, np.ndarray):
        if value.dtype.kind != "O" or levels == 0:
            return value.copy()
        if isinstance(value, np.ma.MaskedArray):
            data = snapshot(np.asarray(value.data), levels, where)
            mask = value.mask if value.mask is np.ma.nomask else value.mask.copy()
            return np.ma.MaskedArray(data, mask, fill_value=value.fill_value)
        # One by one, because NumPy would spread lists and arrays over several elements.
        copied = np.empty(value.size, object)
        for index, part in enumerate(value.flat):
            copied[index] = snapshot(part, levels - 1, (where, index))
        return copied.reshape(value.shape)
    for base, plain in _PLAIN:
        if isinstance(value, base):
            return plain(value)
    if _is_date(value):
        return value
    if levels == 0 or not isinstance(value, _CONTAINERS):
        own = _as_numpy(value)
        if own is value:
            return replaced(value, where, is_deep=isinstance(value, _CONTAINERS))
        return snapshot(own, levels, where)
    if isinstance(value, Mapping):
        parts = {key: snapshot(part, levels - 1, (where, key)) for key, part in value.items()}
        return parts if isinstance(value, dict) else MappingProxyType(parts)
    if isinstance(value, set | frozenset):
        # A member can arrive as a type without a hash: a tensor, for instance, as an array.
        try:
            members = {snapshot(part, levels - 1, (where, part)) for part in value}
        except TypeError:
            return replaced(value, where)
        return members if isinstance(value, set) else frozenset(members)
    items = [snapshot(part, levels - 1, (where, index)) for index, part in enumerate(value)]
    if isinstance(value, list):
        return items
    return spaces.GraphInstance(*items) if isinstance(value, spaces.GraphInstance) else tuple(items)


def decode_description(text: str, where: str) -> Mapping[str, Any]:
    """Decode a server's description of an environment.

    Args:
      text: the JSON text.
      where: the name of the text in error messages.

    Raises:
      ProtocolError: the text is invalid or has an unsupported version.
    """
    value = _json(text, where)
    if not isinstance(value, Mapping) or value.get("version") != VERSION:
        raise ProtocolError(
            f"{where}: expected a JSON object with version {VERSION}, got {text[:60]}"
        )
    return value


def _json(text: str, where: str) -> Any:
    try:
        encoded = text.encode()
    except UnicodeEncodeError as error:
        raise ProtocolError(f"{where}: not UTF-8: {error}") from None
    containers = encoded.count(b"[") + encoded.count(b"{")
    if containers > _MAX_CONTAINERS:
        raise ProtocolError(
            f"{where}: the JSON of {len(encoded)} bytes contains about {containers} lists and "
            f"objects; at most {_MAX_CONTAINERS} are allowed"
        )
    return bounded_parsing.decode(encoded, where, _MAX_VALUES)


def to_jsonable(
    value: Any, levels: int = _MAX_LEVELS, is_exact: bool = False, where: Where = "a value"
) -> Any:
    """Convert a value to a JSON value, for use inside a larger one.

    Args:
      value: the value.
      levels: the maximum number of nested levels to transfer.
      is_exact: as for `encode`.
      where: as for `encode`.

    Raises:
      As `encode`.
    """
    kind = type(value)
    if kind in _JSON_TYPES:
        return value
    if kind is float:
        return value if math.isfinite(value) else {KIND: "float", "value": str(value)}
    if kind in _SCALARS:
        return {**_SCALARS[kind], "value": to_jsonable(value.item())}
    if isinstance(value, np.ndarray):
        return _array(value, levels, is_exact, where)
    if isinstance(value, np.str_):
        return {KIND: "str", "value": str(value)} if is_exact else str(value)
    if isinstance(value, bytes):
        found = {KIND: "bytes", "base64": base64.b64encode(value).decode()}
        return {**found, _AS: "S"} if isinstance(value, np.bytes_) else found
    if isinstance(value, np.generic):
        found = _array(np.asarray(value), levels, is_exact, where)
        return {**found, _SCALAR: True} if isinstance(found, dict) else repr(value)
    if kind is complex:
        return {**_array(np.asarray(value), levels, is_exact, where), _AS: "complex", _SCALAR: True}
    if kind is _Block:
        return value.jsonable
    for base, plain in _PLAIN:
        if isinstance(value, base):
            return to_jsonable(plain(value), levels, is_exact, where)
    if _is_date(value):
        return {KIND: kind.__name__, "items": [getattr(value, name) for name in _DATES[kind]]}
    if levels == 0 or not isinstance(value, _CONTAINERS):
        own = _as_numpy(value)
        if own is value:
            return replaced(value, where, is_deep=isinstance(value, _CONTAINERS))
        return to_jsonable(own, levels, is_exact, where)
    if isinstance(value, dict | Mapping):
        if KIND not in value and all(type(key) is str for key in value):
            return {
                key: part
                if type(part) in _JSON_TYPES
                else to_jsonable(part, levels - 1, is_exact, (where, key))
                for key, part in value.items()
            }
        pairs = [
            [to_jsonable(part, levels - 1, is_exact, (where, pair[0])) for part in pair]
            for pair in value.items()
        ]
        return {KIND: "dict", "items": pairs}
    if isinstance(value, set | frozenset):
        value = snapshot(value, levels, where)
        if isinstance(value, str):
            return value
    items = [
        part
        if type(part) in _JSON_TYPES
        else to_jsonable(part, levels - 1, is_exact, (where, index))
        for index, part in enumerate(value)
    ]
    if isinstance(value, list):
        return items
    if isinstance(value, set | frozenset):
        return {KIND: type(value).__name__, "items": items}
    return {KIND: "graph" if isinstance(value, spaces.GraphInstance) else "tuple", "items": items}


def _is_date(value: Any) -> bool:
    # Not of a subclass: a Timestamp of pandas would lose its nanoseconds.
    return type(value) in _DATES and getattr(value, "tzinfo", None) is None


def _as_numpy(value: Any) -> Any:
    """Convert another library's array to NumPy; return it unchanged if NumPy lacks its dtype."""
    try:
        return array_kinds.to_numpy(value, "an info")
    except SpecError:
        return value


def from_jsonable(value: Any, where: str) -> Any:
    """Decode a JSON value, or raise ProtocolError if it is invalid."""
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
        text = arguments.cause(error)
        raise ProtocolError(f"{where}: invalid {arguments.shown(value)}: {text}") from error


def _array(array: np.ndarray[Any, Any], levels: int, is_exact: bool, where: Where) -> Any:
    if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
        return _masked_array(array, levels, is_exact, where)
    if array.dtype.kind in _MADE_OF_NUMBERS and array.dtype.itemsize:
        numbers, name = _numbers_of(array)
        return {**_array(numbers, levels, is_exact, where), _AS: name}
    if array.dtype.kind not in "biuf":
        if levels == 0 or array.dtype.kind not in "OU":
            return replaced(array, where, is_deep=array.dtype.kind in "OU")
        is_text = array.dtype.kind == "U"
        items = [
            to_jsonable(item, levels - 1, is_exact, (where, index))
            for index, item in enumerate(array.ravel().tolist())
        ]
        dtype = {_AS: array.dtype.str.lstrip("<>=")} if is_text else {"dtype": "object"}
        return {KIND: "objects", **dtype, "shape": list(array.shape), "items": items}
    found, of_wire = _form_of(array.dtype)
    text = base64.b64encode(array.astype(of_wire, copy=False).tobytes()).decode()
    return {**found, "shape": list(array.shape), "base64": text}


def _masked_array(
    array: np.ma.MaskedArray[Any, Any], levels: int, is_exact: bool, where: Where
) -> Any:
    # NumPy's own conversions would replace masked values by the fill value.
    found = _array(np.asarray(array.data), levels, is_exact, where)
    if not isinstance(found, dict):
        return repr(array)
    if array is np.ma.masked:
        return {**found, _MASK: True, _SCALAR: True}
    mask = False if array.mask is np.ma.nomask else to_jsonable(np.asarray(array.mask))
    return {**found, _MASK: mask, _FILL: to_jsonable(array.fill_value, levels, is_exact, where)}


_MADE_OF_NUMBERS = "cmMS"
"""The kinds of dtypes whose elements consist of several numbers, or of a number with a unit."""


def _numbers_of(array: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], str]:
    """Return the numbers that make up an array of a composite dtype, and the dtype's name."""
    dtype = array.dtype.newbyteorder("=")
    own = np.ascontiguousarray(array, dtype).reshape(array.shape)
    if dtype.kind in "mM":
        return own.view(np.int64), dtype.name
    part = np.dtype(np.uint8) if dtype.kind == "S" else own.real.dtype
    size = dtype.itemsize // part.itemsize
    return own.reshape(-1).view(part).reshape(*array.shape, size), dtype.str.lstrip("|<>=")


def _from_numbers(numbers: np.ndarray[Any, Any], name: str) -> Any:
    """Rebuild an array from the numbers and the dtype name that `_numbers_of` returned."""
    dtype = np.dtype(name)
    if dtype.kind not in _MADE_OF_NUMBERS:
        raise ValueError(
            f"expected a complex, datetime64, timedelta64 or bytes dtype, got {name!r}"
        )
    if dtype.kind in "mM":
        if numbers.dtype != np.int64:  # Smaller numbers would expand beyond what was sent.
            raise ValueError(f"expected int64 numbers for dtype {name!r}, got {numbers.dtype}")
        return numbers.view(dtype)
    if numbers.ndim == 0 or numbers.shape[-1] * numbers.itemsize != dtype.itemsize:
        raise ValueError(f"numbers of shape {list(numbers.shape)} cannot form a {name!r} array")
    shape = numbers.shape[:-1]
    return np.ascontiguousarray(numbers).reshape(-1).view(dtype).reshape(shape)


@functools.lru_cache(_MOST_DTYPES)
def _form_of(dtype: np.dtype[Any]) -> tuple[dict[str, str], np.dtype[Any]]:
    """Return an array's JSON without shape or data, and the dtype of the bytes that are sent."""
    order = {} if dtype.isnative else {_ORDER: ">" if sys.byteorder == "little" else "<"}
    return {KIND: "array", "dtype": dtype.name, **order}, dtype.newbyteorder("<")


@functools.lru_cache(_MOST_DTYPES)
def _number_dtype(name: str, order: Any = "=") -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(name)
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype {name!r} is not numeric")
    ordered: np.dtype[Any] = dtype.newbyteorder(order)
    return ordered


def _read_scalar(value: Mapping[str, Any], where: str) -> Any:
    dtype = _number_dtype(value["dtype"])
    number = from_jsonable(value["value"], where)
    # On another platform, this code may denote a type of another size.
    own = _number_dtype(value.get(_CHAR, value["dtype"]))
    return (own if own == dtype else dtype).type(number)


def _read_array(value: Mapping[str, Any], where: str) -> Any:
    dtype = _number_dtype(value["dtype"], value.get(_ORDER, "="))
    data = base64.b64decode(value["base64"], validate=True)
    flat = np.frombuffer(data, dtype.newbyteorder("<"))
    array: Any = flat.reshape(_shape(value)).astype(dtype)
    if _AS in value:
        array = _from_numbers(array, str(value[_AS]))
    if _SCALAR in value:
        array = array[()]
        return array.item() if value.get(_AS) == "complex" else array
    return array


def _read_bytes(value: Mapping[str, Any], where: str) -> bytes:
    data = base64.b64decode(value["base64"], validate=True)
    return np.bytes_(data) if value.get(_AS) == "S" else data


def _read_objects(value: Mapping[str, Any], where: str) -> Any:
    items = from_jsonable(value["items"], where)
    if "dtype" not in value and (items or _AS in value):
        width = _width(value[_AS]) if _AS in value else 0
        if _fit_one_width(items, width):
            return np.array(items, f"U{width}" if width else np.str_).reshape(_shape(value))
        if _fit_one_width(items, 0):
            return np.array(items, np.str_).reshape(_shape(value))
    array = np.empty(len(items), object)
    for index, item in enumerate(items):  # One by one; see `snapshot`.
        array[index] = item
    return array.reshape(_shape(value))


def _date_reader(kind: type) -> Callable[[Mapping[str, Any], str], Any]:
    return lambda value, where: kind(*value["items"])


def _width(dtype: Any) -> int:
    """Return the length of a string dtype such as U5, in characters."""
    if not isinstance(dtype, str) or dtype[:1] != "U" or not dtype[1:].isdecimal():
        raise ValueError(f"dtype {dtype!r} is not a string dtype")
    return int(dtype[1:])


def _fit_one_width(items: list[Any], width: int) -> bool:
    """Whether an array of strings takes little more memory than the strings that it contains.

    Each element of such an array takes as much memory as the longest element. If this would waste
    memory, the strings remain in an array of objects.

    Args:
      items: the items.
      width: the width of an element, in characters; 0 for the length of the longest item.
    """
    if not all(isinstance(item, str) for item in items):
        return False
    sizes = [len(item) for item in items]
    return len(sizes) * (width or max(sizes, default=0)) <= 2 * sum(sizes) + _PADDING


def _shape(value: Mapping[str, Any]) -> list[int]:
    shape = [int(size) for size in value["shape"]]
    if any(size < 0 for size in shape):
        raise ValueError(f"shape {shape} has a negative size")
    return shape


def _masked(read: Callable[[Mapping[str, Any], str], Any]) -> Callable[..., Any]:
    """Extend `read`, a function that reads plain arrays, to masked arrays."""

    def read_masked(value: Mapping[str, Any], where: str) -> Any:
        data = read(value, where)
        if _MASK not in value:
            return data
        mask = np.asarray(from_jsonable(value[_MASK], where))
        if mask.dtype != np.bool_ or mask.shape not in ((), np.shape(data)):
            raise ValueError("the mask must be boolean and have the shape of the data")
        if _SCALAR in value:
            return np.ma.masked
        own: Any = mask if mask.shape or mask else np.ma.nomask
        return np.ma.MaskedArray(data, own, fill_value=from_jsonable(value.get(_FILL), where))

    return read_masked


_READERS: dict[str, Callable[[Mapping[str, Any], str], Any]] = {
    "float": lambda value, where: float(value["value"]),
    "scalar": _read_scalar,
    "array": _masked(_read_array),
    "block": lambda value, where: _Block(dict(value)),
    "objects": _masked(_read_objects),
    "bytes": _read_bytes,
    "str": lambda value, where: np.str_(value["value"]),
    "tuple": lambda value, where: tuple(from_jsonable(value["items"], where)),
    "graph": lambda value, where: spaces.GraphInstance(*from_jsonable(value["items"], where)),
    "dict": lambda value, where: dict(from_jsonable(value["items"], where)),
    "set": lambda value, where: set(from_jsonable(value["items"], where)),
    "frozenset": lambda value, where: frozenset(from_jsonable(value["items"], where)),
    **{kind.__name__: _date_reader(kind) for kind in _DATES},
}
