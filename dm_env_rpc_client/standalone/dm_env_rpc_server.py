"""A server of the protocol dm_env_rpc in one file, for CPython 3.6 to 3.14 and NumPy 1.13 or later.

It serves an environment where the package dm-env-rpc-client cannot be installed: beside an old
simulator, in its conda environment or container. Copy the file there. Licence: Apache-2.0.

    python dm_env_rpc_server.py my_module:make_environment --address localhost:50051

or, in a program: `with serve(make_environment, "unix:/tmp/socket") as server: server.wait()`.

`make_environment` is called for each world, with the settings of the client as keyword arguments.
It returns an object with the methods of `dm_env.Environment` (dm_env need not be installed: `Array`,
`BoundedArray`, `StringArray` and `TimeStep` below will do), or an environment of gym or Gymnasium of
any age, whose spaces, infos and frames a client finds in properties. An environment may have an
attribute `properties`: {key: getter or (getter, setter)}.

From top to bottom: protobuf's bytes, tensors and specs, nested values, Gymnasium, worlds, the
requests of a stream, HPACK (RFC 7541), HTTP/2 (RFC 9113), the server. Each connection has a thread,
which reads a request, steps the environment and writes the answer.
"""

import argparse
import base64
import collections
import collections.abc
import contextlib
import hmac
import importlib
import inspect
import ipaddress
import itertools
import json
import logging
import math
import os
import re
import select
import signal
import socket
import ssl
import stat
import struct
import sys
import threading
import time
import traceback
import urllib.parse
from typing import Any, Callable, Deque, Dict, Iterator, List, Mapping, Optional, Set, Tuple

try:
    import numpy as np
except ImportError as error:
    found = ".".join(map(str, sys.version_info[:3]))
    raise ImportError(
        f"Python {found} at {sys.executable} has no NumPy, which this server needs"
    ) from error

__version__ = "0.1.0"
__all__ = [
    "Array",
    "BoundedArray",
    "Message",
    "Refusal",
    "Server",
    "StringArray",
    "TimeStep",
    "serve",
]

_log = logging.getLogger("dm_env_rpc_server")

# What one message may hold; it takes at most about 4 times its size plus 64 MiB of memory.
MAX_MESSAGE_BYTES = 128 << 20
LIMITS = {"expanded bytes": 24 << 20, "strings": 1 << 19, "entries": 10_000, "fields": 1 << 18}
MAX_NAME_BYTES, MAX_LEVELS, MAX_DIMENSIONS, MAX_ERROR_BYTES = 4096, 64, 32, 1 << 16
MAX_HELD_BYTES, MAX_WORLDS = 256 << 20, 1024  # Of the settings of all worlds together.

# Codes of google.rpc.Code and of gRPC.
CANCELLED, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 1, 3, 5, 7, 8
FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, UNAUTHENTICATED = 9, 12, 13, 14, 16


class Refusal(Exception):
    """A request is refused; the client gets the code and the text. Environments may raise it."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class _StreamError(Refusal):
    """A stream ends with a gRPC status."""


class _Malformed(Exception):
    """Bytes are not a message."""


# Protobuf's bytes: a message is fields, a field is a tag (number << 3 | wire type) and a value.


class _Budget:
    """What is left of the limits for one message."""

    def __init__(self) -> None:
        self.left = dict(LIMITS)

    def take(self, what: str, count: int = 1) -> None:
        self.left[what] -= count
        if self.left[what] < 0:
            text = f"the message asks for too much: more than {LIMITS[what]} {what}"
            raise Refusal(RESOURCE_EXHAUSTED, text)


_ONE_BYTE = [bytes([number]) for number in range(0x80)]


def _varint(number: int) -> bytes:
    if 0 <= number < 0x80:
        return _ONE_BYTE[number]
    number &= (1 << 64) - 1  # Negative ones take ten bytes.
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(encoded) + _ONE_BYTE[number]


def _read_varint(data: Any, at: int) -> Tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, at
    raise _Malformed("a number of more than ten bytes")


def _fields(data: Any, budget: _Budget) -> Iterator[Tuple[int, Any]]:
    """Yields tag and value of each field: a number for wire type 0, otherwise its bytes."""
    at, end, left = 0, len(data), budget.left
    try:
        while at < end:
            left["fields"] -= 1
            if left["fields"] < 0:
                budget.take("fields", 0)
            tag = data[at]
            at += 1
            if tag > 0x7F:
                tag, at = _read_varint(data, at - 1)
            kind = tag & 7
            if kind == 2:
                size = data[at]
                at += 1
                if size > 0x7F:
                    size, at = _read_varint(data, at - 1)
            elif kind == 0:
                value, at = _read_varint(data, at)
                yield tag, value
                continue
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            if tag < 8 or tag >> 32 or kind in (3, 4, 6, 7):
                raise _Malformed(f"a field with the tag {tag}")
            at += size
            if at > end:
                raise _Malformed("a field is longer than its message")
            yield tag, data[at - size : at]
    except IndexError:
        raise _Malformed("a field is not whole") from None


def _field(number: int, contents: bytes) -> bytes:
    """Returns a field of bytes, a text or a message."""
    return _varint(number << 3 | 2) + _varint(len(contents)) + contents


def _parts(data: Any, budget: _Budget, *tags: int) -> List[bytes]:
    """Returns fields of bytes by tag; what is there several times is one message."""
    found: Dict[int, Any] = dict.fromkeys(tags, b"")
    for tag, value in _fields(data, budget):
        if tag in found:
            found[tag] = b"".join([found[tag], value]) if found[tag] else value
    return [found[tag] for tag in tags]


def _text(data: Any) -> str:
    try:
        return str(bytes(data), "utf-8")
    except UnicodeDecodeError as error:
        raise _Malformed(str(error)) from None


def _read_varints(block: Any, budget: _Budget) -> Any:
    """Returns the numbers of a packed field as an array of uint64."""
    if len(block) < 32:
        found, at = [], 0
        try:
            while at < len(block):
                number, at = _read_varint(block, at)
                found.append(number)
        except IndexError:
            raise _Malformed("the last number is not whole") from None
        return np.array(found, np.uint64)
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if not len(ends) or ends[-1] != len(data) - 1:
        raise _Malformed("the last number is not whole")
    budget.take("expanded bytes", max(0, 16 * len(ends) - len(data)))
    numbers = np.zeros(len(ends), np.uint64)
    for first in range(0, len(ends), 1 << 16):  # So that what is computed takes little memory.
        some = numbers[first : first + (1 << 16)]
        stops = ends[first : first + (1 << 16)] + 1
        starts = np.concatenate([[ends[first - 1] + 1 if first else 0], stops[:-1]])
        most = int((stops - starts).max())
        if most > 10:
            raise _Malformed("a number of more than ten bytes")
        for index in range(most):
            there = starts + index < stops
            digits = (data[starts[there] + index] & 0x7F).astype(np.uint64)
            some[there] |= digits << np.uint64(7 * index)
    return numbers


_SHIFTS = np.arange(0, 70, 7).astype(np.uint64)


def _write_varints(array: Any) -> bytes:
    flat = array.ravel()
    if flat.size < 16:
        return b"".join(map(_varint, flat.tolist()))
    numbers = flat if flat.dtype == np.uint64 else flat.astype(np.int64).view(np.uint64)
    written = []
    for first in range(0, numbers.size, 1 << 16):
        rest = numbers[first : first + (1 << 16), None] >> _SHIFTS
        digits = (rest & np.uint64(0x7F)).astype(np.uint8)
        digits[:, :9] |= (rest[:, 1:] > 0).astype(np.uint8) << np.uint8(7)
        rest[:, 0] = 1  # The first digit is there in any case.
        written.append(digits[rest > 0].tobytes())
    return b"".join(written)


# Tensors. The number of a data type is its DataType and that of its field in Tensor.

_FLOAT, _DOUBLE, _INT8, _INT32, _INT64, _UINT8, _UINT32, _UINT64, _BOOL, _STRING, _PROTO = range(
    1, 12
)
_DTYPES = dict(enumerate(map(np.dtype, "f4 f8 i1 i4 i8 u1 u4 u8 ? O O".split()), start=1))
_KINDS = {_DTYPES[kind]: kind for kind in range(_FLOAT, _STRING)}
_WIDER = {np.dtype(a): np.dtype(b) for a, b in (("f2", "f4"), ("i2", "i4"), ("u2", "u4"))}
_BLOCKS = (_FLOAT, _DOUBLE, _INT8, _UINT8)  # Whose elements on the wire are those in memory.
_SINGLE = {_FLOAT: 1 << 3 | 5, _DOUBLE: 1 << 3 | 1}  # Tags of elements that are not packed.

Message = collections.namedtuple("Message", "type_url value")
Message.__doc__ = "A protobuf message of any type: an element of a tensor of dtype PROTO."


def _name_of(kind: int) -> str:
    return str({_STRING: "string", _PROTO: "proto"}.get(kind, _DTYPES[kind].name))


def _product(sizes: Any) -> int:
    total = 1
    for size in sizes:
        total *= int(size)
    return total


def _read_tensor(data: Any, budget: _Budget, where: str) -> Tuple[int, Any]:
    """Returns a data type, and an array or, without a shape, the one element."""
    kind, payload, shape = 0, [], []  # type: Tuple[int, List[Any], List[int]]
    for tag, value in _fields(data, budget):
        if tag == 15 << 3 | 2:
            shape += _read_varints(value, budget).astype(np.int32).tolist()
        elif tag == 15 << 3:
            shape += np.array([value], np.uint64).astype(np.int32).tolist()
        elif tag & 7 == 2 and tag >> 3 <= _PROTO:
            # The last one holds; several of the same are one message.
            payload = [*payload, value] if tag >> 3 == kind else [value]
            kind = tag >> 3
        if len(shape) > MAX_DIMENSIONS:
            raise Refusal(INVALID_ARGUMENT, f"{where}: more than {MAX_DIMENSIONS} dimensions")
    if not kind:
        raise Refusal(INVALID_ARGUMENT, f"{where}: the tensor has no payload")
    flat = _read_payload(kind, payload[0] if len(payload) == 1 else b"".join(payload), budget)
    if shape:
        return kind, _shaped(flat, shape, budget, where)
    if len(flat) != 1:
        text = f"{where}: a scalar must have one element, got {len(flat)}"
        raise Refusal(INVALID_ARGUMENT, text)
    return kind, flat[0]


def _read_payload(kind: int, payload: Any, budget: _Budget) -> Any:
    blocks: List[Any] = []
    single = _SINGLE.get(kind, 1 << 3)
    for tag, value in _fields(payload, budget):
        if tag == 10:
            if kind in (_INT8, _UINT8):
                blocks.clear()  # Not repeated: the last one holds.
            elif kind >= _STRING:
                budget.left["fields"] += kind == _STRING
                budget.take("strings", 1 if kind == _STRING else 8)
            blocks.append(value)
        elif tag == single and kind not in (_INT8, _UINT8, _STRING, _PROTO):
            blocks.append(_varint(value) if single == 8 else value)
    if kind >= _STRING:
        elements = np.empty(len(blocks), object)
        for index, block in enumerate(blocks):
            if kind == _STRING:
                elements[index] = _text(block)
            else:
                url, contents = _parts(block, budget, 10, 18)
                elements[index] = Message(_text(url), bytes(contents))
        return elements
    block = blocks[0] if len(blocks) == 1 else b"".join(blocks)
    dtype = _DTYPES[kind]
    if kind not in _BLOCKS:
        numbers = _read_varints(block, budget)
        return numbers != 0 if kind == _BOOL else numbers.astype(dtype)
    if len(block) % dtype.itemsize:
        raise _Malformed("the last element is not whole")
    return np.frombuffer(block, dtype.newbyteorder("<")).astype(dtype)


def _shaped(flat: Any, sizes: List[int], budget: _Budget, where: str) -> Any:
    """Returns elements in a shape; one size may be negative, and one element fills all."""
    shape, count = list(sizes), len(flat)
    variable = [axis for axis, size in enumerate(shape) if size < 0]
    for axis in variable[:1]:
        shape[axis] = 1
        if count != 1 and _product(shape) > 0:
            shape[axis] = count // _product(shape)
    total = _product(shape)
    if len(variable) > 1 or count not in (1, total) or _product(max(n, 1) for n in shape) >> 31:
        text = f"{where}: shape {sizes} takes {total} elements (or one for all), got {count}"
        raise Refusal(INVALID_ARGUMENT, text)
    if count == 1 and total != 1:
        each = len(flat[0]) + 64 if flat.dtype == object else flat.itemsize
        budget.take("expanded bytes", total * each)
        flat = np.repeat(flat, total)
    return flat.reshape(shape)


def _write_block(kind: int, array: Any) -> bytes:
    """Returns the elements of an array of numbers as the contents of their packed field."""
    if kind in _BLOCKS:
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return bytes(array.tobytes() if kind in _BLOCKS or kind == _BOOL else _write_varints(array))


def _write_payload(kind: int, array: Any) -> bytes:
    if kind == _STRING:
        return b"".join(_field(1, text.encode("utf-8")) for text in array.flat)
    if kind == _PROTO:
        messages = (_field(1, url.encode()) + _field(2, value) for url, value in array.flat)
        return b"".join(_field(1, message) for message in messages)
    return _field(1, _write_block(kind, array)) if array.size else b""


def _write_shape(number: int, shape: Any) -> bytes:
    return _field(number, b"".join(map(_varint, shape))) if len(shape) else b""


def _write_tensor(kind: int, array: Any) -> bytes:
    return _field(kind, _write_payload(kind, array)) + _write_shape(15, array.shape)


def _as_array(value: Any) -> Any:
    """Returns a value as an array of a dtype of the protocol; strings and messages as objects."""
    if isinstance(value, Message):
        array = np.empty(1, object)
        array[0] = value
        return array.reshape(())
    array = np.asarray(value)
    if array.dtype.kind == "U":
        return array.astype(object)
    native = array.dtype.newbyteorder("=")
    return array.astype(_WIDER.get(native, native), copy=False)


def _kind_of(array: Any, where: str) -> int:
    """Returns the data type of an array that `_as_array` returned, or of a spec."""
    dtype = array.dtype
    if dtype.kind == "O" and not isinstance(array, np.ndarray):
        return _STRING if getattr(array, "string_type", None) is str else _PROTO
    if dtype.kind in "OU":
        return _STRING if dtype.kind == "U" or isinstance(array.flat[0], str) else _PROTO
    native = dtype.newbyteorder("=")
    kind = _KINDS.get(_WIDER.get(native, native))
    if kind is None:
        raise RuntimeError(f"{where}: the protocol has no type for dtype {dtype}")
    return kind


def _exact(array: Any, dtype: Any, where: str) -> Any:
    """Casts an array without changing an element; from float to float it may be rounded."""
    if array.dtype == dtype or not array.size:
        return array.astype(dtype, copy=False)
    source, target = array.dtype.kind, dtype.kind
    if source not in "biuf" or target not in "biuf":
        raise ValueError(f"{where}: has dtype {array.dtype}; expected {dtype}")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        if target == "f" and source == "f":
            same = np.isfinite(cast) | ~np.isfinite(array)
        elif target in "iu" and source in "iu":
            info = np.iinfo(dtype)
            same = info.min <= int(array.min()) and int(array.max()) <= info.max
        elif target in "iu" and source == "f":
            info = np.iinfo(dtype)
            fits = (array >= float(info.min)) & (array < float(info.max + 1))
            same = fits & (np.trunc(array) == array)
        else:
            same = cast.astype(object) == array.astype(object)
    if not np.all(same):
        raise ValueError(f"{where}: {str(array)[:80]} has values that {dtype} cannot hold")
    return cast


# Specs and time steps, as those of dm_env.


class Array:
    """The shape and dtype of values; one size may be -1, for any."""

    def __init__(self, shape: Any, dtype: Any, name: Optional[str] = None):
        self.shape, self.dtype, self.name = tuple(shape), np.dtype(dtype), name


class BoundedArray(Array):
    """Values between bounds, both included: a number each, or an array of the shape."""

    def __init__(self, shape: Any, dtype: Any, minimum: Any, maximum: Any, name: Any = None):
        super().__init__(shape, dtype, name)
        self.minimum, self.maximum = np.asarray(minimum, dtype), np.asarray(maximum, dtype)


class StringArray(Array):
    """Strings."""

    string_type = str

    def __init__(self, shape: Any, name: Optional[str] = None):
        super().__init__(shape, object, name)


TimeStep = collections.namedtuple("TimeStep", "step_type reward discount observation")
FIRST, MID, LAST = 0, 1, 2  # The step types.


class _Field:
    """One action or observation: its spec, and the bytes and values that conform to it."""

    def __init__(self, uid: int, name: str, spec: Any, role: str):
        self.uid, self.name, self.label = uid, name, f"{role} {name!r} (uid {uid})"
        self.kind, self.shape = _kind_of(spec, self.label), tuple(map(int, spec.shape))
        self.dtype, self.is_fixed = _DTYPES[self.kind], all(size >= 0 for size in self.shape)
        self.low, self.high = (self._bound(spec, side) for side in ("minimum", "maximum"))
        self._heads: Dict[int, bytes] = {}
        self._tail = _write_shape(15, self.shape)
        self.spec = _field(1, name.encode("utf-8")) + _write_shape(2, self.shape)
        self.spec += b"\x18" + _varint(self.kind)
        for number, bound in ((4, self.low), (5, self.high)):
            if bound is not None:
                self.spec += _field(number, _field(8 + self.kind, _write_payload(self.kind, bound)))

    def _bound(self, spec: Any, side: str) -> Any:
        bound = getattr(spec, side, None)
        if bound is None or self.dtype.kind not in "iuf":
            return None
        array = _exact(_as_array(bound), self.dtype, f"{self.label}: its {side}")
        return array.reshape(()) if array.size == 1 else np.broadcast_to(array, self.shape)

    def entry(self, value: Any) -> bytes:
        """Returns a value as an entry of the observations of a StepResponse; ValueError."""
        if type(value) is float and self.kind == _DOUBLE and not self.shape:
            block = struct.pack("<d", value)
        else:
            array = self.conform(value)
            if self.kind >= _STRING or not self.is_fixed or not array.size:
                tensor = _write_tensor(self.kind, array)
                return _field(2, b"\x08" + _varint(self.uid) + _field(2, tensor))
            block = _write_block(self.kind, array)
        size = len(block)
        if size not in self._heads:
            # What is before and behind elements that take so many bytes.
            tensor = _field(self.kind, _field(1, bytes(size))) + self._tail
            entry = _field(2, b"\x08" + _varint(self.uid) + _field(2, tensor))
            if len(self._heads) > 64:
                self._heads.clear()
            self._heads[size] = entry[: len(entry) - size - len(self._tail)]
        return self._heads[size] + block + self._tail

    def conform(self, value: Any) -> Any:
        """Returns a value as an array of the dtype and shape of the spec; ValueError."""
        array = value
        if type(value) is not np.ndarray or value.dtype != self.dtype or self.kind >= _STRING:
            array = _exact(_as_array(value), self.dtype, self.label)
        if array.shape != self.shape:
            self._check_shape(array.shape)
        if self.kind == _STRING and not all(isinstance(text, str) for text in array.flat):
            raise ValueError(f"{self.label}: expected strings, got {str(value)[:80]}")
        return array

    def _check_shape(self, shape: Tuple[int, ...]) -> None:
        same = len(shape) == len(self.shape)
        if not same or any(mine not in (its, -1) for mine, its in zip(self.shape, shape)):
            raise ValueError(f"{self.label}: has shape {list(shape)}; expected {list(self.shape)}")

    def read(self, tensor: Any, budget: _Budget) -> Any:
        """Returns the value of a Tensor if the spec allows it; Refusal."""
        kind, value = _read_tensor(tensor, budget, self.label)
        try:
            if kind != self.kind:
                expected = f"expected {_name_of(self.kind)}"
                raise ValueError(f"{self.label}: has dtype {_name_of(kind)}; {expected}")
            shape = value.shape if isinstance(value, (np.ndarray, np.generic)) else ()
            if shape != self.shape:
                self._check_shape(shape)
            if self.dtype.kind in "iuf":
                self._check_range(value)
            return value
        except ValueError as error:
            raise Refusal(INVALID_ARGUMENT, str(error)) from None

    def _check_range(self, value: Any) -> None:
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        fits = (value >= low) & (value <= high)
        if self.dtype.kind == "f":
            # Infinity is out of range unless there is a bound that is infinite, too.
            fits &= ~(
                np.isneginf(value) & (self.low is None) | np.isposinf(value) & (self.high is None)
            )
        if not np.all(fits):
            index = tuple(np.argwhere(~np.asarray(fits))[0]) if np.ndim(value) else ()
            element = f"element {list(map(int, index))}" if index else "the value"
            found = np.asarray(value)[index].item()
            ends = [np.broadcast_to(end, np.shape(value))[index].item() for end in (low, high)]
            expected = f"outside its bounds [{ends[0]!r}, {ends[1]!r}]"
            if not math.isfinite(found):
                expected = "expected a finite value"
            raise ValueError(f"{self.label}: {element} is {found!r}, {expected}")


# Nested values: the levels of a flat name are joined by periods, as in "arm.torque".


def _keys_of(structure: Any) -> List[Any]:
    """Returns the keys of a nested spec; of a mapping sorted, as dm-tree does."""
    if isinstance(structure, collections.abc.Mapping):
        return sorted(structure)
    if hasattr(structure, "_fields"):
        return list(structure._fields)
    if isinstance(structure, (list, tuple)):
        return list(range(len(structure)))
    raise RuntimeError(f"expected specs in dicts, lists and tuples, got {structure!r}")


def _part(structure: Any, key: Any) -> Any:
    return getattr(structure, key) if hasattr(structure, "_fields") else structure[key]


def _is_leaf(structure: Any) -> bool:
    return hasattr(structure, "shape") and hasattr(structure, "dtype")


def _named_specs(structure: Any, single: str, prefix: str = "") -> List[Tuple[str, Any]]:
    """Returns specs by flat name; `single` is the name of one that is not nested."""
    if structure is None or _is_leaf(structure):
        return [] if structure is None else [(prefix or single, structure)]
    found: List[Tuple[str, Any]] = []
    for key in _keys_of(structure):
        if "." in str(key):
            raise RuntimeError(f"key {key!r} has a period, which separates levels of names")
        name = f"{prefix}.{key}" if prefix else str(key)
        found += _named_specs(_part(structure, key), single, name)
    return found


def _flatten(structure: Any, value: Any, into: List[Any]) -> None:
    """Appends the parts of a nested value in the order of `_named_specs`; ValueError."""
    if structure is None:
        return
    if _is_leaf(structure):
        into.append(value)
        return
    keys = _keys_of(structure)
    if len(value) != len(keys):
        raise ValueError(f"expected {len(keys)} values ({keys}), got {len(value)}")
    for key in keys:
        _flatten(_part(structure, key), _part(value, key), into)


def _nest(structure: Any, values: Iterator[Any]) -> Any:
    """Returns values, in the order of `_named_specs`, in a structure."""
    if structure is None or _is_leaf(structure):
        return None if structure is None else next(values)
    parts = {key: _nest(_part(structure, key), values) for key in _keys_of(structure)}
    kind: Any = type(structure)
    if isinstance(structure, collections.abc.Mapping):
        return kind((key, parts[key]) for key in structure)
    return kind(*parts.values()) if hasattr(structure, "_fields") else kind(parts.values())


def _unflatten(flat: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns values by flat name as nested dicts; ValueError."""
    nested: Dict[str, Any] = {}
    for name in sorted(flat):
        parents = name.split(".")
        branch = nested
        for parent in parents[:-1]:
            branch = branch.setdefault(parent, {})
        if len(parents) > MAX_LEVELS or not isinstance(branch, dict) or parents[-1] in branch:
            raise ValueError(f"{name[:200]!r} has too many levels, or is part of another name")
        branch[parents[-1]] = flat[name]
    return nested


# gym and Gymnasium. Spaces, infos and frames are in properties, and infos beside observations, in
# the form in which the adaptors of dm-env-rpc-client expect them.

_ARRAYS = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")
_SPACES = (*_ARRAYS, "Text", "Dict", "Tuple", "OneOf", "Sequence", "Graph")


def _space_kind(space: Any) -> str:
    """Returns the name of the class of a space, or of the first known one that it is made of."""
    names = [each.__name__ for each in type(space).__mro__]
    return next((name for name in names if name in _SPACES), "")


def _members(space: Any) -> List[Tuple[Any, str, Any]]:
    """Returns keys, escaped names and spaces of a Dict or Tuple."""
    if _space_kind(space) == "Tuple":
        return [(index, str(index), part) for index, part in enumerate(space.spaces)]
    found = []
    for key, part in space.spaces.items():
        name = str(key).replace("%", "%25").replace(".", "%2E") or "%"
        if name in ("reward", "discount"):  # Those of the reward and the discount of a step.
            name = f"%{ord(name[0]):02X}{name[1:]}"
        found.append((key, name, part))
    return found


def _wire_dtype(space: Any) -> Any:
    dtype = np.dtype(space.dtype or np.float32)
    return _WIDER[dtype] if dtype == np.float16 else dtype


def _space_spec(space: Any) -> Any:
    """Returns the spec, or the nested specs, of a space."""
    kind = _space_kind(space)
    if kind in ("Dict", "Tuple"):
        specs = {name: _space_spec(part) for _, name, part in _members(space)}
        return specs if kind == "Dict" else tuple(specs.values())
    is_sequence = kind == "Sequence" and _space_kind(space.feature_space) in _ARRAYS
    if is_sequence:
        spec = _space_spec(space.feature_space)
        shape = (-1, *spec.shape)
        low, high = (np.unique(getattr(spec, side, ())) for side in ("minimum", "maximum"))
        if (low.size, high.size) == (1, 1):
            return BoundedArray(shape, spec.dtype, low[0], high[0])
        return Array(shape, spec.dtype)
    if kind not in _ARRAYS:
        return StringArray(())  # A text, or the JSON of an element.
    dtype, shape = _wire_dtype(space), tuple(space.shape or ())
    if kind == "Box":
        if dtype.kind == "b":
            return Array(shape, dtype)
        return BoundedArray(shape, dtype, space.low.astype(dtype), space.high.astype(dtype))
    if kind == "Discrete":
        start = int(getattr(space, "start", 0))
        return BoundedArray((), dtype, start, start + int(space.n) - 1)
    if kind == "MultiBinary":
        return BoundedArray(shape, dtype, 0, 1)
    low = np.asarray(getattr(space, "start", np.zeros_like(space.nvec)), np.int64)
    return BoundedArray(low.shape, dtype, low, low + (space.nvec.astype(np.int64) - 1))


def _to_wire(space: Any, element: Any) -> Any:
    """Returns an element of a space as a value of its spec."""
    kind = _space_kind(space)
    if kind in ("Dict", "Tuple"):
        values = {name: _to_wire(part, element[key]) for key, name, part in _members(space)}
        return values if kind == "Dict" else tuple(values.values())
    if kind == "Sequence" and _space_kind(space.feature_space) in _ARRAYS:
        part = space.feature_space
        return (
            np.asarray(element) if len(element) else np.empty((0, *part.shape), _wire_dtype(part))
        )
    return element if kind in _ARRAYS else str(element) if kind == "Text" else _encode(element)


def _from_wire(space: Any, value: Any) -> Any:
    """Returns the element of a space for a value of its spec."""
    kind = _space_kind(space)
    if kind in ("Dict", "Tuple"):
        by_key = kind == "Dict"
        parts = [(k, _from_wire(p, value[n if by_key else k])) for k, n, p in _members(space)]
        return collections.OrderedDict(parts) if by_key else tuple(part for _, part in parts)
    if kind in _ARRAYS:
        return int(value) if kind == "Discrete" else np.asarray(value, space.dtype)
    if kind == "Sequence" and _space_kind(space.feature_space) in _ARRAYS:
        if space.stack:
            return np.asarray(value, space.feature_space.dtype)
        return tuple(_from_wire(space.feature_space, item) for item in value)
    return str(value) if kind == "Text" else _decode(str(value))


def _space_json(space: Any) -> Dict[str, Any]:
    """Returns the JSON value of a space: its type, and the arguments that make it."""

    def bound(array: Any) -> Any:
        same = array.size > 0 and bool(np.all(array == array.flat[0]))
        return _jsonable(array.flat[0].item() if same else array)

    kind = _space_kind(space)
    found: Dict[str, Any] = {"type": kind}
    if kind in ("Box", "Discrete", "MultiDiscrete"):
        found["dtype"] = np.dtype(space.dtype or np.float32).name
    if kind == "Box":
        found.update(shape=list(space.shape), low=bound(space.low), high=bound(space.high))
    elif kind == "Discrete":
        found.update(n=int(space.n), start=int(getattr(space, "start", 0)))
    elif kind == "MultiBinary":
        found.update(n=np.asarray(space.n).tolist())
    elif kind == "MultiDiscrete":
        start = getattr(space, "start", np.zeros_like(space.nvec))
        found.update(nvec=_jsonable(np.asarray(space.nvec)), start=_jsonable(np.asarray(start)))
    elif kind == "Text":
        found.update(min_length=space.min_length, max_length=space.max_length)
        found.update(charset="".join(space.character_list))
    elif kind == "Dict":
        pairs = space.spaces.items()
        found.update(spaces=[[_jsonable(key), _space_json(part)] for key, part in pairs])
    elif kind in ("Tuple", "OneOf"):
        found.update(spaces=[_space_json(part) for part in space.spaces])
    elif kind == "Sequence":
        found.update(space=_space_json(space.feature_space), stack=bool(space.stack))
    elif kind == "Graph":
        edges = space.edge_space and _space_json(space.edge_space)
        found.update(node_space=_space_json(space.node_space), edge_space=edges)
    else:
        raise RuntimeError(f"a space of type {type(space).__name__} cannot be served")
    return found


def _jsonable(value: Any, levels: int = 8) -> Any:
    """Returns the JSON value of a value; what JSON does not have is an object with the key `$`."""
    if value is None or isinstance(value, (bool, int, str)):
        return str(value) if isinstance(value, np.str_) else value
    if type(value) is float:
        return value if math.isfinite(value) else {"$": "float", "value": str(value)}
    if isinstance(value, bytes):
        return {"$": "bytes", "base64": base64.b64encode(value).decode()}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf" and value.itemsize <= 8:
        return {"$": "scalar", "dtype": value.dtype.name, "value": _jsonable(value.item())}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        array = np.asarray(value)
        block = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
        found = {"$": "array", "dtype": array.dtype.name, "shape": list(array.shape)}
        return dict(found, base64=base64.b64encode(block).decode())
    if levels == 0 or not isinstance(value, (list, tuple, np.ndarray, collections.abc.Mapping)):
        return repr(value)
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "OU":
            return repr(value)
        items = [_jsonable(item, levels - 1) for item in value.ravel().tolist()]
        return {"$": "objects", "shape": list(value.shape), "items": items}
    if isinstance(value, collections.abc.Mapping):
        if "$" not in value and all(type(key) is str for key in value):
            return {key: _jsonable(part, levels - 1) for key, part in value.items()}
        pairs = [[_jsonable(part, levels - 1) for part in pair] for pair in value.items()]
        return {"$": "dict", "items": pairs}
    items = [_jsonable(part, levels - 1) for part in value]
    is_graph = type(value).__name__ == "GraphInstance"
    return (
        items
        if isinstance(value, list)
        else {"$": "graph" if is_graph else "tuple", "items": items}
    )


def _unjsonable(value: Any) -> Any:
    """Returns the value of a JSON value that `_jsonable` returned; ValueError and others."""
    if isinstance(value, list):
        return [_unjsonable(part) for part in value]
    kind = value.get("$") if isinstance(value, dict) else None
    if kind is None:
        is_dict = isinstance(value, dict)
        return {key: _unjsonable(part) for key, part in value.items()} if is_dict else value
    if kind in ("float", "bytes"):
        return float(value["value"]) if kind == "float" else base64.b64decode(value["base64"])
    if kind in ("scalar", "array"):
        dtype = np.dtype(value["dtype"])
        if kind == "scalar":
            return dtype.type(_unjsonable(value["value"]))
        flat = np.frombuffer(base64.b64decode(value["base64"]), dtype.newbyteorder("<"))
        return flat.reshape(value["shape"]).astype(dtype)
    items = _unjsonable(value["items"])
    if kind == "objects":
        return np.array(items, object if any(type(i) is not str for i in items) else None).reshape(
            value["shape"]
        )
    return dict(items) if kind == "dict" else tuple(items)


def _encode(value: Any) -> str:
    return json.dumps(_jsonable(value), separators=(",", ":"), allow_nan=False)


def _decode(text: str) -> Any:
    try:
        if sum(map(text.count, "[{,:")) > 1 << 20:
            raise ValueError("too many values")
        return _unjsonable(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Refusal(INVALID_ARGUMENT, f"invalid JSON {text[:60]!r}: {error}") from None


class _Gymnasium:
    """An environment of gym or Gymnasium in the shape of a dm_env.Environment."""

    reset_settings = ("seed", "options", "infos")

    def __init__(self, env: Any):
        self._env, self._settings, self._has_infos = env, {}, False  # type: Any, Dict[str, Any], bool
        self._is_running = False
        reset = inspect.signature(getattr(env, "unwrapped", env).reset).parameters
        self._reset_takes = [name for name in ("seed", "options") if name in reset]
        metadata = dict(getattr(env, "metadata", None) or {})
        self.mode = getattr(env, "render_mode", None)
        self._renders_by_argument = False
        if "render.modes" in metadata:  # Until gym 0.21; later ones have the key render_modes.
            metadata["render_modes"] = list(metadata["render.modes"])
        if not hasattr(env, "render_mode") and "rgb_array" in metadata.get("render_modes", ()):
            self.mode, self._renders_by_argument = "rgb_array", True
        spec = getattr(env, "spec", None)
        self._description = {
            "version": 1,
            "action_space": _space_json(env.action_space),
            "observation_space": _space_json(env.observation_space),
            "metadata": _jsonable(metadata),
            "render_mode": self.mode,
            "max_episode_steps": getattr(spec, "max_episode_steps", None),
            "reward_range": _jsonable(getattr(env, "reward_range", None)),
            "id": getattr(spec, "id", ""),
            "notes": [],
        }

    @property
    def properties(self) -> Dict[str, Callable[[], Any]]:
        found: Dict[str, Callable[[], Any]] = {"gymnasium": lambda: json.dumps(self._description)}
        if self.mode is not None:
            found["gymnasium.frame"] = self._frame
        return found

    def _frame(self) -> Any:
        frame = (
            self._env.render(mode=self.mode) if self._renders_by_argument else self._env.render()
        )
        is_array = isinstance(frame, np.ndarray) and frame.dtype.kind in "biuf"
        return frame if is_array else _encode(frame)

    def configure(self, settings: Mapping[str, Any]) -> None:
        """Takes settings of a Reset, which hold for the next one; ValueError."""
        for name, value in settings.items():
            is_number = isinstance(value, (int, np.integer))
            if name == "infos" and isinstance(value, (bool, np.bool_)):
                self._has_infos = bool(value)
            elif name == "seed" and is_number and not isinstance(value, bool):
                self._settings[name] = int(value)
            elif name == "options" and isinstance(value, (str, dict)):
                self._settings[name] = _decode(value) if isinstance(value, str) else value
            else:
                raise ValueError(f"setting {name!r} is {value!r}")

    def action_spec(self) -> Any:
        return _space_spec(self._env.action_space)

    def observation_spec(self) -> Any:
        spec = _space_spec(self._env.observation_space)
        return {"observation": spec, "gymnasium": StringArray(())} if self._has_infos else spec

    def reset(self) -> Any:
        settings, self._settings = self._settings, {}
        if "seed" in settings and "seed" not in self._reset_takes:
            self._env.seed(settings["seed"])
        found = self._env.reset(**{k: v for k, v in settings.items() if k in self._reset_takes})
        # Until gym 0.25 there is no info.
        info: Any = {}
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict):
            is_element = _space_kind(self._env.observation_space) == "Tuple"
            if not (is_element and self._env.observation_space.contains(found)):
                found, info = found
        self._is_running = True
        return TimeStep(FIRST, None, None, self._observed(found, info, False))

    def step(self, action: Any) -> Any:
        found = self._env.step(_from_wire(self._env.action_space, action))
        observation, reward, is_terminated, info = found[0], found[1], bool(found[2]), found[-1]
        is_truncated = bool(found[3] if len(found) == 5 else info.get("TimeLimit.truncated", False))
        if len(found) == 4 and is_truncated:
            is_terminated = False
        step_type = LAST if is_terminated or is_truncated else MID
        observed = self._observed(observation, info, is_terminated and is_truncated)
        return TimeStep(step_type, float(reward), 0.0 if is_terminated else 1.0, observed)

    def _observed(self, observation: Any, info: Any, is_truncated_too: bool) -> Any:
        value = _to_wire(self._env.observation_space, observation)
        if not self._has_infos:
            return value
        extras: Dict[str, Any] = {"info": info} if info else {}
        if is_truncated_too:
            extras["truncated"] = True
        return {"observation": value, "gymnasium": _encode(extras) if extras else ""}

    def close(self) -> None:
        self._env.close()


# Worlds: an environment each, for one agent at a time.

_NOT_JOINED, _JOINED, _RUNNING, _TERMINATED, _INTERRUPTED = -1, 0, 1, 2, 3
_STATES = {_NOT_JOINED: "not joined to a world", _JOINED: "joined, before the first sequence"}
_STATES.update(
    {_RUNNING: "in a sequence", _TERMINATED: "after a sequence", _INTERRUPTED: "after a sequence"}
)
_DISCOUNT = BoundedArray((), np.float64, 0.0, 1.0, "discount")


def _is_default(spec: Any) -> bool:
    """Whether a spec is that of `dm_env.Environment.discount_spec`."""
    if not _is_leaf(spec) or spec.shape != () or spec.dtype != np.float64:
        return False
    bounds = [np.asarray(getattr(spec, side, -1)) for side in ("minimum", "maximum")]
    return bool(spec.name == "discount" and bounds[0] == 0 and bounds[1] == 1)


class _Specs:
    """The actions and observations of an environment by UID."""

    def __init__(self, environment: Any):
        self.action = environment.action_spec()
        self.observation = environment.observation_spec()
        self.reward = getattr(environment, "reward_spec", lambda: Array((), np.float64))()
        self.discount = getattr(environment, "discount_spec", lambda: _DISCOUNT)()
        if _is_default(self.discount):
            self.discount = None  # It is 1, or 0 in TERMINATED; so the states say it.
        self.actions, self.observations = {}, {}  # type: Dict[int, _Field], Dict[int, _Field]
        named = _named_specs(self.observation, "observation")
        for name in ("reward", "discount"):
            named += [
                (inner if inner == name else f"{name}.{inner}", spec)
                for inner, spec in _named_specs(getattr(self, name), name)
            ]
        for role, specs, into in (
            ("action", _named_specs(self.action, "action"), self.actions),
            ("observation", named, self.observations),
        ):
            if len({name for name, _ in specs}) < len(specs):
                raise RuntimeError(f"two {role}s have the same name (reward and discount count)")
            for uid, (name, spec) in enumerate(specs, start=1):
                into[uid] = _Field(uid, name, spec, role)
        self.packed = b"".join(
            _field(number, b"\x08" + _varint(uid) + _field(2, each.spec))
            for number, into in ((1, self.actions), (2, self.observations))
            for uid, each in into.items()
        )

    def values(self, timestep: Any) -> List[Any]:
        """Returns all values of a time step in the order of their UIDs, which begin at 1."""
        found: List[Any] = []
        discount = timestep.discount
        ends = int(timestep.step_type) == LAST
        if self.discount is None and discount not in ((None, 1.0, 0.0) if ends else (None, 1.0)):
            raise RuntimeError(f"the discount {discount} takes a discount_spec of its own")
        _flatten(self.observation, timestep.observation, found)
        for spec, value, missing in (
            (self.reward, timestep.reward, 0),
            (self.discount, timestep.discount, 1),
        ):
            if value is None:  # A FIRST step has neither.
                named = _named_specs(spec, "")
                found += [np.full(each.shape, missing, each.dtype) for _, each in named]
            else:
                _flatten(spec, value, found)
        return found


class _World:
    """An environment that the factory made. `lock` is held while it is used."""

    def __init__(self, factory: Callable[..., Any], settings: Dict[str, Any], creator: Any):
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.creator, self.agent, self.idle_since = creator, None, 0.0  # type: Any, Any, float
        self.held = 0
        self._factory, self._settings = factory, settings
        self._is_running = self.is_interrupted = self.is_closed = False
        self._last, self._next = None, None  # type: Any, Any
        self.environment, self.specs = self._make(settings)

    def _make(self, settings: Dict[str, Any]) -> Tuple[Any, _Specs]:
        """Returns an environment and its specs; Refusal if it does not take the settings."""
        try:
            arguments = _unflatten(settings)
            try:
                inspect.signature(self._factory).bind(**arguments)
            except TypeError as error:
                known = ", ".join(inspect.signature(self._factory).parameters) or "none"
                raise ValueError(f"{error}; known settings: {known}") from None
            made = self._factory(**arguments)
        except (TypeError, ValueError) as error:
            text = f"the environment does not take these settings: {error}"
            raise Refusal(INVALID_ARGUMENT, text) from error
        if not hasattr(made, "action_spec") and hasattr(made, "action_space"):
            made = _Gymnasium(made)
        try:
            return made, _Specs(made)
        except BaseException:
            _close(made)
            raise

    def made_with(self, settings: Dict[str, Any]) -> Any:
        """Returns the environment and specs for the settings of a reset, not yet in force."""
        if not settings:
            return None
        with self.lock:
            own = getattr(self.environment, "reset_settings", ())
            mine = {name: value for name, value in settings.items() if name.split(".")[0] in own}
            others = dict(self._settings)
            others.update((name, value) for name, value in settings.items() if name not in mine)
            made = (
                self._make(others) if len(mine) < len(settings) else (self.environment, self.specs)
            )
            if mine:
                try:
                    made[0].configure(_unflatten(mine))
                    made = (made[0], _Specs(made[0]))
                except ValueError as error:
                    raise Refusal(
                        INVALID_ARGUMENT, f"these settings are refused: {error}"
                    ) from error
            return (*made, others)

    def adopt(self, made: Any) -> None:
        """Ends the sequence, and puts what `made_with` returned into force."""
        self._is_running = False
        if made is not None:
            former = self.environment
            self.environment, self.specs, self._settings = made
            if self.environment is not former:
                _close(former)

    def step(self, actions: Optional[Dict[int, Any]], is_running: bool) -> Tuple[int, List[Any]]:
        """Steps, or begins a sequence; returns the state and all values."""
        with self.lock:
            specs = self.specs
            if self.is_interrupted:
                self.end_interruption()
                return _INTERRUPTED, specs.values(self._last)
            if is_running and not self._is_running:
                text = "the sequence ended when the world was reset"
                raise Refusal(FAILED_PRECONDITION, text)
            if not is_running:
                self._last = self.environment.reset()
            else:
                assert actions is not None
                if len(actions) < len(specs.actions):
                    missing = [f.name for u, f in specs.actions.items() if u not in actions]
                    defaults = getattr(self.environment, "default_actions", {})
                    absent = [name for name in missing if name not in defaults]
                    if absent:
                        text = f"missing action {', '.join(map(repr, absent))}: a step needs all"
                        raise Refusal(INVALID_ARGUMENT, text)
                    actions = dict(actions)
                    actions.update(
                        (u, defaults[f.name]) for u, f in specs.actions.items() if u not in actions
                    )
                flat = [actions[uid] for uid in specs.actions]
                action = flat[0] if _is_leaf(specs.action) else _nest(specs.action, iter(flat))
                self._last = self.environment.step(action)
                if int(self._last.step_type) == FIRST:
                    raise RuntimeError("the environment returned a FIRST step within a sequence")
            timestep = self._last
            self._is_running = int(timestep.step_type) != LAST
            state = _RUNNING
            if not self._is_running:
                discounts: List[Any] = []
                _flatten(specs.discount or _DISCOUNT, timestep.discount, discounts)
                state = _INTERRUPTED if any(map(np.any, discounts)) else _TERMINATED
            return state, specs.values(timestep)

    def interrupt(self, made: Any, session: "_Session") -> None:
        """Has the agent's next step return INTERRUPTED, and waits for it; with the lock."""
        if self.agent in (None, session) or not self._is_running:
            self.adopt(made)
            return
        self._next, self.is_interrupted = made, True
        session.wait(self.changed, lambda: not self.is_interrupted)

    def end_interruption(self) -> None:
        if self.is_interrupted:
            self.adopt(self._next)
            self._next, self.is_interrupted = None, False
            self.changed.notify_all()

    def leave(self) -> None:
        with self.lock:
            self.end_interruption()
            self._is_running, self.agent, self.idle_since = False, None, time.monotonic()
            if self.is_closed:
                _close(self.environment)

    def close(self) -> None:
        """Closes the environment; if it is in use, its agent does so when it leaves."""
        self.is_closed = True
        if self.lock.acquire(timeout=0.5):
            try:
                self.changed.notify_all()
                if self.agent is None:
                    _close(self.environment)
            finally:
                self.lock.release()


def _close(environment: Any) -> None:
    try:
        getattr(environment, "close", lambda: None)()
    except Exception:
        _log.exception("an environment failed to close")


# The requests of one stream.

_REQUESTS = {1: "create_world", 2: "join_world", 3: "step", 4: "reset", 5: "reset_world"}
_REQUESTS.update({6: "leave_world", 7: "destroy_world", 15: "extension"})
_PROPERTIES = "dm_env_rpc.v1.extensions.properties.Property"


class _Session:
    """Answers the requests of a stream; a request that fails changes nothing."""

    def __init__(self, server: "Server", peer: str, is_local: bool):
        self.is_gone = False
        self._server, self._peer, self._is_local = server, peer, is_local
        self._state = _NOT_JOINED
        self._world: Any = None
        self._name = ""
        self._requested: Dict[bytes, List[_Field]] = {}

    def answer(self, message: bytes) -> bytes:
        """Returns the EnvironmentResponse for an EnvironmentRequest."""
        budget, number, contents = _Budget(), 0, b""  # type: _Budget, int, Any
        try:
            # Parts of a large one are not copied.
            data = message if len(message) < 1 << 16 else memoryview(message)
            for tag, part in _fields(data, budget):
                if tag & 7 == 2 and tag >> 3 in _REQUESTS:
                    contents = b"".join([contents, part]) if tag >> 3 == number else part
                    number = tag >> 3
            name = _REQUESTS.get(number)
            if name is None:
                text = "the request has no payload that this server knows"
                raise Refusal(INVALID_ARGUMENT, text)
            joined = self._state != _NOT_JOINED
            if joined if name == "join_world" else name in ("step", "reset") and not joined:
                text = f"a {name} request is not allowed while the connection is"
                raise Refusal(FAILED_PRECONDITION, f"{text} {_STATES[self._state]}")
            handler: Callable[[Any, _Budget], bytes] = getattr(self, "_" + name)
            return _field(number, handler(contents, budget))
        except _StreamError:
            raise
        except Refusal as refusal:
            return _error(refusal.code, str(refusal))
        except _Malformed as error:
            text = f"the message is not an EnvironmentRequest: {error}"
            raise _StreamError(INVALID_ARGUMENT, text) from None
        except Exception as error:
            self._server.failed(error, f"in a request of {self._peer}")
            text = f"the environment failed: {type(error).__name__}: {error}"
            details = b""
            if self._is_local:
                trace = traceback.format_tb(error.__traceback__)
                details = b"".join(_field(1, line.encode("utf-8", "replace")) for line in trace)
                details = _field(1, b"type.googleapis.com/google.rpc.DebugInfo") + _field(
                    2, details
                )
            return _error(INTERNAL, text, details)

    def wait(self, changed: threading.Condition, is_over: Callable[[], bool]) -> None:
        """Waits for another stream; _StreamError if the client is gone meanwhile."""
        while not changed.wait_for(lambda: is_over() or self.is_gone, 1.0):
            pass
        if not is_over():
            raise _StreamError(CANCELLED, "the client is gone")

    def close(self) -> None:
        """Leaves the world; those that this stream has created end later, without agents."""
        self._leave_world(b"", _Budget())
        with self._server.lock:
            for world in self._server.worlds.values():
                if world.creator is self:
                    world.creator, world.idle_since = None, time.monotonic()

    def _create_world(self, data: Any, budget: _Budget) -> bytes:
        settings = _settings(data, budget, 10)
        return _field(1, self._server.create(settings, self).encode())

    def _join_world(self, data: Any, budget: _Budget) -> bytes:
        name, settings = _world_name(data, budget), _settings(data, budget, 18)
        if settings:
            text = f"unknown join settings {', '.join(map(repr, settings))}: there are none"
            raise Refusal(INVALID_ARGUMENT, text)
        with self._server.lock:
            world = self._server.world(name)
            if world.agent is not None:
                text = "the world already has an agent; create another world"
                raise Refusal(FAILED_PRECONDITION, text)
            world.agent = self
        self._world, self._name, self._state = world, name, _JOINED
        return self._specs()

    def _specs(self) -> bytes:
        self._requested.clear()
        return _field(1, self._world.specs.packed)

    def _step(self, data: Any, budget: _Budget) -> bytes:
        world, actions, asked = self._world, {}, b""  # type: Any, Dict[int, Any], bytes
        specs = world.specs
        for tag, part in _fields(data, budget):
            if tag == 10:
                uid, tensor = _entry(part, budget, 8, "action")
                if uid not in specs.actions:
                    text = f"no action has uid {uid}; uids: {list(specs.actions)[:32]}"
                    raise Refusal(INVALID_ARGUMENT, text)
                actions[uid] = tensor
            elif tag == 18 or tag == 16:
                asked += bytes(part) if tag == 18 else _varint(part)
        fields = self._requested.get(asked)
        if fields is None:
            uids = dict.fromkeys(_read_varints(asked, budget).tolist())
            unknown = [uid for uid in uids if uid not in specs.observations]
            if unknown:
                text = f"no observation has uid {unknown[0]}; uids: {list(specs.observations)[:32]}"
                raise Refusal(INVALID_ARGUMENT, text)
            fields = [specs.observations[uid] for uid in uids]
            if len(self._requested) < 16 and len(asked) < 1 << 12:
                self._requested[asked] = fields
        is_running = self._state == _RUNNING
        if is_running:
            actions = {
                uid: specs.actions[uid].read(value, budget) for uid, value in actions.items()
            }
        state, values = world.step(actions, is_running)
        try:
            answer = b"".join([each.entry(values[each.uid - 1]) for each in fields])
        except ValueError as error:
            raise RuntimeError(f"it violates its own specs: {error}") from error
        self._state = state
        return b"\x08" + _varint(state) + answer

    def _reset(self, data: Any, budget: _Budget) -> bytes:
        settings, world = _settings(data, budget, 10), self._world
        if settings or self._state == _RUNNING:
            with world.lock:
                self._server.hold(world, settings)
                made = world.made_with(settings)
                world.end_interruption()
                world.adopt(made)
            self._state = _INTERRUPTED if self._state == _RUNNING else self._state
        return self._specs()

    def _reset_world(self, data: Any, budget: _Budget) -> bytes:
        name, settings = _world_name(data, budget), _settings(data, budget, 18)
        with self._server.lock:
            world = self._server.world(name)
        with world.lock:
            self.wait(world.changed, lambda: not world.is_interrupted)
            self._server.hold(world, settings)
            made = world.made_with(settings)
            if made and world.agent is not None and made[1].packed != world.specs.packed:
                _close(made[0])
                text = "these settings change the specs: send them with the agent's own Reset"
                raise Refusal(FAILED_PRECONDITION, text)
            world.interrupt(made, self)
        if world is self._world and self._state == _RUNNING:
            self._state = _INTERRUPTED
        return b""

    def _leave_world(self, data: Any, budget: _Budget) -> bytes:
        world, self._world, self._state = self._world, None, _NOT_JOINED
        if world is not None:
            world.leave()
        return b""

    def _destroy_world(self, data: Any, budget: _Budget) -> bytes:
        name = _world_name(data, budget)
        with self._server.lock:
            world = self._server.world(name)
            if world.agent is not None:
                text = f"world {name!r} has an agent, which must leave first"
                raise Refusal(FAILED_PRECONDITION, text)
            del self._server.worlds[name]
        world.close()
        return b""

    def _extension(self, data: Any, budget: _Budget) -> bytes:
        url, contents = _parts(data, budget, 10, 18)
        if _text(url).rpartition("/")[2] != _PROPERTIES + "Request":
            text = f"no extension {_text(url)[:200]!r}; there is {_PROPERTIES}Request"
            raise Refusal(UNIMPLEMENTED, text)
        number, request = 0, b""  # type: int, Any
        for tag, part in _fields(contents, budget):
            if tag in (10, 18, 26):
                number, request = tag >> 3, part
        if not number:
            raise Refusal(INVALID_ARGUMENT, "the property request is empty")
        key, tensor = _parts(request, budget, 10, 18)
        with self._world.lock if self._world else contextlib.ExitStack():
            environment = self._world.environment if self._world else None
            answer = _property(environment, number, _text(key), tensor, budget)
        url = f"type.googleapis.com/{_PROPERTIES}Response".encode()
        return _field(1, url) + _field(2, _field(number, answer))


def _error(code: int, text: str, details: bytes = b"") -> bytes:
    """Returns an EnvironmentResponse with an error."""
    shown = text.encode("utf-8", "replace")
    if len(shown) > MAX_ERROR_BYTES:
        shown = shown[:MAX_ERROR_BYTES].decode("utf-8", "ignore").encode() + b"..."
    status = b"\x08" + _varint(code) + _field(2, shown)
    return _field(16, status + (_field(3, details) if details else b""))


def _entry(data: Any, budget: _Budget, key_tag: int, what: str) -> Tuple[Any, Any]:
    """Returns key and value of an entry of a map, of tensors."""
    budget.take("entries")
    key, tensor = 0 if key_tag == 8 else b"", b""  # type: Any, Any
    for tag, part in _fields(data, budget):
        if tag == key_tag:
            key = part
        elif tag == 18:
            tensor = b"".join([tensor, part]) if tensor else part
    return key, tensor


def _settings(data: Any, budget: _Budget, tag: int) -> Dict[str, Any]:
    """Returns the settings in a request, in the fields with a tag."""
    found = {}
    for number, part in _fields(data, budget):
        if number == tag:
            key, tensor = _entry(part, budget, 10, "setting")
            name = _checked_name(key, "setting")
            value = _read_tensor(tensor, budget, f"setting {name!r}")[1]
            # Environments expect int, float and bool of Python, not scalars of NumPy.
            found[name] = value.item() if isinstance(value, np.generic) else value
    return found


def _checked_name(name: Any, what: str) -> str:
    if len(name) > MAX_NAME_BYTES:
        text = f"the name of a {what} has {len(name)} bytes; at most {MAX_NAME_BYTES} are allowed"
        raise Refusal(INVALID_ARGUMENT, text)
    return _text(name)


def _world_name(data: Any, budget: _Budget) -> str:
    return _checked_name(_parts(data, budget, 10)[0], "world")


def _property(environment: Any, request: int, key: str, tensor: Any, budget: _Budget) -> bytes:
    """Answers a request to read (1), write (2) or list (3) properties of an environment."""
    known = dict(getattr(environment, "properties", None) or {})
    accessors = known.get(key, (None, None))
    getter, setter = accessors if isinstance(accessors, tuple) else (accessors, None)
    prefix = key + "." if key else ""
    children = sorted(
        {prefix + each[len(prefix) :].split(".")[0] for each in known if each.startswith(prefix)}
    )
    if key and key not in known and not children:
        text = f"no property {key[:200]!r}; properties: {', '.join(map(repr, sorted(known))) or 'none'}"
        raise Refusal(NOT_FOUND, text)
    if (getter, setter, children or not key)[request - 1] in (None, []):
        what = ("readable", "writable", "listable")[request - 1]
        raise Refusal(PERMISSION_DENIED, f"property {key!r} is not {what}")
    if request == 1:
        value = _as_array(getter())
        return _field(1, _write_tensor(_kind_of(value, f"property {key!r}"), value))
    if request == 2:
        now = _as_array(getter()) if getter else None
        try:
            spec = now if now is None else _Field(0, key, Array(now.shape, now.dtype), "property")
            value = (
                _read_tensor(tensor, budget, key)[1] if spec is None else spec.read(tensor, budget)
            )
            setter(value.item() if isinstance(value, np.generic) else value)
        except (TypeError, ValueError) as error:
            text = f"invalid value for property {key!r}: {error}"
            raise Refusal(INVALID_ARGUMENT, text) from error
        return b""
    found = b""
    for child in children:
        own = known.get(child, (None, None))
        own = own if isinstance(own, tuple) else (own, None)
        spec_bytes = _field(1, child.encode())
        if own[0] is not None:
            value = _as_array(own[0]())
            kind = _kind_of(value, child)
            spec_bytes += _write_shape(2, value.shape) + b"\x18" + _varint(kind)
        flags = zip((2, 3, 4), (*own, any(each.startswith(child + ".") for each in known) or None))
        marks = b"".join(bytes([number << 3, 1]) for number, there in flags if there is not None)
        found += _field(1, _field(1, spec_bytes) + marks)
    return found


# HTTP/2. What a peer does against the rules ends its stream, or the connection.

_PROTOCOL, _FLOW, _CLOSED, _SIZE, _REFUSED, _CANCEL, _COMPRESSION, _CALM = 1, 3, 5, 6, 7, 8, 9, 11


class _Violation(Exception):
    """A client broke the rules; `stream` is 0 if the connection has to end."""

    def __init__(self, what: str, code: int = _PROTOCOL, stream: int = 0):
        super().__init__(what)
        self.code, self.stream = code, stream


# HPACK: header blocks (RFC 7541).

_STATIC = [
    (name.encode(), value.replace("_", " ").encode())
    for name, _, value in (
        entry.partition("=")
        for entry in (
            ":authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http "
            ":scheme=https :status=200 :status=204 :status=206 :status=304 :status=400 :status=404 "
            ":status=500 accept-charset accept-encoding=gzip,_deflate accept-language "
            "accept-ranges accept access-control-allow-origin age allow authorization "
            "cache-control content-disposition content-encoding content-language content-length "
            "content-location content-range content-type cookie date etag expect expires from host "
            "if-match if-modified-since if-none-match if-range if-unmodified-since last-modified "
            "link location max-forwards proxy-authenticate proxy-authorization range referer "
            "refresh retry-after server set-cookie strict-transport-security transfer-encoding "
            "user-agent vary via www-authenticate"
        ).split()
    )
]
# Huffman's code is canonical: the lengths of the codes of the characters 0 to 256 say all.
_CODE_LENGTHS = [
    ord(letter) - 64
    for letter in (  # A stands for 1, B for 2.
        r"MW\\\\\\\X^\\^\\\\\\\\^\\\\\\\\\FJJLMFHKJJHKHFFFEEEFFFFFFFGHOFLJMFGGGGGGGGGGGGGGGGGGGG"
        r"GGHGHMSMNFOEFEFEFFFEGGFFFEFGFEEFGGGGGOKNM\TVTTVVVWVWWWWWXWXXVWXWWWWUVWVWWXVUTVVWWUWVVX"
        r"UVWWUUVUWVWWTVVVWVVWZZTSVWVYZZZ[[ZXYSUZ[[Z[XUUZZ\[[[TXTUVUUWVVYYXXZWZ[ZZ[[[[[\[[[[[Z^"
    )
]
_TABLE_BYTES = 4096


def _huffman() -> List[Any]:
    """Returns the tree of codes: lists of two branches, with characters as leaves."""
    root, code, before = [None, None], 0, 0  # type: List[Any], int, int
    for length, character in sorted((length, c) for c, length in enumerate(_CODE_LENGTHS)):
        code, before = code << (length - before), length
        node = root
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            node[bit] = node[bit] or [None, None]
            node = node[bit]
        node[code & 1] = character
        code += 1
    return root


_ROOT = _huffman()


def _unhuffman(coded: bytes) -> bytes:
    decoded, node, bits = bytearray(), _ROOT, 0
    for byte in coded:
        for shift in range(7, -1, -1):
            node, bits = node[byte >> shift & 1], bits + 1
            if isinstance(node, int):
                if node == 256:
                    raise _Violation("sent the end of strings in a header", _COMPRESSION)
                decoded.append(node)
                node, bits = _ROOT, 0
    # The padding is less than 8 ones.
    if bits > 7 or (coded and bits and coded[-1] & (1 << bits) - 1 != (1 << bits) - 1):
        raise _Violation("sent a header with malformed padding", _COMPRESSION)
    return bytes(decoded)


class _HeaderDecoder:
    def __init__(self, most: int):
        self._table, self._limit, self._most = [], _TABLE_BYTES, most  # type: List[Any], int, int

    def decode(self, block: bytes) -> List[Tuple[bytes, bytes]]:
        headers, at, size = [], 0, 0  # type: List[Tuple[bytes, bytes]], int, int
        try:
            while at < len(block):
                first = block[at]
                if first & 0xE0 == 0x20:
                    limit, at = self._integer(block, at, 0x1F)
                    if headers or limit > _TABLE_BYTES:
                        raise _Violation("changed the size of its table", _COMPRESSION)
                    self._limit = limit
                    self._evict()
                    continue
                if first & 0x80:
                    index, at = self._integer(block, at, 0x7F)
                    header = self._entry(index)
                else:
                    index, at = self._integer(block, at, 0x3F if first & 0x40 else 0x0F)
                    name = self._entry(index)[0] if index else b""
                    if not index:
                        name, at = self._string(block, at)
                    value, at = self._string(block, at)
                    header = (name, value)
                    if first & 0x40:
                        self._table.insert(0, header)
                        self._evict()
                headers.append(header)
                size += len(header[0]) + len(header[1]) + 32
                if size > self._most:
                    raise _Violation("sent too many bytes of headers", _CALM)
        except IndexError:
            raise _Violation("sent a broken header block", _COMPRESSION) from None
        return headers

    def _evict(self) -> None:
        while self._table and sum(len(n) + len(v) + 32 for n, v in self._table) > self._limit:
            self._table.pop()

    def _entry(self, index: int) -> Tuple[bytes, bytes]:
        if not index:
            raise IndexError
        return _STATIC[index - 1] if index <= 61 else self._table[index - 62]

    def _integer(self, block: bytes, at: int, mask: int) -> Tuple[int, int]:
        number, at = block[at] & mask, at + 1
        if number == mask:
            for shift in range(0, 28, 7):
                number, at = number + ((block[at] & 0x7F) << shift), at + 1
                if block[at - 1] < 0x80:
                    return number, at
            raise _Violation("sent a large integer in a header", _COMPRESSION)
        return number, at

    def _string(self, block: bytes, at: int) -> Tuple[bytes, int]:
        is_coded = block[at] & 0x80
        size, at = self._integer(block, at, 0x7F)
        if at + size > len(block):
            raise IndexError
        string = block[at : at + size]
        return (_unhuffman(string) if is_coded else string), at + size


def _header_block(*headers: Tuple[str, str]) -> bytes:
    """Returns headers without use of a table, beside the size 0 that it is set to."""
    block = b"\x20"
    for header in headers:
        block += b"\x00"
        for text in header:
            encoded = text.encode("latin-1", "replace")
            size = len(encoded)
            block += bytes([size]) if size < 127 else b"\x7f" + _varint(size - 127)
            block += encoded
    return block


# Frames (RFC 9113).

_DATA, _HEADERS, _PRIORITY, _RST, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW, _CONTINUATION = range(
    10
)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _WITH_PRIORITY = 1, 1, 4, 8, 32
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_CONNECTION_WINDOW, _STREAM_WINDOW, _LARGEST_WINDOW = 1 << 24, 1 << 20, (1 << 31) - 1
_MAX_HEADER_BYTES, _MAX_CONTROL_BYTES = 1 << 14, (1 << 16) - 1024
_MAX_IDLE_FRAMES = 100_000  # Frames without content between two with content.
_MAX_UNREWARDED = 200  # Streams that a client reset, or that were refused, beyond answers.
_MAX_UNSENT = 1 << 22  # Bytes of answers beyond which nothing is answered.
_SPIN_SECONDS = 0.0005
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_PATH = "/dm_env_rpc.v1.Environment/Process"
_HEALTH = "/grpc.health.v1.Health/"


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return struct.pack(">HBBBI", size >> 8, size & 0xFF, kind, flags, stream) + payload


class _Stream:
    """One call: its session, the messages that wait for their answers, what is not sent yet."""

    def __init__(self, number: int, path: str, window: int, length: Optional[int]):
        self.number, self.path, self.window, self.length = number, path, window, length
        self.session: Optional[_Session] = None
        self.queue: Deque[Optional[bytes]] = collections.deque()
        self.unsent: Deque[Any] = collections.deque()
        self.trailers = b""
        self.partial = bytearray()
        self.unacknowledged = 0
        self.has_headers = self.has_ended = self.is_over = False


class _Unknown(OSError):
    """The client does not speak HTTP/2."""


class _Broken(OSError):
    """The client broke the rules of HTTP/2, and was told so."""


class _Connection:
    """A socket of a client. `lock` is held while it is read, parsed or written.

    The thread that reads answers the requests of the first stream ("home") itself; other streams
    have a thread each. So an environment is always called by the same thread. While an answer of
    the first stream takes long, another thread reads (`substitute`).
    """

    def __init__(self, server: "Server", sock: Any, peer: str, is_local: bool):
        self.server, self.sock, self.peer, self.is_local = server, sock, peer, is_local
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.streams: Dict[int, _Stream] = {}
        self.home: Optional[_Stream] = None
        self.reader: Any = None
        self.main: Any = None
        self.is_over = self.is_ending = False
        self.turn = 0  # Odd while the home stream is answered.
        self.last_stream = 0
        self.began = self.taken_at = time.monotonic()
        self.unsent = 0
        self.idle_frames = self.unrewarded = 0
        self._outbound: Deque[Any] = collections.deque()
        self._blocked: Dict[int, _Stream] = {}
        self._buffer = bytearray()
        self._head: Optional[Tuple[int, int, int, int]] = None
        self._skip = 0
        self._preface, self._is_greeted = _PREFACE, False
        self._decoder = _HeaderDecoder(_MAX_HEADER_BYTES)
        self._block, self._block_of, self._block_ends, self._parts = bytearray(), 0, False, 0
        self._reset: Any = collections.OrderedDict()
        self._window = self._initial_window = 65_535
        self._max_frame = 1 << 14
        self._unacknowledged = self._unsent_acks = 0
        self._credit, self._rest, self._next_rest = 0, 0, 16

    # Threads.

    def run(self) -> None:
        """Serves the connection until it is over."""
        self.reader = self.main = me = threading.current_thread()
        try:
            if self.server.tls is not None:
                self.sock.settimeout(10.0)
                self.sock = self.server.tls.wrap_socket(self.sock, server_side=True)
                if self.sock.selected_alpn_protocol() != "h2":
                    raise OSError("no HTTP/2 in TLS")
            self.sock.setblocking(False)
            settings = (
                (3, self.server.max_streams),
                (4, _STREAM_WINDOW),
                (5, (1 << 24) - 1),
                (6, _MAX_HEADER_BYTES),
            )
            greeting = b"".join(struct.pack(">HI", *setting) for setting in settings)
            window = struct.pack(">I", _CONNECTION_WINDOW - 65_535)
            with self.lock:
                self._outbound.append(
                    _frame(_SETTINGS, 0, 0, greeting) + _frame(_WINDOW, 0, 0, window)
                )
                self._flush()
            self._read(me, True)
        except (OSError, ValueError) as error:
            _log.debug("%s: %s", self.peer, error)
            if isinstance(error, _Broken):
                self._linger()
        except Exception as error:
            self.server.failed(error, f"in the connection of {self.peer}")
        finally:
            self.close()
            self._answer_home(me)
            self.server.forget(self)

    def substitute(self) -> None:
        """Has another thread read; called when the answer of the home stream takes long."""
        with self.lock:
            if not self.is_over and self.turn & 1:
                self.reader = threading.Thread(target=self._read_meanwhile, daemon=True)
                self.reader.start()

    def _read_meanwhile(self) -> None:
        try:
            self._read(threading.current_thread(), False)
        except (OSError, ValueError):
            self.close()
        except Exception as error:
            self.server.failed(error, f"in the connection of {self.peer}")
            self.close()

    def _read(self, me: Any, is_main: bool) -> None:
        try:
            while self.reader is me and not self.is_over:
                home = self.home
                if is_main and home is not None and home.queue and self.unsent <= _MAX_UNSENT:
                    self._answer_home(me)
                elif not self._receive(me) and not self._spin(me):
                    self.server.awake.discard(me)
                    _wait(self.sock, bool(self._outbound), 60.0)
                    self.server.awake.add(me)
        finally:
            self.server.awake.discard(me)

    def _spin(self, me: Any) -> bool:
        """Looks for input for a moment before the thread sleeps, where that has paid before."""
        if self._rest or len(self.server.awake) > 1 or self._outbound or self.server.is_single:
            self._rest = max(0, self._rest - 1)
            return False
        end = time.perf_counter() + _SPIN_SECONDS
        while time.perf_counter() < end:
            if self._receive(me):
                self._credit = min(self._credit + 1, 256)
                return True
            os.sched_yield()
        self._credit -= 4
        if self._credit < 0:
            self._credit, self._rest = 0, self._next_rest
            self._next_rest = min(2 * self._next_rest, 1024)
        return self.reader is not me

    def _answer_home(self, me: Any) -> None:
        """Answers what waits on the home stream."""
        home = self.home
        while home is not None and home.queue:
            self.turn += 1
            self.server.watch()
            try:
                self._answer(home)
            finally:
                self.turn += 1
                if self.reader is not me:
                    with self.lock:  # From here on this thread reads again.
                        self.reader = me
            home = self.home
            if self.unsent > _MAX_UNSENT and not self.is_over:
                return

    def _answer_stream(self, stream: _Stream) -> None:
        """Answers the requests of a stream other than the home stream, in its own thread."""
        me = threading.current_thread()
        while not (stream.session is None and not stream.queue):
            with self.changed:
                while not stream.queue or (self.unsent > _MAX_UNSENT and not self.is_over):
                    self.server.awake.discard(me)
                    self.changed.wait(1.0 if stream.queue else None)
            self.server.awake.add(me)
            self._answer(stream)
            while self._outbound and not self.is_over and self.unsent > 0:
                if _wait(self.sock, True, 1.0):
                    with self.lock:
                        self._flush()
                else:
                    break
        self.server.awake.discard(me)

    def _answer(self, stream: _Stream) -> None:
        """Answers the next message of a stream, or ends it."""
        message, session = stream.queue.popleft(), stream.session
        if session is None:
            return
        if message is None:
            stream.session = None
            try:
                session.close()
            except Exception as error:
                self.server.failed(error, "when an agent left")
            with self.lock:
                self.server.stream_count -= 1
                if self.home is stream:
                    self.home = None
                self.finish(stream, 0, "")
                self._flush()
            return
        if session.is_gone:
            return
        try:
            answer = session.answer(message)
        except _StreamError as error:
            with self.lock:
                self.finish(stream, error.code, str(error))
                self._drop(stream)
                self._flush()
            return
        with self.lock:
            self.send(stream, answer)
            if not stream.queue:
                self._acknowledge_content(stream)
            self._flush()

    # What is sent; with the lock.

    def send(self, stream: _Stream, message: bytes) -> None:
        if stream.is_over:
            return
        self.unrewarded = max(0, self.unrewarded - 1)
        if not stream.has_headers:
            stream.has_headers = True
            block = _header_block((":status", "200"), ("content-type", "application/grpc"))
            self._outbound.append(_frame(_HEADERS, _END_HEADERS, stream.number, block))
        size = len(message) + 5
        self.unsent += size
        prefix = struct.pack(">BI", 0, size - 5)
        if size <= min(self._max_frame, self._window, stream.window, 8192) and not stream.unsent:
            self._window -= size
            stream.window -= size
            self._outbound.append(_frame(_DATA, 0, stream.number, prefix + message))
            return
        stream.unsent.extend((prefix, memoryview(message)))
        self._blocked[stream.number] = stream
        self._frame_content()

    def finish(self, stream: _Stream, code: int, text: str) -> None:
        """Sends the status of a stream behind its answers."""
        if not stream.is_over:
            trailers = [("grpc-status", str(code))]
            if text:
                quoted = urllib.parse.quote(text[:1000], " !#$&'()*+,/:;=?@", errors="replace")
                trailers.append(("grpc-message", quoted))
            if not stream.has_headers:
                trailers[:0] = [(":status", "200"), ("content-type", "application/grpc")]
            self._finish(stream, trailers, code != 0 and not stream.has_headers)

    def _finish(self, stream: _Stream, headers: Any, is_refused: bool) -> None:
        stream.is_over = True
        self.unrewarded += is_refused
        block = _header_block(*headers)
        stream.trailers = _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream.number, block)
        self._blocked[stream.number] = stream
        self._frame_content()

    def _frame_content(self) -> None:
        """Puts into frames what the windows allow, a frame for each stream in turn."""
        has_advanced = True
        while has_advanced:
            has_advanced = False
            for stream in list(self._blocked.values()):
                room = min(self._max_frame, self._window, stream.window)
                parts, size = [], 0  # type: List[Any], int
                while stream.unsent and size < room:
                    part = stream.unsent[0][: room - size]
                    size += len(part)
                    parts.append(part)
                    rest = stream.unsent.popleft()[len(part) :]
                    if len(rest):
                        stream.unsent.appendleft(rest)
                if size:
                    has_advanced = True
                    self._window -= size
                    stream.window -= size
                    head = _frame(_DATA, 0, stream.number)
                    self._outbound.append(struct.pack(">HB", size >> 8, size & 0xFF) + head[3:])
                    self._outbound.extend(parts)
                if not stream.unsent:
                    del self._blocked[stream.number]
                    if stream.trailers:
                        self._outbound.append(stream.trailers)
                        if not stream.has_ended:
                            self._outbound.append(_frame(_RST, 0, stream.number, bytes(4)))
                        self._forget(stream)

    def _flush(self) -> None:
        """Sends what the socket takes."""
        outbound = self._outbound
        try:
            while outbound and not self.is_over:
                if len(outbound) == 1 or self.server.tls is not None:
                    count = self.sock.send(outbound[0])
                else:
                    count = self.sock.sendmsg(list(itertools.islice(outbound, 64)))
                self.taken_at = time.monotonic() if self.unsent > _MAX_UNSENT else self.began
                self.unsent = max(0, self.unsent - count)
                while count and count >= len(outbound[0]):
                    count -= len(outbound.popleft())
                if count:
                    outbound[0] = memoryview(outbound[0])[count:]
            if not outbound:
                self._unsent_acks = 0
                if not self._blocked:
                    self.unsent = 0
        except _WOULD_BLOCK:
            pass
        except OSError:
            outbound.clear()  # The end is received, too.

    # What is received; with the lock.

    def _receive(self, me: Any) -> bool:
        """Receives once and parses it; False if there was nothing."""
        with self.lock:
            if self.reader is not me or self.is_over:
                return False
            try:
                # Frames without content take time: little at once leaves other threads theirs.
                data = self.sock.recv(4096 if self.idle_frames > 256 else 1 << 16)
            except _WOULD_BLOCK:
                self._flush()
                return False
            if not data:
                raise OSError("the client has closed the connection")
            self._buffer += data
            while True:
                try:
                    self._parse()
                    break
                except _Violation as violation:
                    if not violation.stream:
                        self._outbound.append(
                            _frame(
                                _GOAWAY, 0, 0, struct.pack(">II", self.last_stream, violation.code)
                            )
                        )
                        self._flush()
                        raise _Broken(str(violation)) from None
                    self._reset_stream(violation.stream, violation.code)
                    self.idle_frames += 1
            self._flush()
            return True

    def _parse(self) -> None:
        """Takes the frames in the buffer."""
        buffer, at = self._buffer, 0
        try:
            if self._preface:
                size = min(len(buffer), len(self._preface))
                if buffer[:size] != self._preface[:size]:
                    raise _Unknown("the client does not speak HTTP/2")
                self._preface, at = self._preface[size:], size
            while True:
                if self._skip:
                    size = min(self._skip, len(buffer) - at)
                    self._skip, at = self._skip - size, at + size
                if self._head is None:
                    if self._skip or len(buffer) - at < 9:
                        return
                    high, low, kind, flags, stream = struct.unpack_from(">HBBBI", buffer, at)
                    at += 9
                    self._begin(high << 8 | low, kind, flags, stream & _LARGEST_WINDOW)
                    continue
                size, kind, flags, stream = self._head
                if len(buffer) - at < size:
                    return
                payload = bytes(buffer[at : at + size])
                at, self._head = at + size, None
                _HANDLERS[kind](self, flags, stream, payload)
        finally:
            del buffer[:at]

    def _begin(self, size: int, kind: int, flags: int, stream: int) -> None:
        """Takes the head of a frame."""
        if not self._is_greeted and (kind != _SETTINGS or flags & _ACK or stream or size % 6):
            raise _Unknown("the client does not begin with SETTINGS")
        if self._block_of and kind != _CONTINUATION:
            raise _Violation("sent another frame within a header block")
        if kind != _DATA:
            self.idle_frames += 1 + (size >> 10 if kind > _CONTINUATION else 0)
            if self.idle_frames > _MAX_IDLE_FRAMES:
                raise _Violation("sent too many frames without content", _CALM)
            if kind > _CONTINUATION:
                self._skip = size
                return
            if size > _MAX_CONTROL_BYTES:
                is_block = kind in (_HEADERS, _CONTINUATION)
                raise _Violation("sent a frame that is too large", _CALM if is_block else _SIZE)
            self._head = (size, kind, flags, stream)
            return
        known = self.streams.get(stream)
        self._unacknowledged += size
        if self._unacknowledged > _CONNECTION_WINDOW:
            raise _Violation("sent more than the window of the connection", _FLOW)
        if self._unacknowledged * 2 > _CONNECTION_WINDOW:
            self._outbound.append(_frame(_WINDOW, 0, 0, struct.pack(">I", self._unacknowledged)))
            self._unacknowledged = 0
        if known is None or known.has_ended:
            self.idle_frames += 1 + (size >> 10)
            self._skip = size
            self._check_stream(stream, "DATA")
            if stream not in self._reset:
                raise _Violation("sent DATA on a stream that is over", _CLOSED, stream)
            return
        known.unacknowledged += size
        if known.unacknowledged > _STREAM_WINDOW:
            self._skip = size
            raise _Violation("sent more than the window of the stream", _FLOW, stream)
        self._head = (size, kind, flags, stream)

    def _check_stream(self, stream: int, what: str) -> None:
        if not stream & 1 or stream > self.last_stream:
            raise _Violation(f"sent {what} on stream {stream}, which is not open")

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        content = _without_padding(flags, payload)
        stream = self.streams.get(number)
        self.idle_frames = 0 if content else self.idle_frames + 1
        if self.idle_frames > _MAX_IDLE_FRAMES:
            raise _Violation("sent too many frames without content", _CALM)
        if stream is None:
            return
        if stream.length is not None:
            stream.length -= len(content)
        if stream.is_over:
            pass
        elif (
            not stream.partial
            and len(content) > 4
            and content[:5] == struct.pack(">BI", 0, len(content) - 5)
        ):
            self._take(stream, content[5:])
        else:
            stream.partial += content
            self._assemble(stream)
        if flags & _END_STREAM:
            self._end(stream)
        elif not stream.queue:
            self._acknowledge_content(stream)

    def _assemble(self, stream: _Stream) -> None:
        partial = stream.partial
        while len(partial) >= 5 and not stream.is_over:
            is_compressed, size = struct.unpack_from(">BI", partial)
            if is_compressed or size > MAX_MESSAGE_BYTES:
                text = f"the client sent a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed"
                if is_compressed:
                    text = "the client sent a compressed message: turn off compression there"
                self.finish(stream, UNIMPLEMENTED if is_compressed else RESOURCE_EXHAUSTED, text)
                self._drop(stream)
            if len(partial) < 5 + size:
                return
            message = bytes(memoryview(partial)[5 : 5 + size])
            del partial[: 5 + size]
            self._take(stream, message)

    def _take(self, stream: _Stream, message: Optional[bytes]) -> None:
        """Takes a message, or None for the end of the client's half."""
        if stream.session is not None:
            stream.queue.append(message)
            if stream is not self.home:
                self.changed.notify_all()
        elif message is not None and stream.path in (_HEALTH + "Check", _HEALTH + "Watch"):
            is_known = message[2:] in (b"", _PATH.split("/")[1].encode())
            if is_known or stream.path.endswith("Watch"):
                self.send(stream, b"\x08\x01" if is_known else b"\x08\x03")
            if stream.path.endswith("Check"):
                self.finish(
                    stream, 0 if is_known else NOT_FOUND, "" if is_known else "no such service"
                )

    def _end(self, stream: _Stream) -> None:
        if stream.partial or stream.length:
            raise _Violation("ended a stream within a message", stream=stream.number)
        stream.has_ended = True
        self._take(stream, None)

    def _acknowledge_content(self, stream: _Stream) -> None:
        if stream.unacknowledged * 2 > _STREAM_WINDOW and not stream.has_ended:
            increment = struct.pack(">I", stream.unacknowledged)
            self._outbound.append(_frame(_WINDOW, 0, stream.number, increment))
            stream.unacknowledged = 0

    def _on_headers(self, flags: int, stream: int, payload: bytes) -> None:
        payload = _without_padding(flags, payload)
        if flags & _WITH_PRIORITY and len(payload) < 5:
            raise _Violation("sent HEADERS without their priority", _SIZE)
        self._block = bytearray(payload[5 if flags & _WITH_PRIORITY else 0 :])
        self._block_of, self._block_ends, self._parts = stream, bool(flags & _END_STREAM), 0
        if not stream & 1:
            raise _Violation(f"opened stream {stream}")
        self._end_block(flags)

    def _on_continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream or stream != self._block_of:
            raise _Violation("sent CONTINUATION outside a header block")
        self._block += payload
        self._parts += 1
        self._end_block(flags)

    def _end_block(self, flags: int) -> None:
        if len(self._block) > _MAX_HEADER_BYTES or self._parts > 64:
            raise _Violation("sent too many bytes of headers", _CALM)
        if flags & _END_HEADERS:
            number, self._block_of = self._block_of, 0
            self._open(number, self._decoder.decode(bytes(self._block)), self._block_ends)

    def _open(self, number: int, headers: List[Tuple[bytes, bytes]], ends: bool) -> None:
        """Opens a stream, or ends it if these are trailers."""
        stream = self.streams.get(number)
        if stream is not None:
            if stream.has_ended:
                raise _Violation("sent HEADERS after END_STREAM", _CLOSED, number)
            _checked_headers(headers, number, are_trailers=True)
            if not ends:
                raise _Violation("sent a second request", stream=number)
            self._end(stream)
            return
        if number <= self.last_stream:
            if number in self._reset:
                return
            raise _Violation(f"sent HEADERS on stream {number}, which is over", _CLOSED)
        self.last_stream = number
        if self.unrewarded > _MAX_UNREWARDED:
            raise _Violation("opened and reset too many streams", _CALM)
        fields, length = _checked_headers(headers, number)
        if self.is_ending or len(self.streams) >= self.server.max_streams + 100:
            self._reset_stream(number, _REFUSED)
            return
        path = fields[b":path"].decode("latin-1")
        stream = self.streams[number] = _Stream(number, path, self._initial_window, length)
        if fields[b":method"] != b"POST":
            self._finish(stream, [(":status", "405")], True)
        elif not fields.get(b"content-type", b"").startswith(b"application/grpc"):
            self._finish(stream, [(":status", "415")], True)
        else:
            self._begin_call(stream, fields.get(b"authorization", b""))
        if ends:
            self._end(stream)
        if stream.is_over:
            stream.has_ended = stream.has_ended or ends

    def _begin_call(self, stream: _Stream, authorization: bytes) -> None:
        server = self.server
        if stream.path in (_HEALTH + "Check", _HEALTH + "Watch"):
            return
        if stream.path != _PATH:
            self.finish(stream, UNIMPLEMENTED, "the server has no such method")
        elif server.token and not hmac.compare_digest(
            authorization, b"Bearer " + server.token.encode()
        ):
            self.finish(
                stream, UNAUTHENTICATED, "the server requires a token: authorization: Bearer ..."
            )
        elif server.stream_count >= server.max_streams:
            text = f"the server is full: it takes {server.max_streams} streams at a time"
            self.finish(stream, RESOURCE_EXHAUSTED, text)
        else:
            server.stream_count += 1
            stream.session = _Session(server, self.peer, self.is_local)
            if self.home is None:
                self.home = stream
            else:
                threading.Thread(target=self._answer_stream, args=(stream,), daemon=True).start()

    def _on_priority(self, flags: int, stream: int, payload: bytes) -> None:
        if not stream or len(payload) != 5:
            known = stream if stream in self.streams else 0
            raise _Violation("sent a broken PRIORITY", _SIZE if stream else _PROTOCOL, known)

    def _on_rst_stream(self, flags: int, number: int, payload: bytes) -> None:
        _check_size(payload, 4)
        self._check_stream(number, "RST_STREAM")
        stream = self.streams.get(number)
        if stream is not None:
            self.unrewarded += 1
            stream.has_ended = True
            self._drop(stream)
            self._forget(stream)

    def _on_settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & _ACK and payload):
            raise _Violation("sent broken SETTINGS", _PROTOCOL if stream else _SIZE)
        self.idle_frames += 7
        if flags & _ACK:
            return
        if len(payload) > 600:
            raise _Violation("sent more than 100 settings", _CALM)
        for name, value in struct.iter_unpack(">HI", payload):
            if (name == 2 and value > 1) or (name == 5 and not 1 << 14 <= value < 1 << 24):
                raise _Violation(f"set {name} to {value}")
            if name == 5:
                self._max_frame = value
            if name == 4:
                change, self._initial_window = value - self._initial_window, value
                for each in self.streams.values():
                    each.window += change
                if max([value, *(each.window for each in self.streams.values())]) > _LARGEST_WINDOW:
                    raise _Violation(f"set a window of {value}", _FLOW)
        self._is_greeted = True
        self._acknowledge(_frame(_SETTINGS, _ACK, 0))
        self._frame_content()

    def _on_push_promise(self, flags: int, stream: int, payload: bytes) -> None:
        raise _Violation("sent PUSH_PROMISE")

    def _on_ping(self, flags: int, stream: int, payload: bytes) -> None:
        _check_size(payload, 8)
        if stream:
            raise _Violation("sent PING on a stream")
        if not flags & _ACK:
            self._acknowledge(_frame(_PING, _ACK, 0, payload))

    def _acknowledge(self, answer: bytes) -> None:
        self._unsent_acks += 1
        if self._unsent_acks > 1000:
            raise _Violation("does not read acknowledgements", _CALM)
        self._outbound.append(answer)

    def _on_goaway(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) < 8:
            raise _Violation("sent a broken GOAWAY", _PROTOCOL if stream else _SIZE)

    def _on_window_update(self, flags: int, number: int, payload: bytes) -> None:
        _check_size(payload, 4)
        increment = struct.unpack(">I", payload)[0] & _LARGEST_WINDOW
        stream = self.streams.get(number)
        if number and stream is None:
            self._check_stream(number, "WINDOW_UPDATE")
        if not increment:
            raise _Violation("opened a window by 0", stream=number)
        if stream is not None:
            stream.window += increment
        elif not number:
            self._window += increment
        if (self._window if stream is None else stream.window) > _LARGEST_WINDOW:
            raise _Violation("opened a window too far", _FLOW, number)
        if self._blocked and self._window > 0 and (not number or number in self._blocked):
            self._frame_content()

    # Ends.

    def _reset_stream(self, number: int, code: int) -> None:
        self._outbound.append(_frame(_RST, 0, number, struct.pack(">I", code)))
        self.unrewarded += 1
        self._remember(number)
        stream = self.streams.get(number)
        if stream is not None:
            stream.has_ended = True
            self._drop(stream)
            self._forget(stream)

    def _remember(self, number: int) -> None:
        """Notes a stream on which frames may still come, without harm."""
        self._reset[number] = None
        if len(self._reset) > 1000:
            self._reset.popitem(last=False)

    def _forget(self, stream: _Stream) -> None:
        stream.is_over = True
        stream.unsent.clear()
        if not stream.has_ended:
            self._remember(stream.number)
        self.streams.pop(stream.number, None)
        self._blocked.pop(stream.number, None)

    def _drop(self, stream: _Stream) -> None:
        """Ends the session of a stream: what waits is not answered."""
        stream.partial = bytearray()
        if stream.session is not None:
            stream.session.is_gone = True
            stream.queue.clear()
            stream.queue.append(None)
            self.changed.notify_all()

    def leave(self) -> None:
        """Tells the client that no new streams are taken."""
        with self.lock:
            self.is_ending = True
            self._outbound.append(_frame(_GOAWAY, 0, 0, struct.pack(">II", self.last_stream, 0)))
            self._flush()

    def _linger(self) -> None:
        """Has the client read why its connection ends, before that is lost by a reset."""
        deadline = time.monotonic() + 5.0
        try:
            while self._outbound and _wait(self.sock, True, 1.0) and time.monotonic() < deadline:
                self._flush()
                if self._outbound:
                    self.sock.recv(1 << 16)
            self.sock.shutdown(socket.SHUT_WR)
            while _wait(self.sock, False, 1.0) and time.monotonic() < deadline:
                if not self.sock.recv(1 << 16):
                    return
        except OSError:
            pass

    def close(self) -> None:
        """Closes the socket, and ends all streams."""
        with self.lock:
            if self.is_over:
                return
            self.is_over = True
            for stream in list(self.streams.values()):
                stream.has_ended = True
                self._drop(stream)
                self._forget(stream)
            self._outbound.clear()
            try:
                self.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            self.sock.close()


_HANDLERS = (
    _Connection._on_data,
    _Connection._on_headers,
    _Connection._on_priority,
    _Connection._on_rst_stream,
    _Connection._on_settings,
    _Connection._on_push_promise,
    _Connection._on_ping,
    _Connection._on_goaway,
    _Connection._on_window_update,
    _Connection._on_continuation,
)


def _check_size(payload: bytes, size: int) -> None:
    if len(payload) != size:
        raise _Violation(f"sent a frame of {len(payload)} bytes in place of {size}", _SIZE)


def _without_padding(flags: int, payload: bytes) -> bytes:
    if not flags & _PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise _Violation("sent more padding than there is")
    return payload[1 : len(payload) - payload[0]]


_FORBIDDEN = (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_NAME = re.compile(rb":?[!-9;-@\[-~]+")


def _checked_headers(
    headers: List[Tuple[bytes, bytes]], stream: int, are_trailers: bool = False
) -> Tuple[Dict[bytes, bytes], Optional[int]]:
    """Returns the headers of a request, and the length of its content (RFC 9113, section 8)."""
    fields: Dict[bytes, bytes] = {}
    for name, value in headers:
        wrong = not _NAME.fullmatch(name) or re.search(b"[\0\r\n]", value) or name in _FORBIDDEN
        wrong = wrong or (name == b"te" and value != b"trailers")
        if name[:1] == b":":
            late = any(each[:1] != b":" for each in fields)
            wrong = wrong or late or name in fields or name not in _PSEUDO or are_trailers
        if name == b"content-length":
            wrong = wrong or not value.isdigit() or fields.get(name, value) != value
        if wrong:
            raise _Violation("sent a malformed header", stream=stream)
        fields[name] = value.strip(b" \t")
    if not are_trailers and not all(fields.get(name) for name in _PSEUDO[:3]):
        raise _Violation("sent a request without its pseudo-headers", stream=stream)
    length = fields.get(b"content-length")
    return fields, None if length is None else int(length[:18])


def _wait(sock: Any, for_output: bool, seconds: float) -> bool:
    """Waits until a socket can be read, or written."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN | (select.POLLOUT if for_output else 0))
        return bool(poll.poll(seconds * 1000))
    found = select.select([sock], [sock] if for_output else [], [], seconds)
    return bool(found[0] or found[1])


# The server.


class Server:
    """A running server; made by `serve`.

    Attributes:
      address: where it listens.
      errors: the last exceptions of the environments, oldest first.
    """

    def __init__(
        self, factory: Any, listener: Any, address: str, tls: Any, token: Any, options: Any
    ):
        self.address, self.tls, self.token = address, tls, token
        self.max_streams, self._idle_seconds = options
        self.errors: Deque[BaseException] = collections.deque(maxlen=100)
        self.lock = threading.RLock()
        self.worlds: Dict[str, _World] = {}
        self.stream_count = self._being_made = 0
        self.awake: Set[Any] = set()
        processors = (
            len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        )
        self.is_single = processors == 1 or not hasattr(os, "sched_yield")
        self._factory, self._listener = factory, listener
        self._connections: Set[_Connection] = set()
        self._numbers = itertools.count(1)
        self._stopped, self._busy = threading.Event(), threading.Event()
        self._logged_at = 0.0
        for target in (self._accept, self._look):
            threading.Thread(target=target, daemon=True).start()

    # Worlds.

    def create(self, settings: Dict[str, Any], creator: _Session) -> str:
        with self.lock:
            if len(self.worlds) + self._being_made >= MAX_WORLDS:
                text = f"the server has reached its limit of {MAX_WORLDS} worlds; destroy one first"
                raise Refusal(RESOURCE_EXHAUSTED, text)
            held = self._checked_hold(0, settings)
            self._being_made += 1
        try:
            world = _World(self._factory, settings, creator)
        finally:
            with self.lock:
                self._being_made -= 1
        with self.lock:
            name = f"world-{next(self._numbers)}"
            world.held, self.worlds[name] = held, world
            self._busy.set()
            return name

    def world(self, name: str) -> _World:
        """Returns a world by name; with the lock."""
        if name not in self.worlds:
            known = ", ".join(list(self.worlds)[:32]) or "none; create one first"
            raise Refusal(NOT_FOUND, f"no world {name[:200]!r}; worlds: {known}")
        return self.worlds[name]

    def hold(self, world: _World, settings: Dict[str, Any]) -> None:
        """Counts the memory of settings that a world is reset with."""
        with self.lock:
            world.held = self._checked_hold(world.held, settings)

    def _checked_hold(self, before: int, settings: Dict[str, Any]) -> int:
        size = before
        for name, value in settings.items():
            elements = value.flat if getattr(value, "dtype", int) is np.dtype(object) else ()
            size += 256 + 4 * len(name) + sys.getsizeof(value) + sum(map(sys.getsizeof, elements))
            size += getattr(value, "nbytes", 0)
        if sum(world.held for world in self.worlds.values()) - before + size > MAX_HELD_BYTES:
            text = f"the settings of all worlds would take more than {MAX_HELD_BYTES} bytes"
            raise Refusal(RESOURCE_EXHAUSTED, text)
        return size

    def failed(self, error: BaseException, where: str) -> None:
        """Notes an exception; the log gets one a second."""
        self.errors.append(error)
        if time.monotonic() - self._logged_at > 1.0:
            self._logged_at = time.monotonic()
            _log.error(
                "%s: %s",
                where,
                "".join(traceback.format_exception(type(error), error, error.__traceback__)),
            )

    # Threads.

    def watch(self) -> None:
        """Has `_look` look whether the answer that begins takes long."""
        if not self._busy.is_set():
            self._busy.set()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, where = self._listener.accept()
            except OSError as error:
                if not self._stopped.is_set():
                    _log.warning("cannot accept a connection: %s", error)
                    self._drop_silent()
                    time.sleep(0.1)
                continue
            if len(self._connections) >= self.max_streams + 64 and not self._drop_silent():
                sock.close()
                continue
            is_local = not isinstance(where, tuple) or _is_loopback(where)
            if sock.family != getattr(socket, "AF_UNIX", None):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = _Connection(self, sock, repr(where), is_local)
            with self.lock:
                self._connections.add(connection)
            self._busy.set()
            threading.Thread(target=connection.run, daemon=True).start()

    def _drop_silent(self) -> bool:
        """Closes the oldest connection without a stream, if there is one."""
        with self.lock:
            silent = [each for each in self._connections if not each.streams and not each.is_over]
        if silent:
            min(silent, key=lambda each: (each.last_stream > 0, each.began)).close()
        return bool(silent)

    def forget(self, connection: _Connection) -> None:
        with self.lock:
            self._connections.discard(connection)

    def _look(self) -> None:
        """Looks for answers that take long, silent clients, and worlds that nobody uses."""
        seen, next_look, quiet_since = {}, 0.0, time.monotonic()  # type: Any, float, float
        while not self._stopped.is_set():
            time.sleep(0.02)
            now = time.monotonic()
            with self.lock:
                connections = list(self._connections)
            turns = {each: each.turn for each in connections}
            for each, turn in turns.items():
                if turn & 1 and seen.get(each) == turn and each.reader is each.main:
                    each.substitute()
            if turns != seen:
                quiet_since = now
            seen = turns
            if now > next_look:
                next_look = now + 1.0
                self._look_after(connections, now)
            if now - quiet_since > 0.5 and not any(turn & 1 for turn in turns.values()):
                self._busy.clear()
                if turns == {each: each.turn for each in connections}:
                    self._busy.wait(1.0)
                self._busy.set()

    def _look_after(self, connections: List[_Connection], now: float) -> None:
        for each in connections:
            each.idle_frames = max(0, each.idle_frames - 100)
            each.unrewarded = max(0, each.unrewarded - 20)
            is_mute = not each.last_stream and now - each.began > 10.0
            if is_mute or (each.unsent > _MAX_UNSENT and now - each.taken_at > 600.0):
                each.close()
        with self.lock:
            idle = [
                name
                for name, world in self.worlds.items()
                if world.agent is None
                and world.creator is None
                and now - world.idle_since > self._idle_seconds
            ]
            worlds = [self.worlds.pop(name) for name in idle]
        for world in worlds:
            world.close()

    # The end.

    def wait(self) -> None:
        """Waits until the server is stopped."""
        while not self._stopped.wait(60.0):
            pass

    def stop(self, grace: float = 5.0) -> None:
        """Ends all streams, after `grace` seconds at most, and closes the environments."""
        if self._stopped.is_set():
            return
        self._stopped.set()
        self._busy.set()
        try:
            self._listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._listener.close()
        deadline = time.monotonic() + grace
        for each in list(self._connections):
            each.leave()
        while self.stream_count and time.monotonic() < deadline:
            time.sleep(0.01)
        for each in list(self._connections):
            each.close()
        with self.lock:
            worlds = list(self.worlds.values())
            self.worlds.clear()
        for world in worlds:
            world.close()
        if self.address.startswith("unix:"):
            try:
                os.unlink(self.address[5:])
            except OSError:
                pass

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop(0.0)


def _is_loopback(where: Any) -> bool:
    return ipaddress.ip_address(where[0].split("%")[0]).is_loopback


def serve(
    factory: Callable[..., Any],
    address: str = "localhost:0",
    token: Optional[str] = None,
    cert: Optional[str] = None,
    key: Optional[str] = None,
    insecure: bool = False,
    max_streams: int = 256,
    idle_world_seconds: float = 60.0,
) -> Server:
    """Serves environments.

    Args:
      factory: makes an environment from the settings of a client.
      address: `host:port`, where port 0 takes a free one, or `unix:path`.
      token: a secret that clients have to send, as `make(..., token=...)` does. Needed where other
        machines can connect.
      cert, key: PEM files for TLS; None for plaintext.
      insecure: whether other machines may connect without a token.
      max_streams: clients beyond this number are refused.
      idle_world_seconds: when a world ends that nobody uses, and whose client is gone.

    Raises:
      ValueError: other machines could connect without a token.
      OSError: the address is taken.
    """
    tls = None
    if cert is not None:
        tls = ssl.SSLContext(getattr(ssl, "PROTOCOL_TLS_SERVER", ssl.PROTOCOL_TLS))
        tls.load_cert_chain(cert, key)
        tls.set_alpn_protocols(["h2"])
    if address.startswith("unix:"):
        path = address[5:]
        if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode):
            os.unlink(path)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
    else:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        found = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # Of "localhost", the address that all clients try.
        family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
        if not _is_loopback(where) and not (token or insecure):
            raise ValueError(f"other machines can reach {address}: pass a token, or insecure=True")
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        address = f"{address.rpartition(':')[0]}:{listener.getsockname()[1]}"
    listener.listen(512)
    return Server(factory, listener, address, tls, token, (max_streams, idle_world_seconds))


def _imported(reference: str) -> Any:
    """Returns what MODULE:NAME names; SystemExit, which says why not, in which Python."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except (ImportError, AttributeError) as error:
        traceback.print_exc()
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(f"cannot import {reference} in Python {version} at {sys.executable}: {error}")


def main(arguments: Optional[List[str]] = None) -> int:
    """Serves what the command line says until SIGTERM or Ctrl-C; see `--help`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("environment", help="MODULE:FACTORY of what makes the environment")
    parser.add_argument("--address", default="localhost:50051", help="HOST:PORT or unix:PATH")
    parser.add_argument("--token-file", help="a file with the secret that clients have to send")
    parser.add_argument("--cert", help="a PEM file with the certificate, for TLS")
    parser.add_argument("--key", help="a PEM file with its key")
    parser.add_argument(
        "--insecure", action="store_true", help="let other machines in without a token"
    )
    given = parser.parse_args(arguments)

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    # So that what is served imports this module, and not a second one.
    sys.modules.setdefault("dm_env_rpc_server", sys.modules[__name__])
    signal.signal(signal.SIGTERM, interrupt)
    logging.basicConfig(level=logging.INFO)
    sys.path.insert(0, os.getcwd())
    try:
        factory = _imported(given.environment)
        token = os.environ.get("DM_ENV_RPC_TOKEN")
        if given.token_file:
            with open(given.token_file) as file:
                token = file.read().strip()
        with serve(factory, given.address, token, given.cert, given.key, given.insecure) as server:
            print(f"serving {given.environment} at {server.address}", flush=True)
            server.wait()
    except KeyboardInterrupt:
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
