"""A dm_env_rpc server in one file, for CPython 3.6 to 3.14 and NumPy 1.13 or later.

The server runs where the package dm-env-rpc-client cannot be installed, such as in the conda
environment or container of an old simulator. Copy the file there. Licence: Apache-2.0.

Use the server only on a trusted machine, or in a trusted container or network. It supports tokens
and TLS, rejects malformed messages and those that would expand to too much memory, and drops
silent clients. However, a client that floods the server slows down the other clients.

    python dm_env_rpc_server.py my_module:make_environment --address localhost:50051

or, in a program: `with serve(make_environment, "unix:/tmp/socket") as server: server.wait()`.

`make_environment` is called for each world, with the client's settings as keyword arguments.
It returns an environment of any version of gym or Gymnasium, whose spaces, infos and frames become
properties, or an object with the methods of `dm_env.Environment`. dm_env need not be installed:
the classes `Array`, `BoundedArray`, `StringArray` and `TimeStep` below suffice. An environment can
have an attribute `properties`: {key: getter or (getter, setter)}.

The sections of this file are: protobuf encoding, tensors, specs, nested values, Gymnasium, worlds,
the requests of a stream, HPACK (RFC 7541), HTTP/2 (RFC 9113), the server. Each stream has a thread
that makes all calls to the environments created on that stream. Each connection has a thread that
reads while no stream's thread does.
"""

import argparse
import base64
import collections
import concurrent.futures
import contextlib
import copy
import datetime
import errno
import hmac
import importlib
import inspect
import ipaddress
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
from collections.abc import Mapping
from typing import Any, Callable, Deque, Dict, Iterator, List, Optional, Set, Tuple

_PYTHON = "Python " + ".".join(map(str, sys.version_info[:3])) + " at " + sys.executable
try:
    import numpy as np
except ImportError as error:
    raise ImportError(_PYTHON + " has no NumPy, which this server needs") from error

__version__ = "0.1.0"

_log = logging.getLogger("dm_env_rpc_server")

# Size limit of a message, which takes at most about 4 times its size plus 64 MiB of memory.
MAX_MESSAGE_BYTES = 128 << 20
LIMITS = {"expanded bytes": 24 << 20, "strings": 1 << 19, "entries": 10_000, "fields": 1 << 18}
MAX_NAME_BYTES, MAX_LEVELS, MAX_DIMENSIONS, MAX_ERROR_BYTES = 4096, 64, 32, 1 << 16
# Limits per client: settings of all worlds, worlds, headers, bytes that it has not read.
MAX_HELD_BYTES, MAX_WORLDS = 256 << 20, 1024
MAX_HEADER_BYTES, MAX_UNSENT = 1 << 14, 1 << 18
CONNECTION_WINDOW, STREAM_WINDOW = 1 << 24, 1 << 20

# Codes of google.rpc.Code and of gRPC.
CANCELLED, INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, RESOURCE_EXHAUSTED = 1, 3, 5, 7, 8
FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAUTHENTICATED = 9, 12, 13, 16


class Refusal(Exception):
    """A refused request, with a code and message for the client. Environments can raise it."""

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = code


class _StreamError(Refusal):
    """An error that ends a stream with a gRPC status."""


class _Malformed(_StreamError):
    """The received bytes are not a valid message."""

    def __init__(self, text: str):
        super().__init__(INVALID_ARGUMENT, f"the message is not an EnvironmentRequest: {text}")


def _check(is_right: Any, code: int, text: str) -> None:
    if not is_right:
        raise Refusal(code, text)


# Protobuf's bytes: a message is fields, a field is a tag (number << 3 | wire type) and a value.


_Budget = Dict[str, int]  # Remaining LIMITS for one message.


def _take(budget: _Budget, what: str, count: int = 1) -> None:
    budget[what] -= count
    if budget[what] < 0:
        text = f"the message asks for too much: more than {LIMITS[what]} {what}"
        raise Refusal(RESOURCE_EXHAUSTED, text)


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1  # Negative ones take ten bytes.
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _read_varint(data: Any, at: int) -> Tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & (1 << 64) - 1, at
    raise _Malformed("a number is longer than ten bytes")


def _field(number: int, contents: bytes) -> bytes:
    """Return the encoding of a field that contains bytes, a string or a message."""
    return _varint(number << 3 | 2) + _varint(len(contents)) + contents


def _joined(parts: List[Any]) -> Any:
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _parts(
    tags: Any, data: Any, budget: _Budget, choice: Any = (), what: str = "fields", count: int = 1
) -> Dict[int, List[Any]]:
    """Return the contents of the fields in `tags`, by number; the last field of a oneof wins.

    Each field charges `count` to the budget for `what`.
    """
    found: Dict[int, List[Any]] = {}
    at, end = 0, len(data)
    try:
        while at < end:
            budget[what] -= count
            if budget[what] < 0:
                _take(budget, what)
            tag, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at)
            if tag < 8 or tag >> 32 or tag & 7 not in (0, 1, 2, 5):
                raise _Malformed(f"a field has the invalid tag {tag}")
            begin, kind = at, tag & 7
            if kind in (0, 2):
                size, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at)
                begin, at = (begin, at) if kind == 0 else (at, at + size)
            else:
                at += 8 if kind == 1 else 4
            if at > end:
                raise _Malformed("a field is longer than its message")
            if tag in tags:
                parts = found.get(tag >> 3)
                if parts is None:
                    if found and tag in choice:
                        found = {k: found[k] for k in found if k << 3 | 2 not in choice}
                    parts = found[tag >> 3] = []
                parts.append(data[begin:at])
    except IndexError:
        raise _Malformed("a field is incomplete") from None
    return found


def _contents(readers: Any, data: Any, budget: _Budget) -> List[Any]:
    """Return fields 1 and 2 of a message, each decoded by its own function."""
    parts = _parts((10, 16, 18), data, budget)
    return [read(parts.get(number, []), budget) for number, read in enumerate(readers, 1)]


def _read_bytes(parts: List[Any], budget: _Budget) -> Any:
    return _joined(parts)


def _read_text(parts: List[Any], budget: _Budget) -> str:
    try:
        return str(b"".join(parts), "utf-8")
    except UnicodeDecodeError as error:
        raise _Malformed(str(error)) from None


def _read_varints(block: Any, budget: _Budget) -> Any:
    """Return the numbers in a packed field as an array of uint64."""
    if len(block) and block[-1] > 0x7F:
        raise _Malformed("the last number is incomplete")
    if len(block) < 32:
        found, at = [], 0
        while at < len(block):
            number, at = _read_varint(block, at)
            found.append(number)
        return np.array(found, np.uint64)
    data = np.frombuffer(block, np.uint8)
    is_end = data < 0x80
    count = int(np.count_nonzero(is_end))
    _take(budget, "expanded bytes", max(0, 16 * count - len(data)))
    ends, numbers = np.flatnonzero(is_end), np.zeros(count, np.uint64)
    ends += 1
    for first in range(0, len(ends), 1 << 16):  # Blocks keep intermediate arrays small.
        stops = ends[first : first + (1 << 16)]
        starts = np.concatenate([ends[first - 1 : first] if first else [0], stops[:-1]])
        if int((stops - starts).max()) > 10:
            raise _Malformed("a number is longer than ten bytes")
        places = np.arange(starts[0], stops[-1]) - np.repeat(starts, stops - starts)
        digits = (data[starts[0] : stops[-1]] & 0x7F).astype(np.uint64)
        digits <<= (7 * places).astype(np.uint64)
        numbers[first : first + (1 << 16)] = np.bitwise_or.reduceat(digits, starts - starts[0])
    return numbers


def _write_varints(array: Any) -> bytes:
    flat = array.ravel()
    if flat.size < 16:
        return b"".join(map(_varint, flat.tolist()))
    numbers = flat if flat.dtype == np.uint64 else flat.astype(np.int64).view(np.uint64)
    written = []
    for first in range(0, numbers.size, 1 << 16):
        rest = numbers[first : first + (1 << 16), None] >> np.arange(0, 70, 7).astype(np.uint64)
        digits = (rest & np.uint64(0x7F)).astype(np.uint8)
        digits[:, :9] |= (rest[:, 1:] > 0).astype(np.uint8) << np.uint8(7)
        rest[:, 0] = 1  # The first digit always exists.
        written.append(digits[rest > 0].tobytes())
    return b"".join(written)


# Tensors. The number of a data type is its DataType and its field number in Tensor.

_FLOAT, _DOUBLE, _INT8, _UINT8, _BOOL, _STRING, _PROTO = 1, 2, 3, 6, 9, 10, 11
_NAMES = "- float32 float64 int8 int32 int64 uint8 uint32 uint64 bool string proto".split()
_DTYPES = {k: np.dtype(_NAMES[k] if k < _STRING else object) for k in range(_FLOAT, _PROTO + 1)}
_KINDS = {_DTYPES[kind]: kind for kind in range(_FLOAT, _STRING)}
_WIDER = {np.dtype(a): np.dtype(b) for a, b in (("f2", "f4"), ("i2", "i4"), ("u2", "u4"))}
_BLOCKS = (_FLOAT, _DOUBLE, _INT8, _UINT8)  # Equal on the wire and in memory.
# Tags of unpacked elements, of payloads, and of a tensor's fields.
_SINGLE = {_FLOAT: 13, _DOUBLE: 9, 4: 8, 5: 8, 7: 8, 8: 8, _BOOL: 8}
_COSTS = {_STRING: ("strings", 1), _PROTO: ("strings", 8)}  # Of an element, in LIMITS.
_PAYLOADS = {kind << 3 | 2 for kind in _DTYPES}
_TENSOR = {*_PAYLOADS, 15 << 3, 15 << 3 | 2}

Message = collections.namedtuple("Message", "type_url value")
Message.__doc__ = "A protobuf message of any type: an element of a tensor of dtype PROTO."


def _product(sizes: Any) -> int:
    return int(np.prod(np.array(list(sizes), object)))  # Of any size, as object.


def _read_tensor(data: Any, budget: _Budget, where: str) -> Tuple[int, Any]:
    """Return a tensor's data type and its array or, if it has no shape, its only element."""
    parts = _parts(_TENSOR, data, budget, _PAYLOADS)
    sizes = _read_varints(_joined(parts.pop(15, [])), budget)
    text = f"{where}: has more than {MAX_DIMENSIONS} dimensions"
    _check(len(sizes) <= MAX_DIMENSIONS, INVALID_ARGUMENT, text)
    _check(parts, INVALID_ARGUMENT, f"{where}: the tensor has no payload")
    ((kind, payload),) = parts.items()
    flat, shape = _read_payload(kind, _joined(payload), budget), sizes.astype(np.int32).tolist()
    if shape:
        return kind, _shaped(flat, shape, budget, where)
    text = f"{where}: a scalar must have one element, got {len(flat)}"
    _check(len(flat) == 1, INVALID_ARGUMENT, text)
    return kind, flat[0]


def _read_payload(kind: int, payload: Any, budget: _Budget) -> Any:
    what, count = _COSTS.get(kind, ("fields", 1))
    blocks = _parts((10, _SINGLE.get(kind, 10)), payload, budget, (), what, count).get(1, [])
    if kind >= _STRING:
        elements = np.empty(len(blocks), object)
        for index, block in enumerate(blocks):
            if kind == _STRING:
                elements[index] = _read_text([block], budget)
            else:
                url, value = _contents((_read_text, _read_bytes), block, budget)
                elements[index] = Message(url, bytes(value))
        return elements
    # A block of bytes is not repeated: the last one holds.
    block, dtype = _joined(blocks[-1:] if kind in (_INT8, _UINT8) else blocks), _DTYPES[kind]
    if kind not in _BLOCKS:
        numbers = _read_varints(block, budget)
        return numbers != 0 if kind == _BOOL else numbers.astype(dtype)
    if len(block) % dtype.itemsize:
        raise _Malformed("the last element is incomplete")
    return np.frombuffer(block, dtype.newbyteorder("<")).astype(dtype)


def _shaped(flat: Any, sizes: List[int], budget: _Budget, where: str) -> Any:
    """Reshape elements to `sizes`; one size may be negative, and a single element is repeated."""
    shape, count = list(sizes), len(flat)
    variable = [axis for axis, size in enumerate(shape) if size < 0]
    for axis in variable[:1]:
        shape[axis] = 1
        if count != 1 and _product(shape) > 0:
            shape[axis] = count // _product(shape)
    total = _product(shape)
    if len(variable) > 1 or count not in (1, total) or _product(max(n, 1) for n in shape) >> 31:
        text = f"{where}: shape {sizes} requires {total} elements (or one for all), got {count}"
        raise Refusal(INVALID_ARGUMENT, text)
    if count == 1 and total != 1:
        each = len(flat[0]) + 64 if flat.dtype == object else flat.itemsize
        _take(budget, "expanded bytes", total * each)
        flat = np.repeat(flat, total)
    return flat.reshape(shape)


def _write_block(kind: int, array: Any) -> bytes:
    """Encode the elements of a numeric array as the contents of a packed field."""
    if kind in _BLOCKS:
        return bytes(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return bytes(array.tobytes()) if kind == _BOOL else _write_varints(array)


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
    """Return a value as an array with a dtype of the protocol (strings and messages: object)."""
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
    """Return the data type of an array that `_as_array` returned, or of a spec."""
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
    """Cast an array without changing its values, except for rounding between float types."""
    if array.dtype == dtype or not array.size:
        return array.astype(dtype, copy=False)
    source, target = array.dtype.kind, dtype.kind
    if source not in "biuf" or target not in "biuf":
        raise ValueError(f"{where}: has dtype {array.dtype}; expected {dtype}")
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if target == source == "f":
        same = np.isfinite(cast) | ~np.isfinite(array)
    elif target in "iu" and source in "iuf":
        info = np.iinfo(dtype)
        low, high = array.min().item(), array.max().item()  # As int and float they compare exactly.
        same = info.min <= low and high <= info.max and np.trunc(array) == array
    else:
        same = cast.astype(object) == array.astype(object)
    if not np.all(same):
        raise ValueError(f"{where}: {str(array)[:80]} has values that {dtype} cannot hold")
    return cast


# Specs and time steps, as in dm_env.


class Array:
    """The shape and dtype of a value; one size may be -1 (variable)."""

    def __init__(self, shape: Any, dtype: Any, name: Optional[str] = None):
        self.shape, self.dtype, self.name = tuple(shape), np.dtype(dtype), name


class BoundedArray(Array):
    """A spec with inclusive bounds, each a number or an array of the spec's shape."""

    def __init__(self, shape: Any, dtype: Any, minimum: Any, maximum: Any, name: Any = None):
        super().__init__(shape, dtype, name)
        self.minimum, self.maximum = np.asarray(minimum, dtype), np.asarray(maximum, dtype)


class StringArray(Array):
    """The spec of an array of strings."""

    string_type = str

    def __init__(self, shape: Any, name: Optional[str] = None):
        super().__init__(shape, object, name)


TimeStep = collections.namedtuple("TimeStep", "step_type reward discount observation")
FIRST, MID, LAST = 0, 1, 2  # The step types.
_STEP_TYPES = {FIRST: FIRST, MID: MID, LAST: LAST}

_NO_BATCHES = (
    "the one-file server has no batches: return one environment, or install dm-env-rpc-client in the "
    "environment's Python (3.10 or later), whose server steps batches"
)
_IS_GYMNASIUM = "this looks like Gymnasium's interface: inherit from gymnasium.Env"


def _described(value: Any) -> str:
    """Describe a value in a few words."""
    kind = type(value).__name__
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} {list(value.shape)}"
    if type(value) is tuple:
        return f"a tuple of {len(value)} values"
    if isinstance(value, dict):
        return f"a dict with the key{'s' * (len(value) != 1)} {', '.join(map(repr, value))}"[:200]
    if value is None or isinstance(value, type):
        return "None" if value is None else f"the class {value.__name__}"
    return f"{'an' if kind[0].lower() in 'aeiou' else 'a'} {kind}"


def _check_time_step(environment: Any, method: str, returned: Any) -> None:
    """After an error, raise TypeError if the environment did not return a TimeStep."""
    if all(hasattr(returned, name) for name in TimeStep._fields):
        return
    is_tuple = type(returned) is tuple and len(returned) in ((2,) if method == "reset" else (4, 5))
    advice = "TimeStep(step_type, reward, discount, observation), as in dm_env"
    if is_tuple and isinstance(returned[-1], dict):
        advice = _IS_GYMNASIUM
    text = f"{method} of {type(environment).__name__} returned {_described(returned)}"
    raise TypeError(f"{text}; expected a TimeStep: {advice}") from None


def _next_type(environment: Any, method: str, timestep: Any) -> int:
    """Return the type of a TimeStep, which is FIRST for `reset` and otherwise MID or LAST."""
    given = timestep.step_type
    try:
        step_type = _STEP_TYPES[given.item() if isinstance(given, np.ndarray) else given]
    except (KeyError, TypeError, ValueError):
        step_type = -1
    text = f"{method} of {type(environment).__name__} returned a"
    if step_type < 0:
        raise RuntimeError(
            f"{text} TimeStep of the type {given!r}; expected FIRST (0), MID or LAST"
        )
    if method == "reset":
        if step_type == LAST:
            raise RuntimeError(f"{text} LAST TimeStep; a sequence begins with a FIRST one")
        return FIRST
    if step_type == FIRST:
        raise RuntimeError(f"{text} FIRST step in the middle of a sequence")
    return step_type


def _reward_of(value: Any, where: str) -> float:
    """Return a reward as a float, or raise TypeError if it is not a single number."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")
    is_number = kind in "biufO" and hasattr(value, "__float__") and not np.ndim(value)
    # Complex numbers have a `__float__` until Python 3.9, and a masked one is NaN.
    if not isinstance(value, complex) and is_number and not np.ma.is_masked(value):
        with contextlib.suppress(OverflowError):
            return float(value)
    text = f"{where} returned a reward that is not a number: got {_described(value)}"
    raise TypeError(f"{text}; expected a float")


class _Field:
    """An action or observation: its spec, and how its values are checked and encoded."""

    def __init__(self, uid: int, name: str, spec: Any, role: str):
        self.name, self.label = name, f"{role} {name!r} (uid {uid})"
        self.kind, self.shape = _kind_of(spec, self.label), tuple(map(int, spec.shape))
        self.dtype = _DTYPES[self.kind]
        bounds = [self._bound(spec, side) for side in ("minimum", "maximum")]
        # Scalars of NumPy are compared faster than arrays without dimensions.
        self.low, self.high = (None if bound is None else bound[()] for bound in bounds)
        self.spec = _field(1, name.encode("utf-8")) + _write_shape(2, self.shape)
        self.spec += b"\x18" + _varint(self.kind)
        for number, bound in zip((4, 5), bounds):
            if bound is not None:
                self.spec += _field(number, _field(8 + self.kind, _write_payload(self.kind, bound)))
        self._uid = b"\x08" + _varint(uid)
        # Encoded bytes before and after elements of fixed size.
        size = 0 if min(self.shape, default=1) < 0 else _product(self.shape) * self.dtype.itemsize
        self._size, self._head, self._tail = size, b"", _write_shape(15, self.shape)
        self._payload = b""
        if size and (self.kind in _BLOCKS or self.kind == _BOOL):
            payload = _field(self.kind, _field(1, bytes(size)))
            entry = self._entry(payload + self._tail)
            self._head = entry[: len(entry) - size - len(self._tail)]
            self._payload = payload[:-size] if self.kind in _BLOCKS else b""

    def _bound(self, spec: Any, side: str) -> Any:
        bound = getattr(spec, side, None)
        if bound is None or self.dtype.kind not in "iuf":
            return None
        array = _exact(_as_array(bound), self.dtype, f"{self.label}: its {side}")
        return array.reshape(()) if array.size == 1 else np.broadcast_to(array, self.shape)

    def _entry(self, tensor: bytes) -> bytes:
        return _field(2, self._uid + _field(2, tensor))

    def entry(self, value: Any) -> bytes:
        """Encode a value as an entry of a StepResponse's observations, or raise ValueError."""
        if type(value) is float and self.kind == _DOUBLE and not self.shape:
            return self._head + struct.pack("<d", value)
        array = self.conform(value)
        if self._head:
            return b"".join((self._head, _write_block(self.kind, array), self._tail))
        return self._entry(_write_tensor(self.kind, array))

    def conform(self, value: Any) -> Any:
        """Return a value as an array of the spec's dtype and shape, or raise ValueError."""
        array = value
        if type(value) is not np.ndarray or value.dtype != self.dtype or self.kind >= _STRING:
            if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
                raise ValueError(f"{self.label}: has masked elements")
            array = _exact(_as_array(value), self.dtype, self.label)
        self._check_shape(array.shape)
        if self.kind == _STRING and not all(isinstance(text, str) for text in array.flat):
            raise ValueError(f"{self.label}: expected strings, got {str(value)[:80]}")
        return array

    def _check_shape(self, shape: Tuple[int, ...]) -> None:
        if shape == self.shape:
            return
        same = len(shape) == len(self.shape)
        if not same or any(mine not in (its, -1) for mine, its in zip(self.shape, shape)):
            raise ValueError(f"{self.label}: has shape {list(shape)}; expected {list(self.shape)}")

    def read(self, tensor: Any, budget: _Budget) -> Any:
        """Return the value of a Tensor if the spec allows it, or raise Refusal."""
        kind, value = self.kind, self._read_block(tensor)
        if value is None:
            kind, value = _read_tensor(tensor, budget, self.label)
        try:
            if kind != self.kind:
                expected = f"expected {_NAMES[self.kind]}"
                raise ValueError(f"{self.label}: has dtype {_NAMES[kind]}; {expected}")
            self._check_shape(getattr(value, "shape", ()))
            if self.dtype.kind in "iuf":
                self._check_range(value)
            return value
        except ValueError as error:
            raise Refusal(INVALID_ARGUMENT, str(error)) from None

    def _read_block(self, tensor: Any) -> Any:
        """Return the value of a Tensor if it has the most common encoding, otherwise None."""
        begin, end = len(self._payload), len(tensor) - len(self._tail)
        if not begin or end - begin != self._size or tensor[:begin] != self._payload:
            return None
        if tensor[end:] != self._tail:
            return None
        block = np.frombuffer(tensor[begin:end], self.dtype.newbyteorder("<"))
        return block.astype(self.dtype).reshape(self.shape)[()]

    def _check_range(self, value: Any) -> None:
        if self.low is None and self.high is None and np.isfinite(value).all():
            return
        low = -np.inf if self.low is None else self.low
        high = np.inf if self.high is None else self.high
        fits = (value >= low) & (value <= high)
        if self.dtype.kind == "f":
            # Infinity is out of range unless there is a bound that is infinite, too.
            fits &= ~np.isneginf(value) if self.low is None else True
            fits &= ~np.isposinf(value) if self.high is None else True
        if not fits.all():
            index = tuple(map(int, np.argwhere(~np.asarray(fits))[0])) if np.ndim(value) else ()
            element = f"element {list(index)}" if index else "the value"
            found = np.asarray(value)[index].item()
            ends = [np.broadcast_to(end, np.shape(value))[index].item() for end in (low, high)]
            expected = f"outside its bounds [{ends[0]!r}, {ends[1]!r}]"
            if not math.isfinite(found):
                expected = "expected a finite value"
            raise ValueError(f"{self.label}: {element} is {found!r}, {expected}")


# Nested values: the levels of a flat name are joined by periods, as in "arm.torque". A key with a
# period is several levels. Names and values are in the order of the environment's own mappings.


def _by_name(structure: Any) -> Any:
    """Return a structure with named parts as a mapping, or None for any other structure."""
    if isinstance(structure, Mapping):
        return structure
    kind = type(structure)
    names = getattr(kind, "_fields", None) or getattr(kind, "__dataclass_fields__", None)
    names = names or [each.name for each in getattr(kind, "__attrs_attrs__", ())]
    return {name: getattr(structure, name) for name in names} if names else None


def _parts_of(structure: Any) -> Any:
    """Return the parts of a structure by key or index, or None for a value without parts."""
    is_sequence = isinstance(structure, (list, tuple))
    named = _by_name(structure)
    return dict(enumerate(structure)) if named is None and is_sequence else named


def _is_leaf(structure: Any) -> bool:
    return hasattr(structure, "shape") and hasattr(structure, "dtype")


def _named_specs(structure: Any, single: str, path: Tuple[str, ...] = ()) -> List[Tuple[str, Any]]:
    """Return pairs of flat names and specs; a spec that is not nested is named `single`."""
    if structure is None:
        return []
    if _is_leaf(structure):
        return [(".".join(path) if path else single, structure)]
    parts = _parts_of(structure)
    if parts is None:
        raise RuntimeError(f"expected specs in dicts, lists and tuples, got {structure!r}")
    if single in _OF_STEPS and not path:
        path = (single,)
    found: List[Tuple[str, Any]] = []
    for key, part in parts.items():
        found += _named_specs(part, single, (*path, str(key)))
    return found


_OF_STEPS = ("reward", "discount")


def _check_names(names: List[str], role: str, taken: Any = ()) -> None:
    """Raise RuntimeError if flat names collide."""
    seen: Set[str] = set()
    for name in names:
        if name in taken:
            text = f"{role} {name!r} of an environment has the name of the {name} of a step"
            raise RuntimeError(f"{text}; rename it")
        if name in seen:
            text = f"two {role}s of an environment have the flat name {name!r}; rename one of them"
            raise RuntimeError(f"{text}, because periods separate levels")
        seen.add(name)
    for name in names:
        parent, found, _ = name.rpartition(".")
        while found:
            if parent in seen:
                text = f"{role}s of an environment: {parent!r} would be a value and also a group"
                raise RuntimeError(f"{text}, because of {name!r}; rename one")
            parent, found, _ = parent.rpartition(".")


def _flatten(structure: Any, value: Any, where: str) -> List[Any]:
    """Return the parts of a nested value in the order of `_named_specs`, or raise RuntimeError."""
    if structure is None or _is_leaf(structure):
        return [] if structure is None else [value]
    expected = _parts_of(structure)
    parts = _by_name(value) if _by_name(structure) is not None else _parts_of(value)
    if parts is None or len(parts) != len(expected) or any(key not in parts for key in expected):
        found = _described(value) if parts is None else f"the parts {list(parts)}"
        text = f"{where!r} has {found}; its spec has {list(expected)}"
        raise RuntimeError(f"the environment violates its own specs: {text}")
    leaves: List[Any] = []
    for key, part in expected.items():
        is_leaf = _is_leaf(part)
        leaves += [parts[key]] if is_leaf else _flatten(part, parts[key], f"{where}.{key}")
    return leaves


def _nest(structure: Any, values: Iterator[Any]) -> Any:
    """Fill a structure with values that are in the order of `_named_specs`."""
    if structure is None or _is_leaf(structure):
        return None if structure is None else next(values)
    parts = {key: _nest(part, values) for key, part in _parts_of(structure).items()}
    kind: Any = type(structure)
    if isinstance(structure, Mapping):
        return parts if kind is dict else kind(parts)
    return kind(*parts.values()) if _by_name(structure) is not None else kind(parts.values())


def _unflatten(flat: Dict[str, Any]) -> Dict[str, Any]:
    """Convert a mapping of flat names to values into nested dicts, or raise ValueError."""
    nested: Dict[str, Any] = {}
    for name in sorted(flat):
        *parents, last = name.split(".")
        branch: Any = nested
        for parent in parents:
            branch = branch.setdefault(parent, {}) if isinstance(branch, dict) else None
        if len(parents) >= MAX_LEVELS or not isinstance(branch, dict) or last in branch:
            raise ValueError(
                f"{name[:200]!r} has more than {MAX_LEVELS} levels, or another name is its prefix"
            )
        branch[last] = flat[name]
    return nested


# gym and Gymnasium. Spaces, infos and frames are in properties, and infos beside observations, in
# the form in which the adaptors of dm-env-rpc-client expect them.

_ARRAYS = ("Box", "Discrete", "MultiBinary", "MultiDiscrete")
_SPACES = (*_ARRAYS, "Text", "Dict", "Tuple", "OneOf", "Sequence", "Graph")


def _space_kind(space: Any) -> str:
    """Return the name of the class of a space, or of its first known base class."""
    names = [each.__name__ for each in type(space).__mro__]
    return next((name for name in names if name in _SPACES), "")


def _items_of(space: Any) -> Any:
    """Return the space of the elements of a Sequence of arrays, otherwise None."""
    items = space.feature_space if _space_kind(space) == "Sequence" else None
    return items if _space_kind(items) in _ARRAYS else None


def _members(space: Any) -> List[Tuple[Any, str, Any]]:
    """Return the key, escaped name and space of each member of a Dict or Tuple."""
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


def _start(space: Any) -> Any:
    """Return the smallest value of a Discrete or MultiDiscrete (always 0 in old versions)."""
    return np.asarray(getattr(space, "start", np.zeros_like(getattr(space, "nvec", 0))), np.int64)


def _space_spec(space: Any) -> Any:
    """Return the spec, or the nested specs, of a space."""
    kind, items = _space_kind(space), _items_of(space)
    if kind in ("Dict", "Tuple"):
        members = _members(space)
        specs = {name: _space_spec(part) for _, name, part in members}
        if len(specs) < len(members):
            keys = [key for key, _, _ in members]
            raise RuntimeError(f"two keys of a Dict have the same name: {keys}; rename one")
        return specs if kind == "Dict" else tuple(specs.values())
    if items is not None:
        spec = _space_spec(items)
        shape = (-1, *spec.shape)
        low, high = (np.unique(getattr(spec, side, ())) for side in ("minimum", "maximum"))
        if low.size == high.size == 1:
            return BoundedArray(shape, spec.dtype, low[0], high[0])
        return Array(shape, spec.dtype)
    if kind not in _ARRAYS:
        return StringArray(())  # A text, or the JSON of an element.
    dtype, shape = _wire_dtype(space), tuple(space.shape or ())
    if kind == "Box":
        low, high = space.low.astype(dtype), space.high.astype(dtype)
        return Array(shape, dtype) if dtype.kind == "b" else BoundedArray(shape, dtype, low, high)
    if kind == "MultiBinary":
        return BoundedArray(shape, dtype, 0, 1)
    low = _start(space)
    counts = np.asarray(space.n if kind == "Discrete" else space.nvec, np.int64)
    return BoundedArray(low.shape, dtype, low, low + (counts - 1))


def _to_wire(space: Any, element: Any, where: str = "observation") -> Any:
    """Convert an element of a space to a value of the space's spec, or raise RuntimeError."""
    kind, items = _space_kind(space), _items_of(space)
    if kind in ("Dict", "Tuple"):
        members = _members(space)
        keys = [key for key, _, _ in members]
        is_dict = kind == "Dict"
        if not isinstance(element, Mapping if is_dict else (tuple, list)):
            found = _described(element)
        elif set(element) != set(keys) if is_dict else len(element) != len(keys):
            found = f"the keys {list(element)}" if is_dict else f"{len(element)} values"
        else:
            parts = [(name, part, element[key]) for key, name, part in members]
            values = {name: _to_wire(p, value, f"{where}.{name}") for name, p, value in parts}
            return values if is_dict else tuple(values.values())
        expected = f"a mapping with keys {keys}" if is_dict else f"a tuple of {len(keys)} values"
        raise RuntimeError(
            f"the environment violates its own space: {where!r}: expected {expected}, got {found}"
        )
    if items is not None:
        none = np.empty((0, *items.shape), _wire_dtype(items))
        return np.asarray(element) if len(element) else none
    if kind == "Text" and not isinstance(element, str):
        found = _described(element)
        text = f"the environment violates its own space: {where!r}: expected a str, got {found}"
        raise RuntimeError(text)
    if kind in _ARRAYS or kind == "Text":
        return element
    return _encode(element, where=_Strict(where))


def _sampled_type(space: Any) -> Any:
    """Return the type of a space's samples (int for a Discrete in gym)."""
    kind = space.__dict__.get(_SAMPLED)
    if kind is None:
        # Sampling the original would change the environment's own random samples.
        kind = space.__dict__[_SAMPLED] = type(copy.deepcopy(space).sample())
    return kind


_SAMPLED = "_dm_env_rpc_sampled_type"


def _from_wire(space: Any, value: Any) -> Any:
    """Convert a value of a space's spec to an element of the space."""
    kind, items = _space_kind(space), _items_of(space)
    if kind in ("Dict", "Tuple"):
        by_key = kind == "Dict"
        parts = [(k, _from_wire(p, value[n if by_key else k])) for k, n, p in _members(space)]
        # An OrderedDict until Gymnasium 1.0.
        return _sampled_type(space)(parts) if by_key else tuple(part for _, part in parts)
    if kind == "Discrete":
        return _sampled_type(space)(value)
    if kind in _ARRAYS:
        return np.asarray(value, space.dtype)
    if items is not None and space.stack:
        return np.asarray(value, items.dtype)
    if items is not None:
        return tuple(_from_wire(items, item) for item in value)
    return str(value) if kind == "Text" else _decode(str(value))


def _space_json(space: Any) -> Dict[str, Any]:
    """Return the JSON form of a space: its type and constructor arguments."""

    def bound(array: Any) -> Any:
        same = array.size > 0 and bool(np.all(array == array.flat[0]))
        return _jsonable(array.flat[0].item() if same else array)

    kind = _space_kind(space)
    found: Dict[str, Any] = {"type": kind}
    if kind in ("Box", "Discrete", "MultiDiscrete"):
        found["dtype"] = np.dtype(space.dtype or np.float32).name
    if kind == "Box":
        found.update(shape=list(space.shape), low=bound(space.low), high=bound(space.high))
        for side in ("bounded_below", "bounded_above"):
            mask = np.asarray(getattr(space, side, True))
            if np.dtype(space.dtype or np.float32).kind == "i" and not mask.all():
                found[side] = bound(mask)
    elif kind == "Discrete":
        found.update(n=int(space.n), start=int(_start(space)))
    elif kind == "MultiBinary":
        found.update(n=np.asarray(space.n).tolist())
    elif kind == "MultiDiscrete":
        found.update(nvec=_jsonable(np.asarray(space.nvec)), start=_jsonable(_start(space)))
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


def _jsonable(value: Any, levels: int = 8, exact: bool = False, where: Any = "a value") -> Any:
    """Return the JSON form of a value; types that JSON lacks become objects with the key `$`.

    `exact`: whether the client knows NumPy's strings, which otherwise become plain ones.
    `where`: the name of the value, or the `where` of its container and its key there.
    """
    if isinstance(value, np.str_):
        return {"$": "str", "value": str(value)} if exact else str(value)
    if type(value) not in _BASES and not isinstance(value, (bool, np.generic)):
        for base, plain in _BASES.items():
            value = plain(value) if isinstance(value, base) else value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$": "float", "value": str(value)}
    if isinstance(value, bytes):
        found: Dict[str, Any] = {"$": "bytes", "base64": base64.b64encode(value).decode()}
        return dict(found, **{"as": "S"}) if isinstance(value, np.bytes_) else found
    if isinstance(value, np.ma.MaskedArray):
        return _masked_json(value, levels, exact, where)
    if isinstance(value, (complex, np.ndarray, np.generic)):
        numbers, kind = _numbers_of(np.asarray(value))
        if kind:
            found = dict(
                _jsonable(numbers), **{"as": "complex" if type(value) is complex else kind}
            )
            return found if isinstance(value, np.ndarray) else dict(found, scalar=True)
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        name = value.dtype.name
        if isinstance(value, np.generic) and value.itemsize <= 8:
            found = {"$": "scalar", "dtype": name, "value": _jsonable(value.item())}
            is_known = np.dtype(name).type is type(value)  # long long is int64, too.
            return found if is_known else dict(found, char=value.dtype.char)
        block = np.asarray(value).astype(value.dtype.newbyteorder("<"), copy=False).tobytes()
        encoded = base64.b64encode(block).decode()
        found = {"$": "array", "dtype": name, "shape": list(value.shape), "base64": encoded}
        if not value.dtype.isnative:
            found["order"] = ">" if sys.byteorder == "little" else "<"
        return found if isinstance(value, np.ndarray) else dict(found, scalar=True)
    if type(value) in _DATES and getattr(value, "tzinfo", None) is None:
        kind = type(value).__name__
        return {"$": kind, "items": [getattr(value, name) for name in _DATES[type(value)]]}
    is_items = isinstance(value, np.ndarray) and value.dtype.kind in "OU"
    if levels == 0 or not (is_items or isinstance(value, _CONTAINERS)):
        return _replaced(value, where, is_deep=is_items or isinstance(value, _CONTAINERS))
    if is_items:
        flat = enumerate(value.ravel().tolist())
        items = [_jsonable(item, levels - 1, exact, (where, index)) for index, item in flat]
        is_text = value.dtype.kind == "U"
        dtype = {"as": value.dtype.str.lstrip("<>=")} if is_text else {"dtype": "object"}
        return dict({"$": "objects", "shape": list(value.shape), "items": items}, **dtype)
    if isinstance(value, Mapping):
        if "$" not in value and all(type(key) is str for key in value):
            return {
                key: _jsonable(part, levels - 1, exact, (where, key)) for key, part in value.items()
            }
        pairs = [
            [_jsonable(part, levels - 1, exact, (where, pair[0])) for part in pair]
            for pair in value.items()
        ]
        return {"$": "dict", "items": pairs}
    items = [_jsonable(part, levels - 1, exact, (where, i)) for i, part in enumerate(value)]
    kind = "graph" if type(value).__name__ == "GraphInstance" else "tuple"
    if isinstance(value, (set, frozenset)):
        kind = "set" if isinstance(value, set) else "frozenset"
        try:
            set(_unjsonable(items))
        except TypeError:  # A member arrives as a type without a hash.
            return _replaced(value, where)
    return items if isinstance(value, list) else {"$": kind, "items": items}


# By the methods of the base class, which an Enum, for instance, replaces.
_BASES: Dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__pos__,
    str: str.__str__,
}

_DATE = ("year", "month", "day")
_DATES: Dict[type, Tuple[str, ...]] = {
    datetime.date: _DATE,
    datetime.datetime: (*_DATE, "hour", "minute", "second", "microsecond"),
    datetime.timedelta: ("days", "seconds", "microseconds"),
}

_MOST_LOGGED = 100
_logged: Set[Tuple[str, str]] = set()  # The names and types of values that were replaced.


class _Strict(str):
    """The name of a value whose parts must all have a form in JSON."""


def _replaced(value: Any, where: Any, is_deep: bool = False) -> str:
    """Return the `repr` of a value that has no form in JSON, and log it once for each key."""
    text = _text_of_deep(value)
    keys: List[str] = []
    while isinstance(where, tuple):
        where, key = where
        keys.append(f"[{repr(key)[:80]}]" if where else str(key))
    keys.append(where)
    keys.reverse()
    name, kind = "".join(keys), type(value).__name__
    problem, advice = f"is {_described(value)}", "only " + _SENT
    if is_deep:
        problem, advice = f"is a {kind}, nested too deeply", "fewer levels"
    if isinstance(where, _Strict):
        raise RuntimeError(f"the environment violates its own space: {name} {problem}")
    once = "".join(keys[: 2 if where else 3]), kind
    if once not in _logged and len(_logged) < _MOST_LOGGED:
        _logged.add(once)
        sent = "which clients receive as a string, its repr"
        _log.warning("%s %s, %s; return %s (logged once)", name, problem, sent, advice)
    return text


_SENT = "numbers, strings, bytes, arrays, dates without a time zone, or lists, tuples, sets and "
_SENT += "dicts of these"


def _text_of_deep(value: Any) -> str:
    """Return the repr of a value that is nested too deeply; raise RuntimeError if it is cyclic."""
    above: Set[int] = set()
    done: Set[int] = set()
    left = [(value, False)]
    while left:
        part, is_done = left.pop()
        if is_done:
            above.discard(id(part))
            done.add(id(part))
        elif id(part) in above:
            raise RuntimeError(
                "a value from the environment contains itself; return a copy without the cycle"
            )
        elif id(part) not in done and (isinstance(part, _CONTAINERS) or _is_of_objects(part)):
            above.add(id(part))
            left.append((part, True))
            parts = part.values() if isinstance(part, Mapping) else part
            left += [(each, False) for each in (part.flat if _is_of_objects(part) else parts)]
    try:
        return repr(value)
    except RecursionError:
        return f"a {type(value).__name__} of thousands of levels"


_CONTAINERS = (Mapping, list, tuple, set, frozenset)


def _is_of_objects(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "O"


def _numbers_of(array: Any) -> Tuple[Any, str]:
    """Convert complex numbers, dates or bytes to plain numbers; also return their dtype or ""."""
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind not in "cmMS" or not dtype.itemsize:
        return array, ""
    own = np.ascontiguousarray(array, dtype).ravel()
    if dtype.kind in "mM":
        return own.view(np.int64).reshape(array.shape), dtype.name
    part = np.dtype(np.uint8) if dtype.kind == "S" else own.real.dtype
    shape = (*array.shape, dtype.itemsize // part.itemsize)
    return own.view(part).reshape(shape), dtype.str.lstrip("|<>=")


def _from_numbers(numbers: Any, kind: str) -> Any:
    """Reverse `_numbers_of`, or raise ValueError."""
    dtype = np.dtype(kind)
    if dtype.kind in "mM" and numbers.dtype == np.int64:
        return numbers.view(dtype)
    size = numbers.shape[-1] * numbers.itemsize if numbers.ndim else 0
    if dtype.kind not in "cS" or size != dtype.itemsize:
        raise ValueError(f"cannot convert {numbers.dtype} {list(numbers.shape)} to {kind[:40]!r}")
    return np.ascontiguousarray(numbers).ravel().view(dtype).reshape(numbers.shape[:-1])


def _masked_json(array: Any, levels: int, exact: bool, where: Any) -> Any:
    """Return the JSON form of a masked array, with its data and its mask."""
    found = _jsonable(np.asarray(array.data), levels, exact, where)
    if not isinstance(found, dict):
        return repr(array)
    if array is np.ma.masked:
        return dict(found, mask=True, scalar=True)
    mask = False if array.mask is np.ma.nomask else _jsonable(np.asarray(array.mask))
    return dict(found, mask=mask, fill_value=_jsonable(array.fill_value, levels, exact, where))


def _with_mask(value: Any, array: Any) -> Any:
    """Convert an array from `_unjsonable` to the masked array or scalar that it represents."""
    if "mask" not in value and "scalar" in value:
        return array.item() if value.get("as") == "complex" else array[()]
    if "mask" not in value:
        return array
    mask = np.asarray(_unjsonable(value["mask"]))
    if mask.dtype != np.bool_ or mask.shape not in ((), array.shape):
        raise ValueError("the mask must be boolean and have the shape of the data")
    if "scalar" in value:
        return np.ma.masked
    own = mask if mask.shape or mask else np.ma.nomask
    return np.ma.MaskedArray(array, own, fill_value=_unjsonable(value.get("fill_value")))


def _unjsonable(value: Any) -> Any:
    """Decode a value encoded by `_jsonable`; raise ValueError or another exception if invalid."""
    if isinstance(value, list):
        return [_unjsonable(part) for part in value]
    if not isinstance(value, dict) or "$" not in value:
        is_dict = isinstance(value, dict)
        return {key: _unjsonable(part) for key, part in value.items()} if is_dict else value
    kind = value["$"]
    if kind == "float":
        return float(value["value"])
    if kind == "bytes":
        found = base64.b64decode(value["base64"])
        return np.bytes_(found) if value.get("as") == "S" else found
    if kind == "scalar":
        dtype = own = _number_dtype(value)
        if "char" in value:
            own = _number_dtype({"dtype": value["char"]})
        return (own if own == dtype else dtype).type(_unjsonable(value["value"]))
    if kind == "array":
        dtype = _number_dtype(value).newbyteorder(value.get("order", "="))
        flat = np.frombuffer(base64.b64decode(value["base64"]), dtype.newbyteorder("<"))
        array = flat.reshape(value["shape"]).astype(dtype)
        return _with_mask(value, _from_numbers(array, value["as"]) if "as" in value else array)
    items = _unjsonable(value["items"])
    if kind == "objects":
        array = np.empty(len(items), object)
        for index, item in enumerate(items):  # Some NumPys take apart lists that are assigned.
            array[index] = item
        is_text = "dtype" not in value and all(type(item) is str for item in items)
        sizes = [len(item) for item in items] if is_text else []
        longest = max(sizes) if sizes else 0
        for width in (int(str(value.get("as", "U0"))[1:]), longest) if is_text else ():
            # In an array, each text takes as much memory as the longest.
            if width >= longest and len(sizes) * width <= 2 * sum(sizes) + 64:
                array = np.array(items, f"U{width or 1}")
                break
        return _with_mask(value, array.reshape(value["shape"]))
    for date in _DATES:
        if kind == date.__name__:
            return date(*items)
    return {"dict": dict, "set": set, "frozenset": frozenset}.get(kind, tuple)(items)


def _number_dtype(value: Dict[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    if dtype.kind not in "biuf":
        raise ValueError(f"dtype {dtype} is not numeric")
    return dtype


def _encode(value: Any, exact: bool = False, where: str = "a value") -> str:
    jsonable = _jsonable(value, exact=exact, where=where)
    return json.dumps(jsonable, separators=(",", ":"), allow_nan=False)


def _decode(text: str) -> Any:
    try:
        if sum(map(text.count, "[{,:")) > 1 << 20 or sum(map(text.count, "[{")) > 1 << 18:
            raise ValueError("too many values")
        return _unjsonable(json.loads(text))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise Refusal(INVALID_ARGUMENT, f"invalid JSON {text[:60]!r}: {error}") from None


class _Gymnasium:
    """A gym or Gymnasium environment with the interface of dm_env.Environment."""

    reset_settings = ("seed", "options", "infos")

    def __init__(self, env: Any):
        self._env = env
        self._settings: Dict[str, Any] = {}
        self._infos: Any = False  # Whether the client requests infos, or "own": with exact types.
        takes = inspect.signature(getattr(env, "unwrapped", env).reset).parameters
        # A method until gym 0.25.
        self._seeds_by_method = "seed" not in takes and callable(getattr(env, "seed", None))
        has_others = any(each.kind is each.VAR_KEYWORD for each in takes.values())
        self._takes_options = "options" in takes or (has_others and not self._seeds_by_method)
        metadata = dict(getattr(env, "metadata", None) or {})
        if "render.modes" in metadata:  # Until gym 0.21; later ones have the key render_modes.
            metadata["render_modes"] = list(metadata["render.modes"])
        self._render, mode = env.render, getattr(env, "render_mode", None)
        # In gym 0.25 `render_mode` is None, and `render` still takes the mode.
        takes_mode = inspect.signature(getattr(env, "unwrapped", env).render).parameters
        if mode is None and takes_mode and "rgb_array" in metadata.get("render_modes", ()):
            self._render, mode = lambda: env.render(mode="rgb_array"), "rgb_array"
        spec = getattr(env, "spec", None)
        description = {
            "version": 1,
            "action_space": _space_json(env.action_space),
            "observation_space": _space_json(env.observation_space),
            "metadata": _jsonable(metadata, where="metadata"),
            "render_mode": mode,
            "max_episode_steps": getattr(spec, "max_episode_steps", None),
            "reward_range": _jsonable(getattr(env, "reward_range", None)),
            "id": getattr(spec, "id", ""),
            "notes": [],
            "infos": ["own"],  # Values in addition to bool.
        }
        self.properties: Dict[str, Any] = {"gymnasium": lambda: json.dumps(description)}
        if mode is not None:
            self.properties["gymnasium.frame"] = self._frame

    def _frame(self) -> Any:
        frame = self._render()
        is_array = isinstance(frame, np.ndarray) and frame.dtype.kind in "biuf"
        return frame if is_array else _encode(frame, where="the frame")

    def configure(self, settings: Dict[str, Any]) -> None:
        """Store the settings of a Reset for the next `reset`, or raise ValueError."""
        for name, value in settings.items():
            is_flag = isinstance(value, (bool, np.bool_))
            if name == "infos" and (is_flag or value == "own"):
                self._infos = bool(value) if is_flag else "own"
            elif name == "seed" and isinstance(value, (int, np.integer)) and not is_flag:
                self._settings[name] = int(value)
            elif name == "options" and isinstance(value, (str, dict)):
                self._settings[name] = _decode(value) if isinstance(value, str) else value
            else:
                raise ValueError(f"setting {name!r} is {value!r}")

    def action_spec(self) -> Any:
        return _space_spec(self._env.action_space)

    def observation_spec(self) -> Any:
        spec = _space_spec(self._env.observation_space)
        return {"observation": spec, "gymnasium": StringArray(())} if self._infos else spec

    def reset(self) -> Any:
        settings, self._settings = self._settings, {}
        if self._seeds_by_method and "seed" in settings:
            self._env.seed(settings.pop("seed"))
        if not self._takes_options and not settings.get("options", True):
            del settings["options"]  # Trainers pass empty ones to environments of any age.
        found = self._env.reset(**settings)
        info: Any = {}  # Until gym 0.25 there is none.
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict):
            space = self._env.observation_space
            parts: Tuple[Any, ...] = tuple(space.spaces) if _space_kind(space) == "Tuple" else ()
            may_be_element = len(parts) == 2 and _space_kind(parts[1]) == "Dict"
            if not (may_be_element and space.contains(found)):
                found, info = found
        return TimeStep(FIRST, None, None, self._observed(found, info, False))

    def step(self, action: Any) -> Any:
        found = self._env.step(_from_wire(self._env.action_space, action))
        try:
            observation, reward, is_terminated, info = found[0], found[1], bool(found[2]), found[-1]
            is_truncated = found[3] if len(found) == 5 else info.get("TimeLimit.truncated", False)
            is_truncated = bool(is_truncated)
        except (AttributeError, LookupError, TypeError):
            if type(found) is tuple and len(found) in (4, 5):
                raise
            text = f"step of {self._name()} returned {_described(found)}"
            expected = "(observation, reward, terminated, truncated, info)"
            raise TypeError(f"{text}; expected {expected}, as in Gymnasium") from None
        if len(found) == 4 and is_truncated:
            is_terminated = False
        step_type = LAST if is_terminated or is_truncated else MID
        observed = self._observed(observation, info, is_terminated and is_truncated)
        if type(reward) is not float:
            reward = _reward_of(reward, f"step of {self._name()}")
        return TimeStep(step_type, reward, 0.0 if is_terminated else 1.0, observed)

    def _name(self) -> str:
        return type(getattr(self._env, "unwrapped", self._env)).__name__

    def _observed(self, observation: Any, info: Any, is_truncated_too: bool) -> Any:
        value = _to_wire(self._env.observation_space, observation)
        if not self._infos:
            return value
        extras: Dict[str, Any] = {"info": info} if info else {}
        if is_truncated_too:
            extras["truncated"] = True
        return {
            "observation": value,
            "gymnasium": _encode(extras, self._infos == "own", "") if extras else "",
        }

    def close(self) -> None:
        self._env.close()


# Worlds: an environment each, for one agent at a time.

_NOT_JOINED, _JOINED, _RUNNING, _TERMINATED, _INTERRUPTED = -1, 0, 1, 2, 3
_STATES = ["joined, before the first sequence", "in a sequence", "after a sequence"]
_STATES += ["after a sequence", "not joined to a world"]
_DISCOUNT = BoundedArray((), np.float64, 0.0, 1.0, "discount")


class _Specs:
    """The actions and observations of an environment by UID."""

    def __init__(self, environment: Any):
        self.action, self.observation = environment.action_spec(), environment.observation_spec()
        for method, found in (("action", self.action), ("observation", self.observation)):
            for _, spec in _named_specs(found, method):
                if hasattr(spec, "sample") and hasattr(spec, "contains"):
                    where = f"{method}_spec of {type(environment).__name__}"
                    raise TypeError(
                        f"{where} returned the space {spec}, not a spec: {_IS_GYMNASIUM}"
                    )
        self.reward = getattr(environment, "reward_spec", lambda: Array((), np.float64))()
        # An inherited discount is 1, or 0 in TERMINATED: it follows from the states.
        own: Any = getattr(environment, "discount_spec", lambda: None)
        defined_in = str(getattr(getattr(own, "__func__", None), "__module__", ""))
        self.discount = None if defined_in.startswith("dm_env.") else own()
        actions = _named_specs(self.action, "action")
        observations = _named_specs(self.observation, "observation")
        _check_names([name for name, _ in observations], "observation", _OF_STEPS)
        observations += _named_specs(self.reward, "reward")
        observations += _named_specs(self.discount, "discount")
        self.actions = self._fields("action", actions)
        self.observations = self._fields("observation", observations)
        self.packed = b"".join(
            _field(number, b"\x08" + _varint(uid) + _field(2, each.spec))
            for number, fields in ((1, self.actions), (2, self.observations))
            for uid, each in fields.items()
        )

    def _fields(self, role: str, named: List[Tuple[str, Any]]) -> Dict[int, _Field]:
        _check_names([name for name, _ in named], role)
        numbered = enumerate(named, start=1)
        return {uid: _Field(uid, name, spec, role) for uid, (name, spec) in numbered}

    def values(self, timestep: Any) -> List[Any]:
        """Return all values of a time step in the order of their UIDs, starting at 1."""
        reward, discount = timestep.reward, timestep.discount
        is_last = bool(timestep.step_type == LAST)
        allowed = (None, 1.0, 0.0) if is_last else (None, 1.0)
        # Clients take no discount of a FIRST step.
        is_first = bool(timestep.step_type == FIRST)
        if self.discount is None and discount not in allowed and not is_first:
            raise RuntimeError(
                f"cannot send the discount {discount}; override discount_spec() and return a spec"
            )
        found = _flatten(self.observation, timestep.observation, "observation")
        missing_discount = int(not is_last)
        given = (
            (self.reward, reward, 0, "reward"),
            (self.discount, discount, missing_discount, "discount"),
        )
        for spec, value, missing, name in given:
            if value is None:  # A FIRST step has neither.
                specs = _named_specs(spec, name)
                found += [np.full(each.shape, missing, each.dtype) for _, each in specs]
            else:
                found += _flatten(spec, value, name)
        return found


_local = threading.local()  # `owner`: the _Owner of this thread.


class _Owner:
    """A thread that owns environments: it makes all calls to them, including the constructor.

    Browser drivers, OpenGL contexts and sqlite3 accept calls from one thread only. While an owner
    waits for another owner or a client, it runs the calls queued for it, but never during a
    call to an environment.
    """

    def __init__(
        self, wake: Callable[[], None] = lambda: None, prepare: Callable[[], None] = lambda: None
    ):
        self.ident: Optional[int] = None
        self.worlds = 0
        self.prepare = prepare  # Called before this thread owns an environment.
        self._wake, self._is_over = wake, False
        self._changed = threading.Condition()
        self.calls: Deque[Any] = collections.deque()  # Futures with their functions.

    def claim(self) -> None:
        """Make the current thread the owner of the environments."""
        self.ident, _local.owner = threading.get_ident(), self

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the owner's thread, and return its result or raise its exception."""
        if threading.get_ident() == self.ident:
            return function(*arguments)
        future, caller = self.begin(function, *arguments), getattr(_local, "owner", None)
        if caller is not None:
            caller.serve_until(future.done)
        return future.result()

    def begin(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Queue a call and return its future, or raise Refusal if the thread has ended."""
        future, caller = concurrent.futures.Future(), getattr(_local, "owner", None)  # type: Any, Any
        if caller is not None:
            future.add_done_callback(lambda _: caller.look())
        with self._changed:
            _check(not self._is_over, NOT_FOUND, "the world was closed")
            self.calls.append((future, function, arguments))
        self.look()
        self._wake()
        return future

    def look(self) -> None:
        """Wake `serve_until`, so that it checks its condition again."""
        with self._changed:
            self._changed.notify_all()

    def serve(self) -> None:
        """Run the queued calls."""
        while self.calls:
            future, function, arguments = self.calls.popleft()
            future.set_running_or_notify_cancel()
            try:
                result = function(*arguments)
            except BaseException as error:
                future.set_exception(error)
                if isinstance(error, KeyboardInterrupt):  # For the main thread, not for the caller.
                    raise
            else:
                future.set_result(result)

    def serve_until(self, is_over: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Run calls until a condition holds or time runs out, and return whether it holds."""
        deadline = time.monotonic() + seconds
        while True:
            self.serve()
            with self._changed:
                if is_over() or time.monotonic() >= deadline:
                    return is_over()
                if not self.calls:
                    # Not every event that satisfies the condition notifies this thread.
                    self._changed.wait(min(0.1, max(0.0, deadline - time.monotonic())))

    def finish(self) -> None:
        """Run calls until this thread owns no environments."""
        self.serve_until(lambda: not self.worlds)
        with self._changed:
            self._is_over = True
        self.serve()


class _World:
    """An environment made by the factory; its owner creates it and makes all calls to it."""

    def __init__(
        self, owner: _Owner, factory: Callable[..., Any], settings: Dict[str, Any], creator: Any
    ):
        self.owner = owner
        self.creator, self.agent, self.idle_since = creator, None, 0.0  # type: Any, Any, float
        self.held = 0  # Bytes of settings.
        self._factory, self.settings = factory, settings
        self._is_running = self.is_interrupted = self.is_closed = self.is_over = False
        self._last, self._next = None, None  # type: Any, Any
        self.environment, self.specs = self._make(settings)
        owner.worlds += 1

    def _make(self, settings: Dict[str, Any]) -> Tuple[Any, _Specs]:
        """Return an environment and its specs, or raise Refusal if the settings are rejected."""
        refusal = "the environment does not take these settings: "
        try:
            arguments = _unflatten(settings)
            inspect.signature(self._factory).bind(**arguments)
        except (TypeError, ValueError) as error:
            known = ", ".join(inspect.signature(self._factory).parameters) or "none"
            text = f"{refusal}{error}; known settings: {known}"
            raise Refusal(INVALID_ARGUMENT, text) from None
        try:
            made = self._factory(**arguments)
        except (TypeError, ValueError) as error:
            if not settings:
                raise
            raise Refusal(INVALID_ARGUMENT, f"{refusal}{error}") from error
        is_class = isinstance(made, type)
        if not is_class and not hasattr(made, "action_spec") and hasattr(made, "action_space"):
            rows = getattr(made, "num_envs", 1)
            if rows != 1 or hasattr(made, "single_action_space"):
                text = f"the factory returned {_described(made)}, a batch of {rows} environments; "
                _close(made)
                raise TypeError(text + _NO_BATCHES)
            made = _Gymnasium(made)
        methods = ("reset", "step", "action_spec", "observation_spec")
        if is_class or not all(hasattr(made, name) for name in methods):
            expected = "the methods of dm_env.Environment, or one of gym or Gymnasium"
            text = (
                f"the factory returned {_described(made)}; expected an environment with {expected}"
            )
            raise TypeError(text + (f"; call it: {made.__name__}()" if is_class else ""))
        try:
            return made, _Specs(made)
        except BaseException:
            _close(made)
            raise

    def made_with(self, settings: Dict[str, Any]) -> Any:
        """Return the environment and specs for the settings of a reset; `adopt` applies them."""
        if not settings:
            return None
        own = getattr(self.environment, "reset_settings", ())
        mine = {name: value for name, value in settings.items() if name.split(".")[0] in own}
        others = {name: value for name, value in settings.items() if name not in mine}
        made, specs = self.environment, self.specs
        if others:
            made, specs = self._make({**self.settings, **others})
        if mine:
            try:
                made.configure(_unflatten(mine))
            except ValueError as error:
                text = f"these settings are refused: {error}"
                raise Refusal(INVALID_ARGUMENT, text) from error
            specs = _Specs(made)
        return made, specs, {**self.settings, **others}

    def adopt(self, made: Any) -> None:
        """End the sequence and apply the result of `made_with`."""
        self._is_running = False
        if made is not None:
            former = self.environment
            self.environment, self.specs, self.settings = made
            if self.environment is not former:
                _close(former)

    def step(self, actions: Dict[int, Any], is_running: bool) -> Tuple[int, List[Any]]:
        """Take a step or begin a sequence, and return the state and all values."""
        specs = self.specs
        if self.is_interrupted:
            self.end_interruption()
            return _INTERRUPTED, specs.values(self._last)
        if not is_running:
            timestep = self.environment.reset()
        elif not self._is_running:
            raise Refusal(FAILED_PRECONDITION, "the sequence ended when the world was reset")
        else:
            timestep = self.environment.step(self._action(actions))
        try:
            method = "step" if is_running else "reset"
            step_type = _next_type(self.environment, method, timestep)
            if not is_running:  # FIRST has neither reward nor discount.
                timestep = TimeStep(FIRST, None, None, timestep.observation)
            self._last, state = timestep, _RUNNING
            self._is_running = step_type != LAST
            if not self._is_running:
                discounts = _flatten(specs.discount or _DISCOUNT, timestep.discount, "discount")
                state = _INTERRUPTED if any(map(np.any, discounts)) else _TERMINATED
            return state, specs.values(timestep)
        except AttributeError:
            _check_time_step(self.environment, "step" if is_running else "reset", timestep)
            raise

    def _action(self, actions: Dict[int, Any]) -> Any:
        """Return actions in the structure of their spec, or raise Refusal if one is missing."""
        specs, values = self.specs, dict(getattr(self.environment, "default_actions", {}))
        values.update((specs.actions[uid].name, action) for uid, action in actions.items())
        absent = [each.name for each in specs.actions.values() if each.name not in values]
        if absent:
            text = f"missing action {', '.join(map(repr, absent))}: a step needs all"
            raise Refusal(INVALID_ARGUMENT, text)
        flat = [values[each.name] for each in specs.actions.values()]
        return flat[0] if _is_leaf(specs.action) else _nest(specs.action, iter(flat))

    def reset(self, settings: Dict[str, Any]) -> None:
        """End the sequence in response to the agent's own Reset."""
        made = self.made_with(settings)
        self.end_interruption()
        self.adopt(made)

    def interrupt(self, settings: Dict[str, Any], session: "_Session") -> None:
        """Reset the world; an agent in a sequence learns of the reset from its next step."""
        if self.agent is session:
            self.end_interruption()
        made = self.made_with(settings)
        if made and self.agent is not None and made[1].packed != self.specs.packed:
            _close(made[0])
            text = "these settings change the specs: send them with the agent's own Reset"
            raise Refusal(FAILED_PRECONDITION, text)
        if self.agent in (None, session) or not self._is_running:
            self.adopt(made)
        else:
            self._next, self.is_interrupted = made, True

    def end_interruption(self) -> None:
        if self.is_interrupted:
            self.adopt(self._next)
            self._next, self.is_interrupted = None, False

    def leave(self) -> None:
        self.end_interruption()
        self._is_running, self.agent, self.idle_since = False, None, time.monotonic()
        if self.is_closed:
            self._end()

    def close(self) -> None:
        """Close the environment, or, if it is in use, let it be closed when its agent leaves."""
        self.is_closed = True
        if self.agent is None:
            self._end()

    def _end(self) -> None:
        self.owner.worlds -= 1
        _close(self.environment)
        self.is_over = True


def _close(environment: Any) -> None:
    try:
        getattr(environment, "close", lambda: None)()
    except Exception:
        _log.exception("an environment failed to close")


# The requests of one stream.

_PROPERTIES = "dm_env_rpc.v1.extensions.properties.Property"


class _Session:
    """The session of one stream, which answers requests; a failed request changes nothing."""

    def __init__(self, server: "Server", peer: str, is_local: bool):
        self.is_gone = False
        self._server, self._peer, self._is_local = server, peer, is_local
        self._state, self._world = _NOT_JOINED, None  # type: int, Any
        self._requested: Dict[bytes, List[Tuple[int, _Field]]] = {}
        # Parsed steps, since most actions are among a few values.
        self._steps: Dict[bytes, Tuple[Dict[int, Any], List[Tuple[int, _Field]]]] = {}
        self._message, self._budget = b"", {}  # type: bytes, _Budget

    def answer(self, message: bytes) -> bytes:
        """Return the EnvironmentResponse for an EnvironmentRequest."""
        budget = self._budget = dict(LIMITS)
        self._message = message if len(message) < 256 else b""
        try:
            if self._message in self._steps:
                return _field(3, self._take_step(*self._steps[message]))
            # Parts of a large one are not copied.
            data = message if len(message) < 1 << 16 else memoryview(message)
            parts = _parts(_REQUEST_TAGS, data, budget, _REQUEST_TAGS)
            _check(parts, INVALID_ARGUMENT, "the request has no payload that this server knows")
            ((number, blocks),) = parts.items()
            (name, readers), joined = _REQUESTS[number], self._state != _NOT_JOINED
            if joined if name == "join_world" else name in ("step", "reset") and not joined:
                text = f"a {name} request is not allowed while the connection is"
                raise Refusal(FAILED_PRECONDITION, f"{text} {_STATES[self._state]}")
            contents = _contents(readers, _joined(blocks), budget)
            return _field(number, getattr(self, "_" + name)(*contents))
        except _StreamError:
            raise
        except Refusal as refusal:
            return _error(refusal.code, str(refusal))
        except Exception as error:
            self._server.failed(error, f"in a request of {self._peer}")
            details = b""
            if self._is_local:
                trace = traceback.format_tb(error.__traceback__)
                lines = b"".join(_field(1, line.encode("utf-8", "replace")) for line in trace)
                details = _field(1, b"type.googleapis.com/google.rpc.DebugInfo") + _field(2, lines)
            return _error(INTERNAL, f"the environment failed: {_shown(error)}", details)

    def wait(self, is_over: Callable[[], bool]) -> None:
        """Wait until `is_over`, or raise _StreamError if the client disconnects meanwhile."""
        # Not every end notifies this thread, which serves other calls in the meantime.
        while not _local.owner.serve_until(lambda: is_over() or self.is_gone, 0.02):
            pass
        if not is_over():
            raise _StreamError(CANCELLED, "the client is gone")

    def close(self) -> None:
        """Leave the world; worlds created by this stream end later, once they have no agents."""
        self._leave_world()
        with self._server.lock:
            self._server.sessions.discard(self)
            for world in self._server.worlds.values():
                if world.creator is self:
                    world.creator, world.idle_since = None, time.monotonic()

    def _create_world(self, settings: Dict[str, Any]) -> bytes:
        return _field(1, self._server.create(settings, self).encode())

    def _join_world(self, name: str, settings: Dict[str, Any]) -> bytes:
        text = f"unknown join settings {', '.join(map(repr, settings))}: there are none"
        _check(not settings, INVALID_ARGUMENT, text)
        with self._server.lock:
            world = self._server.world(name)
            text = "the world already has an agent; create another world"
            _check(world.agent is None, FAILED_PRECONDITION, text)
            world.agent = self
        self._world, self._state = world, _JOINED
        return self._specs()

    def _specs(self) -> bytes:
        self._requested.clear()
        self._steps.clear()
        return _field(1, self._world.specs.packed)

    def _step(self, given: Dict[int, Any], asked: Any) -> bytes:
        specs = self._world.specs
        for uid in given:
            _require_known(uid, specs.actions, "action")
        fields = self._requested.get(asked)
        if fields is None:
            uids: Dict[int, None] = {}
            numbers = _read_varints(asked, self._budget)
            for first in range(0, len(numbers), 1 << 12):  # A list takes five times as much.
                uids.update(dict.fromkeys(numbers[first : first + (1 << 12)].tolist()))
                for uid in uids:
                    _require_known(uid, specs.observations, "observation")
            fields = [(uid - 1, specs.observations[uid]) for uid in uids]
            if len(self._requested) < 16 and len(asked) < 1 << 12:
                self._requested[bytes(asked)] = fields
        actions: Dict[int, Any] = {}
        if self._state == _RUNNING:
            actions = {uid: specs.actions[uid].read(t, self._budget) for uid, t in given.items()}
            is_immutable = all(isinstance(each, np.generic) for each in actions.values())
            if self._message and is_immutable and len(self._steps) < 256:
                self._steps[self._message] = actions, fields
        return self._take_step(actions, fields)

    def _take_step(self, actions: Dict[int, Any], fields: List[Tuple[int, _Field]]) -> bytes:
        # The owning thread itself needs no queued call.
        owner = self._world.owner
        if threading.get_ident() != owner.ident:
            return owner.call(self._step_world, actions, fields)  # type: ignore[no-any-return]
        return self._step_world(actions, fields)

    def _step_world(self, actions: Dict[int, Any], fields: List[Tuple[int, _Field]]) -> bytes:
        state, values = self._world.step(actions, self._state == _RUNNING)
        try:
            parts = [field.entry(values[index]) for index, field in fields]
        except ValueError as error:
            raise RuntimeError(f"the environment violates its own specs: {error}") from error
        self._state = state
        return b"".join((b"\x08", _varint(state), *parts))

    def _reset(self, settings: Dict[str, Any]) -> bytes:
        world = self._world
        if settings or self._state == _RUNNING:
            self._server.hold(world, settings)
            world.owner.call(world.reset, settings)
            self._state = _INTERRUPTED if self._state == _RUNNING else self._state
        return self._specs()

    def _reset_world(self, name: str, settings: Dict[str, Any]) -> bytes:
        with self._server.lock:
            world = self._server.world(name)
        if world is not self._world:  # Its own agent learns of it by this request.
            self.wait(lambda: not world.is_interrupted)
        self._server.hold(world, settings)
        world.owner.call(world.interrupt, settings, self)
        self.wait(lambda: not world.is_interrupted)
        if world is self._world and self._state == _RUNNING:
            self._state = _INTERRUPTED
        return b""

    def _leave_world(self) -> bytes:
        world, self._world, self._state = self._world, None, _NOT_JOINED
        self._steps.clear()
        if world is not None:
            world.owner.call(world.leave)
        return b""

    def _destroy_world(self, name: str) -> bytes:
        with self._server.lock:
            world = self._server.world(name)
            text = f"world {name!r} has an agent, which must leave first"
            _check(world.agent is None, FAILED_PRECONDITION, text)
            del self._server.worlds[name]
        world.owner.call(world.close)
        return b""

    def _extension(self, url: str, contents: Any) -> bytes:
        text = f"no extension {url[:200]!r}; there is {_PROPERTIES}Request"
        _check(url.rpartition("/")[2] == _PROPERTIES + "Request", UNIMPLEMENTED, text)
        parts = _parts((10, 18, 26), contents, self._budget, (10, 18, 26))
        _check(parts, INVALID_ARGUMENT, "the property request is empty")
        ((number, blocks),) = parts.items()
        readers = (_read_text, _read_bytes)
        asked = (number, *_contents(readers, _joined(blocks), self._budget), self._budget)
        if self._world is None:
            answer = _property(None, *asked)
        else:
            answer = self._world.owner.call(_property, self._world.environment, *asked)
        own_url = f"type.googleapis.com/{_PROPERTIES}Response".encode()
        return _field(1, own_url) + _field(2, _field(number, answer))


def _shown(error: BaseException) -> str:
    """Return the type and the message of an error, even if composing the message raises an error."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as failure:
        return f"{type(error).__name__}: (its message raised {type(failure).__name__})"


def _error(code: int, text: str, details: bytes = b"") -> bytes:
    """Return an EnvironmentResponse with an error."""
    shown = text.encode("utf-8", "replace")
    if len(shown) > MAX_ERROR_BYTES:
        shown = shown[:MAX_ERROR_BYTES].decode("utf-8", "ignore").encode() + b"..."
    status = b"\x08" + _varint(code) + _field(2, shown)
    return _field(16, status + (_field(3, details) if details else b""))


def _require_known(uid: int, fields: Dict[int, _Field], role: str) -> None:
    if uid not in fields:
        raise Refusal(INVALID_ARGUMENT, f"no {role} has uid {uid}; uids: {list(fields)[:32]}")


def _entries(parts: List[Any], budget: _Budget, key_tag: int) -> Iterator[Tuple[Any, Any]]:
    """Yield the encoded key and tensor of each entry of a map."""
    for part in parts:
        _take(budget, "entries")
        found = _parts((key_tag, 18), part, budget)
        yield _joined(found.get(1, [])[-1:]), _joined(found.get(2, []))


def _read_settings(parts: List[Any], budget: _Budget) -> Dict[str, Any]:
    found = {}
    for key, tensor in _entries(parts, budget, 10):
        name = _read_name([key], budget)
        value = _read_tensor(tensor, budget, f"setting {name!r}")[1]
        # Environments expect int, float and bool of Python, not scalars of NumPy.
        found[name] = value.item() if isinstance(value, np.generic) else value
    return found


def _read_actions(parts: List[Any], budget: _Budget) -> Dict[int, Any]:
    pairs = _entries(parts, budget, 8)
    return {_read_varint(key or b"\0", 0)[0]: tensor for key, tensor in pairs}


def _read_name(parts: List[Any], budget: _Budget) -> str:
    size = sum(map(len, parts))
    text = f"a name has {size} bytes; at most {MAX_NAME_BYTES} are allowed"
    _check(size <= MAX_NAME_BYTES, INVALID_ARGUMENT, text)
    return _read_text(parts, budget)


# Requests by number: their names, and how their fields are read.
_REQUESTS: Dict[int, Tuple[str, Any]] = {
    1: ("create_world", (_read_settings,)),
    2: ("join_world", (_read_name, _read_settings)),
    3: ("step", (_read_actions, _read_bytes)),
    4: ("reset", (_read_settings,)),
    5: ("reset_world", (_read_name, _read_settings)),
    6: ("leave_world", ()),
    7: ("destroy_world", (_read_name,)),
    15: ("extension", (_read_name, _read_bytes)),
}
_REQUEST_TAGS = {number << 3 | 2 for number in _REQUESTS}


def _property(environment: Any, request: int, key: str, tensor: Any, budget: _Budget) -> bytes:
    """Answer a request to read (1), write (2) or list (3) properties of an environment."""
    properties = dict(getattr(environment, "properties", None) or {})
    known = {k: v if isinstance(v, tuple) else (v, None) for k, v in properties.items()}
    getter, setter = known.get(key, (None, None))
    prefix = key + "." if key else ""
    inner = [
        prefix + each[len(prefix) :].split(".")[0] for each in known if each.startswith(prefix)
    ]
    if key and key not in known and not inner:
        names = ", ".join(map(repr, sorted(known))) or "none"
        raise Refusal(NOT_FOUND, f"no property {key[:200]!r}; properties: {names}")
    if not (getter, setter, inner or not key)[request - 1]:
        what = ("readable", "writable", "listable")[request - 1]
        raise Refusal(PERMISSION_DENIED, f"property {key!r} is not {what}")
    if request == 1:
        value = _as_array(getter())
        return _field(1, _write_tensor(_kind_of(value, f"property {key!r}"), value))
    if request == 2:
        field = None
        if getter:  # If it fails, the client is not at fault.
            now = _as_array(getter())
            field = _Field(0, key, Array(now.shape, now.dtype), "property")
        try:
            value = field.read(tensor, budget) if field else _read_tensor(tensor, budget, key)[1]
            setter(value.item() if isinstance(value, np.generic) else value)
        except (TypeError, ValueError) as error:
            text = f"invalid value for property {key!r}: {error}"
            raise Refusal(INVALID_ARGUMENT, text) from error
        return b""
    found = b""
    for child in sorted(set(inner)):
        getter, setter = known.get(child, (None, None))
        spec = _field(1, child.encode())
        if getter:
            value = _as_array(getter())
            spec += _write_shape(2, value.shape) + b"\x18" + _varint(_kind_of(value, child))
        is_listable = any(each.startswith(child + ".") for each in known)
        flags = zip((2, 3, 4), (getter, setter, is_listable))
        marks = b"".join(bytes([number << 3, 1]) for number, is_there in flags if is_there)
        found += _field(1, _field(1, spec) + marks)
    return found


# HPACK: header blocks (RFC 7541).

_PROTOCOL, _FLOW, _CLOSED, _SIZE, _REFUSED, _COMPRESSION, _CALM = 1, 3, 5, 6, 7, 9, 11


class _Violation(Exception):
    """A client broke the rules of HTTP/2; `stream` is 0 if the connection has to end."""

    def __init__(self, code: int, stream: int):
        super().__init__(f"error {code} of RFC 9113 on stream {stream}")
        self.code, self.stream = code, stream


def _require(is_allowed: Any, code: int = _PROTOCOL, stream: int = 0) -> None:
    """Raise _Violation, which ends the stream or the connection, unless `is_allowed`."""
    if not is_allowed:
        raise _Violation(code, stream)


_STATIC = """
:authority :method=GET :method=POST :path=/ :path=/index.html :scheme=http :scheme=https :status=200
:status=204 :status=206 :status=304 :status=400 :status=404 :status=500 accept-charset
accept-encoding=gzip,_deflate accept-language accept-ranges accept access-control-allow-origin age
allow authorization cache-control content-disposition content-encoding content-language
content-length content-location content-range content-type cookie date etag expect expires from host
if-match if-modified-since if-none-match if-range if-unmodified-since last-modified link location
max-forwards proxy-authenticate proxy-authorization range referer refresh retry-after server
set-cookie strict-transport-security transfer-encoding user-agent vary via www-authenticate
"""
_TABLE: List[Any] = [
    tuple(each.replace("_", " ").encode().partition(b"=")[::2]) for each in _STATIC.split()
]
_TABLE_BYTES = 4096
# The Huffman code is canonical, so the code lengths of the characters 0 to 256 define it.
_LENGTHS = (  # A stands for 1, B for 2.
    r"MW\\\\\\\X^\\^\\\\\\\\^\\\\\\\\\FJJLMFHKJJHKHFFFEEEFFFFFFFGHOFLJMFGGGGGGGGGGGGGGGGGGGG"
    r"GGHGHMSMNFOEFEFEFFFEGGFFFEFGFEEFGGGGGOKNM\TVTTVVVWVWWWWWXWXXVWXWWWWUVWVWWXVUTVVWWUWVVX"
    r"UVWWUUVUWVWWTVVVWVVWZZTSVWVYZZZ[[ZXYSUZ[[Z[XUUZZ\[[[TXTUVUUWVVYYXXZWZ[ZZ[[[[[\[[[[[Z^"
)


_CODES: Dict[int, int] = {}  # Characters by their codes, each after a 1.
_code = _before = 0
for _length, _character in sorted((ord(each) - 64, i) for i, each in enumerate(_LENGTHS)):
    _code, _before = _code << (_length - _before), _length
    _CODES[1 << _length | _code] = _character
    _code += 1


def _unhuffman(coded: bytes) -> bytes:
    decoded, code = bytearray(), 1
    for byte in coded:
        for shift in range(7, -1, -1):
            code = code << 1 | byte >> shift & 1
            character = _CODES.get(code)
            if character is not None:
                _require(character < 256, _COMPRESSION)
                decoded.append(character)
                code = 1
    _require(code in (1, 3, 7, 15, 31, 63, 127, 255), _COMPRESSION)  # Padding: less than 8 ones.
    return bytes(decoded)


class _HeaderDecoder:
    def __init__(self) -> None:
        self._table, self._limit = [], _TABLE_BYTES  # type: List[Any], int
        self._block, self._at = b"", 0

    def decode(self, block: bytes) -> List[Tuple[bytes, bytes]]:
        headers, size = [], 0  # type: List[Tuple[bytes, bytes]], int
        self._block, self._at = block, 0
        try:
            while self._at < len(block):
                while (
                    self._table and sum(len(n) + len(v) + 32 for n, v in self._table) > self._limit
                ):
                    self._table.pop()
                first = block[self._at]
                if first & 0xE0 == 0x20:
                    self._limit = self._integer(0x1F)
                    _require(not headers and self._limit <= _TABLE_BYTES, _COMPRESSION)
                    continue
                if first & 0x80:
                    header = self._entry(self._integer(0x7F))
                else:
                    index = self._integer(0x3F if first & 0x40 else 0x0F)
                    name = self._entry(index)[0] if index else self._string()
                    header = (name, self._string())
                if first & 0xC0 == 0x40:
                    self._table.insert(0, header)
                headers.append(header)
                size += len(header[0]) + len(header[1]) + 32
                _require(size <= MAX_HEADER_BYTES, _CALM)
        except IndexError:
            raise _Violation(_COMPRESSION, 0) from None
        return headers

    def _entry(self, index: int) -> Any:
        _require(index, _COMPRESSION)
        return (_TABLE + self._table)[index - 1]

    def _integer(self, mask: int) -> int:
        number = self._block[self._at] & mask
        self._at += 1
        for shift in range(0, 28 if number == mask else 0, 7):
            byte = self._block[self._at]
            number, self._at = number + ((byte & 0x7F) << shift), self._at + 1
            if byte < 0x80:
                return number
        _require(number < mask, _COMPRESSION)
        return number

    def _string(self) -> bytes:
        is_coded = self._block[self._at] & 0x80
        end = self._integer(0x7F) + self._at
        _require(end <= len(self._block), _COMPRESSION)
        string, self._at = self._block[self._at : end], end
        return _unhuffman(string) if is_coded else string


def _header_block(headers: List[Tuple[str, str]]) -> bytes:
    """Encode headers without using a table, and set the size of the dynamic table to 0."""
    block = b"\x20"
    for header in headers:
        block += b"\x00"
        for encoded in (text.encode("latin-1", "replace") for text in header):
            size = len(encoded)
            block += (bytes([size]) if size < 127 else b"\x7f" + _varint(size - 127)) + encoded
    return block


_FORBIDDEN = (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
_PSEUDO = (b":method", b":scheme", b":path", b":authority")
_NAME = re.compile(rb":?[!-9;-@\[-~]+")


def _checked_headers(headers: List[Tuple[bytes, bytes]], stream: int) -> Dict[bytes, bytes]:
    """Check headers or trailers, and return them by name (RFC 9113, section 8)."""
    fields: Dict[bytes, bytes] = {}
    for name, value in headers:
        wrong = not _NAME.fullmatch(name) or re.search(b"[\0\r\n]", value) or name in _FORBIDDEN
        wrong = wrong or (name == b"te" and value != b"trailers")
        if name[:1] == b":":
            is_late = any(each[:1] != b":" for each in fields)
            wrong = wrong or is_late or name in fields or name not in _PSEUDO
        if name == b"content-length":
            wrong = wrong or not value.isdigit() or fields.get(name, value) != value
        _require(not wrong, _PROTOCOL, stream)
        fields[name] = value.strip(b" \t")
    return fields


# HTTP/2: frames (RFC 9113). A violation by a client ends its stream or connection.

_DATA, _HEADERS, _PRIORITY, _RST, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW = range(9)
_CONTINUATION = 9
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _WITH_PRIORITY = 1, 1, 4, 8, 32
_SIZES = {_PRIORITY: 5, _RST: 4, _PING: 8, _WINDOW: 4}  # Of frames that have always the same.
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_LARGEST = (1 << 31) - 1
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_ANSWER = [(":status", "200"), ("content-type", "application/grpc")]
_PATH, _HEALTH = "/dm_env_rpc.v1.Environment/Process", "/grpc.health.v1.Health/"


def _frame(kind: int, flags: int, stream: int, payload: Any = b"") -> bytes:
    size = len(payload)
    head = struct.pack(">HBBBI", size >> 8, size & 0xFF, kind, flags, stream)
    return b"".join((head, payload))


def _number(number: int) -> bytes:
    return struct.pack(">I", number)


class _Stream:
    """A call: its session and its unanswered messages."""

    def __init__(self, number: int, path: str, window: int, lock: Any):
        self.number, self.path, self.window = number, path, window
        self.changed = threading.Condition(lock)
        self.owner = _Owner()  # Its thread.
        self.session: Optional[_Session] = None
        self.queue: Deque[Optional[bytes]] = collections.deque()  # At the end None.
        self.partial = bytearray()
        self.length: Optional[int] = None  # What is to come, by content-length.
        self.unacknowledged = 0
        self.turn = 0  # Odd while the environment is called.
        self.has_thread = self.has_headers = self.has_ended = self.is_over = False


class _Connection:
    """A client's connection. `lock` is held while data is read, parsed or written.

    If a connection has only one stream, that stream's thread reads while it waits, which saves two
    thread switches per step. `run` reads for several streams, and while the environment computes.
    """

    def __init__(self, server: "Server", sock: Any, peer: str, is_local: bool):
        self.server, self.sock, self.peer, self.is_local = server, sock, peer, is_local
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.streams: Dict[int, _Stream] = {}
        self.alone: Optional[_Stream] = None
        self.is_over = self.is_ending = self._is_reading = False
        self.last_stream = 0
        self.began = time.monotonic()
        self._outbound, self._buffer = bytearray(), bytearray()
        self._skip = 0  # Number of incoming bytes to discard.
        self._preface, self._is_greeted = _PREFACE, False
        self._decoder = _HeaderDecoder()
        self._block, self._block_of, self._block_ends, self._parts = b"", 0, False, 0
        self._bell: Optional[Tuple[int, int]] = None  # Wakes the thread that reads.
        self._reset: Deque[int] = collections.deque(maxlen=1000)  # Frames may still come on these.
        self._window = self._initial_window = 65_535
        self._max_frame = 1 << 14
        self._unacknowledged = 0

    # Threads.

    def run(self) -> None:
        """Serve the connection until it ends."""
        try:
            if self.server.tls is not None:
                self.sock.settimeout(10.0)
                self.sock = self.server.tls.wrap_socket(self.sock, server_side=True)
                if self.sock.selected_alpn_protocol() != "h2":
                    raise OSError("no HTTP/2 in TLS")
            self.sock.setblocking(False)
            settings = ((3, self.server.max_streams), (4, STREAM_WINDOW), (5, (1 << 24) - 1))
            greeting = b"".join(struct.pack(">HI", *each) for each in settings)
            greeting += struct.pack(">HI", 6, MAX_HEADER_BYTES)
            with self.lock:
                self._outbound += _frame(_SETTINGS, 0, 0, greeting)
                self._outbound += _frame(_WINDOW, 0, 0, _number(CONNECTION_WINDOW - 65_535))
            self._read()
            self._linger()
        except (OSError, ValueError) as error:
            _log.debug("%s: %s", self.peer, error)
        finally:
            self.close()
            self._close_bell()
            self.sock.close()
            self.server.connections.discard(self)

    def _read(self) -> None:
        """Read from the connection while no stream's thread does."""
        seen, pause = -1, 0.02
        with self.lock:
            while not self.is_over:
                alone, turn = self.alone, self.alone.turn if self.alone else -1
                self._is_reading = alone is None or (turn & 1 == 1 and turn == seen)
                if alone is None or self._is_reading:
                    self._receive()
                else:
                    alone.changed.notify()
                    pause = 0.02 if turn != seen else min(2 * pause, 1.0)
                    self.changed.wait(pause)
                seen = turn

    def _wait(self, stream: _Stream) -> None:
        """Wait until something may have changed for a stream; the caller must hold the lock.

        Before that, run the calls queued for the thread of the stream.
        """
        if stream.owner.calls:
            self.lock.release()
            try:
                stream.owner.serve()
            finally:
                self.lock.acquire()
        elif (self.alone is stream and not self._is_reading) or self._outbound:
            self._receive()
        else:
            stream.changed.wait()

    def wake(self, stream: _Stream) -> None:
        """Wake the thread of a stream that owns a world."""
        with self.lock:
            stream.changed.notify()
            if self._bell is not None:
                with contextlib.suppress(OSError):  # It is full.
                    os.write(self._bell[1], b"!")

    def prepare_bell(self) -> None:
        """Create the pipe that wakes a reading owner to run calls from other threads."""
        with self.lock:
            if self._bell is None and not self.is_over:
                self._bell = os.pipe()
                for end in self._bell:
                    os.set_blocking(end, False)

    def _close_bell(self) -> None:
        with self.lock:
            bell, self._bell = self._bell, None
        for end in bell or ():
            os.close(end)

    def _answer(self, stream: _Stream, session: _Session) -> None:
        """Answer the messages of a stream, in a separate thread, until the stream ends.

        The thread continues as long as it owns worlds created by this stream.
        """
        stream.owner.claim()
        status = (INTERNAL, "the server failed")
        try:
            while True:
                with self.lock:
                    while not stream.queue:
                        self._wait(stream)
                    message = stream.queue.popleft()
                    if not stream.queue:
                        self._acknowledge_content(stream)
                if message is None:
                    status = (0, "")
                    break
                stream.turn += 1
                try:
                    answer = session.answer(message)
                finally:
                    stream.turn += 1
                self._send(stream, answer)
        except _StreamError as error:
            status = (error.code, str(error))
        except Exception as error:
            self.server.failed(error, f"in the connection of {self.peer}")
        finally:
            try:
                session.close()
            except Exception as error:
                self.server.failed(error, "when an agent left")
            with self.lock:
                self._finish(stream, *status)
                while self._outbound and not self.is_over:
                    self._wait(stream)
            stream.owner.finish()

    # What is sent; with the lock.

    def _send(self, stream: _Stream, message: bytes) -> None:
        """Send a message as the flow-control windows allow."""
        # A view, since parts of it are not copied.
        data = memoryview(struct.pack(">BI", 0, len(message)) + message)
        with self.lock:
            self._greet(stream)
            at = 0
            while at < len(data) and not stream.is_over:
                room = min(self._max_frame, self._window, stream.window)
                if room <= 0 or len(self._outbound) > MAX_UNSENT:
                    self._flush()
                    self._wait(stream)
                    continue
                part = data[at : at + room]
                at += len(part)
                self._put(stream, part)
            self._flush()

    def _put(self, stream: _Stream, part: Any) -> None:
        """Send content that fits into both flow-control windows."""
        self._window -= len(part)
        stream.window -= len(part)
        self._outbound += _frame(_DATA, 0, stream.number, part)

    def _greet(self, stream: _Stream) -> None:
        if not stream.has_headers:
            stream.has_headers = True
            block = _header_block(_ANSWER)
            self._outbound += _frame(_HEADERS, _END_HEADERS, stream.number, block)

    def _finish(self, stream: _Stream, code: int, text: str) -> None:
        """Send the status of a stream, and end it."""
        if not stream.is_over:
            trailers = [("grpc-status", str(code))]
            if text:
                quoted = urllib.parse.quote(text[:1000], " !#$&'()*+,/:;=?@", errors="replace")
                trailers.append(("grpc-message", quoted))
            self._end(stream, trailers if stream.has_headers else _ANSWER + trailers)

    def _end(self, stream: _Stream, headers: List[Tuple[str, str]]) -> None:
        block = _header_block(headers)
        self._outbound += _frame(_HEADERS, _END_HEADERS | _END_STREAM, stream.number, block)
        if not stream.has_ended:
            self._outbound += _frame(_RST, 0, stream.number, bytes(4))
        self._forget(stream)
        self._flush()

    def _flush(self) -> None:
        """Send as much as the socket accepts."""
        try:
            while self._outbound and not self.is_over:
                del self._outbound[: self.sock.send(self._outbound)]
        except _WOULD_BLOCK:
            pass
        except OSError:
            # The client no longer reads, so pending requests are not answered.
            self._outbound.clear()
            if not self.is_over:
                self._end_all()

    # What is received.

    def _receive(self) -> None:
        """Release the lock, wait for the client, take the lock again, and receive data."""
        is_full = len(self._outbound) > 4 * MAX_UNSENT  # Backpressure for clients that do not read.
        try:
            if is_full or self.server.tls is None or not self.sock.pending():
                poll, events = select.poll(), 0 if is_full else select.POLLIN
                poll.register(self.sock, events | (select.POLLOUT if self._outbound else 0))
                bell = self._bell
                if bell is not None:
                    poll.register(bell[0], select.POLLIN)
                self.lock.release()
                try:
                    poll.poll(1000)
                finally:
                    self.lock.acquire()
                if bell is not None and bell is self._bell:
                    with contextlib.suppress(OSError):
                        os.read(bell[0], 64)
            if not self.is_over:
                if not is_full:
                    self._take_some()
                self._flush()
        except (OSError, ValueError) as error:
            _log.debug("%s: %s", self.peer, error)
            self._end_all()
        except Exception as error:
            self.server.failed(error, f"in the connection of {self.peer}")
            self._end_all()

    def _take_some(self) -> None:
        """Process the received messages."""
        try:
            data = self.sock.recv(1 << 16)
        except _WOULD_BLOCK:
            return
        if not data:
            raise OSError("the client has closed the connection")
        self._buffer += data
        while True:
            try:
                self._parse()
                return
            except _Violation as violation:
                if not violation.stream:
                    self._send_goaway(violation.code)
                    raise OSError(str(violation)) from None
                self._reset_stream(violation.stream, violation.code)

    def _parse(self) -> None:
        """Parse the frames in the buffer."""
        buffer, at = self._buffer, 0
        try:
            if self._preface:
                at = min(len(buffer), len(self._preface))
                if buffer[:at] != self._preface[:at]:
                    raise OSError("the client does not speak HTTP/2")
                self._preface = self._preface[at:]
            while True:
                skipped = min(self._skip, len(buffer) - at)
                self._skip, at = self._skip - skipped, at + skipped
                if len(buffer) - at < 9:
                    return
                high, low, kind, flags, number = struct.unpack_from(">HBBBI", buffer, at)
                size, number = high << 8 | low, number & _LARGEST
                if not self._is_wanted(size, kind, flags, number):
                    self._skip, at = size, at + 9
                    self._acknowledge(size if kind == _DATA else 0)
                    continue
                if len(buffer) - at < 9 + size:
                    return
                payload = bytes(buffer[at + 9 : at + 9 + size])
                at += 9 + size
                self._take_frame(kind, flags, number, payload)
        finally:
            del buffer[:at]

    def _is_wanted(self, size: int, kind: int, flags: int, number: int) -> bool:
        """Check the header of a frame, and return False if its content is to be skipped."""
        if not self._is_greeted and (kind != _SETTINGS or flags & _ACK or number or size % 6):
            raise OSError("the client did not begin with a SETTINGS frame")
        _require(not self._block_of or kind == _CONTINUATION)
        if kind != _DATA:
            is_small = size < (1 << 16) - 1024 or kind > _CONTINUATION
            _require(is_small, _CALM if kind in (_HEADERS, _CONTINUATION) else _SIZE)
            return kind <= _CONTINUATION
        _require(self._unacknowledged + size <= CONNECTION_WINDOW, _FLOW)
        stream = self.streams.get(number)
        if stream is None or stream.has_ended:
            self._require_known(number)
            _require(number in self._reset, _CLOSED, number)
            return False
        _require(stream.unacknowledged + size <= STREAM_WINDOW, _FLOW, number)
        return True

    def _require_known(self, number: int) -> None:
        _require(number & 1 and number <= self.last_stream)

    def _acknowledge(self, size: int) -> None:
        """Reopen the window of the connection."""
        self._unacknowledged += size
        if self._unacknowledged * 2 > CONNECTION_WINDOW:
            self._outbound += _frame(_WINDOW, 0, 0, _number(self._unacknowledged))
            self._unacknowledged = 0

    def _acknowledge_content(self, stream: _Stream) -> None:
        """Reopen the window of a stream without pending messages."""
        if stream.unacknowledged * 2 > STREAM_WINDOW and not stream.has_ended:
            self._outbound += _frame(_WINDOW, 0, stream.number, _number(stream.unacknowledged))
            stream.unacknowledged = 0

    def _take_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Process a complete frame."""
        stream, size = self.streams.get(number), len(payload)
        _require(not number or kind not in (_SETTINGS, _PING, _GOAWAY))
        where = number if kind == _PRIORITY and stream else 0
        _require(size == _SIZES.get(kind, size), _SIZE, where)
        if kind in (_DATA, _HEADERS) and flags & _PADDED:
            _require(payload and payload[0] < size)
            payload = payload[1 : size - payload[0]]
        if kind == _DATA:
            assert stream is not None
            self._acknowledge(size)
            stream.unacknowledged += size
            self._on_data(stream, payload, flags)
        elif kind == _HEADERS:
            skipped = 5 if flags & _WITH_PRIORITY else 0
            _require(len(payload) >= skipped, _SIZE)
            _require(number & 1)
            self._block, self._block_of, self._parts = payload[skipped:], number, 0
            self._block_ends = bool(flags & _END_STREAM)
            self._end_block(flags)
        elif kind == _CONTINUATION:
            _require(number and number == self._block_of)
            self._block += payload
            self._parts += 1
            self._end_block(flags)
        elif kind == _RST:
            self._require_known(number)
            if stream is not None:
                self._forget(stream, is_gone=True)
        elif kind == _SETTINGS:
            self._on_settings(flags, payload)
        elif kind == _PING:
            self._outbound += b"" if flags & _ACK else _frame(_PING, _ACK, 0, payload)
        elif kind == _WINDOW:
            self._on_window_update(stream, number, struct.unpack(">I", payload)[0] & _LARGEST)
        else:
            _require(kind == _GOAWAY or (kind == _PRIORITY and number))
            _require(kind == _PRIORITY or size >= 8, _SIZE)

    def _on_data(self, stream: _Stream, content: bytes, flags: int) -> None:
        if stream.length is not None:
            stream.length -= len(content)
        prefix = struct.pack(">BI", 0, max(0, len(content) - 5))
        if not stream.partial and content[:5] == prefix:
            self._take(stream, content[5:])  # One message, as most are.
        else:
            stream.partial += content
            self._assemble(stream)
        if flags & _END_STREAM:
            self._take_end(stream)
        elif not stream.queue:
            self._acknowledge_content(stream)

    def _assemble(self, stream: _Stream) -> None:
        partial = stream.partial
        while len(partial) >= 5:
            is_compressed, size = struct.unpack_from(">BI", partial)
            if is_compressed or size > MAX_MESSAGE_BYTES:
                text = f"the client sent a message of {size} bytes; at most {MAX_MESSAGE_BYTES} are allowed"
                if is_compressed:
                    text = "the client sent a compressed message: turn off compression there"
                self._finish(stream, UNIMPLEMENTED if is_compressed else RESOURCE_EXHAUSTED, text)
                return
            if len(partial) < 5 + size:
                return
            message = bytes(memoryview(partial)[5 : 5 + size])
            del partial[: 5 + size]
            self._take(stream, message)

    def _take(self, stream: _Stream, message: Optional[bytes]) -> None:
        """Accept a message, or None if the client has half-closed the stream."""
        if stream.is_over:
            return
        if stream.session is not None:
            stream.queue.append(message)
            stream.changed.notify()
            if not stream.has_thread:
                call = (stream, stream.session)
                threading.Thread(target=self._answer, args=call, daemon=True).start()
                stream.has_thread = True
                self._look_for_one_alone()
        elif message is not None:
            # No thread waits for window space, which the few bytes of a health check must have.
            is_known = message[2:] in (b"", _PATH.split("/")[1].encode())
            if is_known or stream.path.endswith("Watch"):
                answer = struct.pack(">BI", 0, 2) + (b"\x08\x01" if is_known else b"\x08\x03")
                _require(len(answer) <= min(self._window, stream.window), _CALM, stream.number)
                self._greet(stream)
                self._put(stream, answer)
            if stream.path.endswith("Check"):
                text = "" if is_known else "no such service"
                self._finish(stream, 0 if is_known else NOT_FOUND, text)

    def _take_end(self, stream: _Stream) -> None:
        _require(not stream.partial and not stream.length, _PROTOCOL, stream.number)
        stream.has_ended = True
        self._take(stream, None)

    def _end_block(self, flags: int) -> None:
        _require(len(self._block) <= MAX_HEADER_BYTES and self._parts <= 64, _CALM)
        if flags & _END_HEADERS:
            number, self._block_of = self._block_of, 0
            self._open(number, self._decoder.decode(self._block), self._block_ends)

    def _open(self, number: int, headers: List[Tuple[bytes, bytes]], has_ended: bool) -> None:
        """Open a stream, or record the end of the client's messages if `headers` are trailers."""
        stream = self.streams.get(number)
        if stream is not None:
            _require(not stream.has_ended, _CLOSED, number)
            fields = _checked_headers(headers, number)
            _require(has_ended and not any(name in fields for name in _PSEUDO), _PROTOCOL, number)
            self._take_end(stream)
            return
        if number <= self.last_stream:
            _require(number in self._reset, _CLOSED)
            return
        self.last_stream = number
        fields = _checked_headers(headers, number)
        _require(all(fields.get(name) for name in _PSEUDO[:3]), _PROTOCOL, number)
        is_full = self.is_ending or len(self.streams) >= self.server.max_streams + 100
        _require(not is_full, _REFUSED, number)
        path = fields[b":path"].decode("latin-1")
        stream = self.streams[number] = _Stream(number, path, self._initial_window, self.lock)
        stream.has_ended = has_ended
        if b"content-length" in fields:
            stream.length = int(fields[b"content-length"][:18])
        is_grpc = fields.get(b"content-type", b"").startswith(b"application/grpc")
        if fields[b":method"] != b"POST" or not is_grpc:
            self._end(stream, [(":status", "405" if fields[b":method"] != b"POST" else "415")])
        else:
            self._begin_call(stream, fields.get(b"authorization", b""))
        if has_ended:
            self._take_end(stream)

    def _begin_call(self, stream: _Stream, authorization: bytes) -> None:
        server, token = self.server, b"Bearer " + (self.server.token or "").encode()
        if stream.path in (_HEALTH + "Check", _HEALTH + "Watch"):
            return
        if stream.path != _PATH:
            self._finish(stream, UNIMPLEMENTED, "the server has no such method")
        elif server.token and not hmac.compare_digest(authorization, token):
            text = "the server requires a token: authorization: Bearer ..."
            self._finish(stream, UNAUTHENTICATED, text)
        elif len(server.sessions) >= server.max_streams:
            text = f"the server is full: it takes {server.max_streams} streams at a time"
            self._finish(stream, RESOURCE_EXHAUSTED, text)
        else:
            stream.owner = _Owner(lambda: self.wake(stream), self.prepare_bell)
            stream.session = _Session(server, self.peer, self.is_local)
            server.sessions.add(stream.session)

    def _look_for_one_alone(self) -> None:
        calls = [each for each in self.streams.values() if each.has_thread]
        self.alone = calls[0] if len(calls) == 1 else None
        self.changed.notify()

    def _on_settings(self, flags: int, payload: bytes) -> None:
        _require(len(payload) % 6 == 0 and not (flags & _ACK and payload), _SIZE)
        if flags & _ACK:
            return
        _require(len(payload) <= 600, _CALM)
        before = self._initial_window
        largest = max((each.window for each in self.streams.values()), default=0)
        for name, value in struct.iter_unpack(">HI", payload):
            _require(name != 2 or value <= 1)
            _require(name != 5 or 1 << 14 <= value < 1 << 24)
            _require(name != 4 or value + max(0, largest - before) <= _LARGEST, _FLOW)
            if name == 5:
                self._max_frame = value
            if name == 4:
                self._initial_window = value
        for each in self.streams.values():
            each.window += self._initial_window - before
            each.changed.notify()
        self._is_greeted = True
        self._outbound += _frame(_SETTINGS, _ACK, 0)

    def _on_window_update(self, stream: Optional[_Stream], number: int, increment: int) -> None:
        if number and stream is None:
            self._require_known(number)
        _require(increment, _PROTOCOL, number)
        if stream is not None:
            stream.window += increment
            _require(stream.window <= _LARGEST, _FLOW, number)
            stream.changed.notify()
        elif not number:
            self._window += increment
            _require(self._window <= _LARGEST, _FLOW)
            for each in self.streams.values():
                each.changed.notify()

    # Ends.

    def _reset_stream(self, number: int, code: int) -> None:
        self._outbound += _frame(_RST, 0, number, _number(code))
        self._reset.append(number)
        if number in self.streams:
            self._forget(self.streams[number], is_gone=True)

    def _forget(self, stream: _Stream, is_gone: bool = False) -> None:
        """Stop serving a stream and let its thread end; `is_gone` means that its client has left."""
        stream.is_over, stream.has_ended = True, stream.has_ended or is_gone
        stream.partial = bytearray()
        if not stream.has_ended:
            self._reset.append(stream.number)
        self.streams.pop(stream.number, None)
        if stream.session is not None:
            stream.session.is_gone = True
            stream.queue.clear()
            stream.queue.append(None)
            stream.changed.notify()
            if stream.has_thread:
                self._look_for_one_alone()
            else:
                self.server.sessions.discard(stream.session)

    def _end_all(self) -> None:
        """End all streams; `run` then closes the socket."""
        self.is_over = True
        for stream in list(self.streams.values()):
            self._forget(stream, is_gone=True)
        self.changed.notify()

    def leave(self) -> None:
        """Tell the client that the server accepts no new streams."""
        with self.lock:
            self.is_ending = True
            self._send_goaway(0)

    def _send_goaway(self, code: int) -> None:
        last = _number(self.last_stream) + _number(code)
        self._outbound += _frame(_GOAWAY, 0, 0, last)
        self._flush()

    def _linger(self) -> None:
        """Linger, so that the client reads the reason for the end before a TCP reset."""
        self.sock.settimeout(1.0)
        deadline = time.monotonic() + 5.0
        self.sock.sendall(bytes(self._outbound))
        self.sock.shutdown(socket.SHUT_WR)
        while time.monotonic() < deadline and self.sock.recv(1 << 16):
            pass

    def close(self) -> None:
        with self.lock:
            if not self.is_over:
                self._end_all()
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_RDWR)


# The server.


class Server:
    """A running environment server; `serve` is another name for its constructor.

    Args:
      factory: makes an environment from the settings of a client.
      address: `host:port`, where port 0 selects a free port, or `unix:path`.
      token: a secret that clients must send, as with `make(..., token=...)`. An address that other
        machines can reach raises ValueError without a token or `insecure`.
      cert, key: PEM files for TLS; None for plaintext.
      insecure: whether other machines may connect without a token.
      max_streams: maximum number of clients; further clients are refused.
      idle_world_seconds: time, in seconds, until an unused world of a disconnected client ends.
      thread: "main" runs all environments in the thread that calls `wait`, while it waits.

    An environment stays in one thread from its constructor to `close`: the thread of the stream
    that created its world, or the main thread.

    The server lowers the interpreter's thread switch interval to 0.3 ms, so that a stream does not
    wait 5 ms while another one computes.

    Attributes:
      address: the server's address.
      errors: the last exceptions of the environments, oldest first.
    """

    def __init__(
        self,
        factory: Callable[..., Any],
        address: str = "localhost:0",
        token: Optional[str] = None,
        cert: Optional[str] = None,
        key: Optional[str] = None,
        insecure: bool = False,
        max_streams: int = 256,
        idle_world_seconds: float = 60.0,
        thread: Optional[str] = None,
    ):
        if thread not in (None, "main"):
            raise ValueError(f"invalid thread {thread!r}; expected 'main' or None")
        self._main = _Owner() if thread else None
        given: Any = factory
        if not callable(given):
            text = "expected what makes an environment, such as its class, got "
            raise TypeError(text + _described(given))
        if token is not None and not re.match(r"[!-~]+\Z", token):
            raise ValueError("a token must consist of printable ASCII characters without spaces")
        self.tls, self.token, self.max_streams = None, token, max_streams
        if cert is not None:
            self.tls = ssl.SSLContext(getattr(ssl, "PROTOCOL_TLS_SERVER", ssl.PROTOCOL_TLS))
            self.tls.load_cert_chain(cert, key)
            self.tls.set_alpn_protocols(["h2"])
        self._listener, self.address = _listening(address, bool(token) or insecure)
        self.errors: Deque[BaseException] = collections.deque(maxlen=100)
        self.lock = threading.RLock()
        self.worlds: Dict[str, _World] = {}
        self.sessions: Set[_Session] = set()
        self._factory, self._idle_seconds = factory, idle_world_seconds
        self._being_made = self._created = 0
        self.connections: Set[_Connection] = set()
        self._stopped, self._has_ended = threading.Event(), threading.Event()
        self._logged_at, self._has_closed = 0.0, False
        # By default, a busy reading thread would hold up the others for 5 ms.
        sys.setswitchinterval(min(sys.getswitchinterval(), 0.0003))
        for target in (self._accept, self._look):
            threading.Thread(target=target, daemon=True).start()

    # Worlds.

    def create(self, settings: Dict[str, Any], creator: _Session) -> str:
        with self.lock:
            text = f"the server has reached its limit of {MAX_WORLDS} worlds; destroy one first"
            count = len(self.worlds) + self._being_made
            _check(count < MAX_WORLDS, RESOURCE_EXHAUSTED, text)
            held = self.hold(None, settings)
            self._being_made += 1
        owner = self._main or _local.owner
        try:
            owner.prepare()
            world = owner.call(_World, owner, self._factory, settings, creator)
        finally:
            with self.lock:
                self._being_made -= 1
        with self.lock:
            self._created += 1
            name = f"world-{self._created}"
            world.held, self.worlds[name] = held, world
            return name

    def world(self, name: str) -> _World:
        """Return a world by name; the caller must hold the lock."""
        if name not in self.worlds:
            known = ", ".join(list(self.worlds)[:32]) or "none; create one first"
            raise Refusal(NOT_FOUND, f"no world {name[:200]!r}; worlds: {known}")
        return self.worlds[name]

    def hold(self, world: Optional[_World], settings: Dict[str, Any]) -> int:
        """Count towards the limit the memory of settings that create or reset a world."""
        size = 0
        for name, value in {**(world.settings if world else {}), **settings}.items():
            elements = value.flat if getattr(value, "dtype", int) is np.dtype(object) else ()
            size += 256 + 4 * len(name) + sys.getsizeof(value) + sum(map(sys.getsizeof, elements))
            size += getattr(value, "nbytes", 0)
        with self.lock:
            total = size + sum(each.held for each in self.worlds.values() if each is not world)
            text = f"the settings of all worlds would take more than {MAX_HELD_BYTES} bytes"
            _check(total <= MAX_HELD_BYTES, RESOURCE_EXHAUSTED, text)
            if world is not None:
                world.held = size
        return size

    def failed(self, error: BaseException, where: str) -> None:
        """Record an exception; log at most one per second."""
        self.errors.append(error)
        if time.monotonic() - self._logged_at > 1.0:
            self._logged_at = time.monotonic()
            lines = traceback.format_exception(type(error), error, error.__traceback__)
            _log.error("%s: %s", where, "".join(lines))

    # Threads.

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                sock, where = self._listener.accept()
            except OSError as error:
                if not self._stopped.wait(0.1):
                    _log.warning("cannot accept a connection: %s", error)
                    self._drop_silent()
                continue
            if len(self.connections) >= self.max_streams + 64 and not self._drop_silent():
                sock.close()
                continue
            is_local = sock.family == socket.AF_UNIX or _is_loopback(where)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection = _Connection(self, sock, repr(where), is_local)
            self.connections.add(connection)
            threading.Thread(target=connection.run, daemon=True).start()

    def _drop_silent(self) -> bool:
        """Close the oldest connection without a stream, if there is one."""
        every = list(self.connections)
        silent = [each for each in every if not each.streams and not each.is_over]
        if silent:
            min(silent, key=lambda each: (each.last_stream > 0, each.began)).close()
        return bool(silent)

    def _look(self) -> None:
        """Check once a second for silent clients and idle worlds."""
        while not self._stopped.wait(1.0):
            now = time.monotonic()
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
                world.owner.begin(world.close)
            for each in list(self.connections):
                if not each.last_stream and now - each.began > 10.0:
                    each.close()

    # The end.

    def wait(self) -> None:
        """Wait until the server is stopped."""
        self._wait_until(self._has_ended.is_set)

    def _wait_until(self, is_over: Callable[[], bool], seconds: float = math.inf) -> None:
        if self._main is not None and self._main.ident in (None, threading.get_ident()):
            self._main.claim()
            self._main.serve_until(is_over, seconds)
            return
        deadline = time.monotonic() + seconds
        # A signal at the wrong point of `Event.wait` raises RuntimeError.
        while not is_over() and time.monotonic() < deadline:
            time.sleep(0.01 if seconds < math.inf else 0.1)

    def stop(self, grace: float = 5.0) -> bool:
        """End all streams, after at most `grace` seconds, and close the environments.

        Returns whether all are closed within another 3 s. A second call does nothing.
        """
        if self._stopped.is_set():
            return self._has_closed
        self._stopped.set()
        try:
            self._end(grace)
        finally:
            self._has_ended.set()
        return self._has_closed

    def _end(self, grace: float) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in list(self.connections):
            each.leave()
        self._wait_until(lambda: not self.sessions, grace)
        for each in list(self.connections):
            each.close()
        self._wait_until(lambda: not self.sessions, 0.5)
        with self.lock:
            worlds = list(self.worlds.values())
            self.worlds.clear()
        for world in worlds:
            self._end_world(world)
        # Worlds in use are closed when their streams leave them.
        self._wait_until(lambda: all(world.is_over for world in worlds), 3.0)
        self._has_closed = all(world.is_over for world in worlds)
        if self.address.startswith("unix:") and os.path.exists(self.address[5:]):
            os.unlink(self.address[5:])

    def _end_world(self, world: _World) -> None:
        """Close a world; if its thread is busy, that thread closes it later."""
        with contextlib.suppress(Refusal):  # The thread has ended.
            closing = world.owner.begin(world.close)
            self._wait_until(lambda: closing.running() or closing.done(), 0.5)
            if closing.running():
                concurrent.futures.wait([closing])

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop(0.0)


def _is_loopback(where: Any) -> bool:
    return ipaddress.ip_address(where[0].split("%")[0]).is_loopback


serve = Server


def _is_stale(path: str) -> bool:
    """Whether a path is the socket of a server that was killed."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


_ADDRESS = re.compile(r"(unix:[^\0]*[^/\0]|([^\s/:[\]\0]+|\[[^\s/[\]\0]+\]):[0-9]{1,5})\Z")


def _listening(address: str, is_open: bool) -> Tuple[socket.socket, str]:
    """Return a listening socket and its address, open to other machines only if `is_open`."""
    host, _, port = address.rpartition(":")
    if not _ADDRESS.match(address) or (address[:5] != "unix:" and int(port) > 65535):
        form = "'localhost:50051', 'localhost:0' for a free port or 'unix:/tmp/socket'"
        raise ValueError(f"expected an address to listen on, such as {form}, got {address!r}")
    if address.startswith("unix:"):
        where: Any = address[5:]
        if _is_stale(where):
            os.unlink(where)
        listener = socket.socket(socket.AF_UNIX)
    else:
        kind, passive = socket.SOCK_STREAM, socket.AI_PASSIVE
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=kind, flags=passive)
        # Of "localhost", the address that all clients try.
        family, _, _, _, where = min(found, key=lambda each: each[0] != socket.AF_INET)
        if not _is_loopback(where) and not is_open:
            raise ValueError(f"other machines can reach {address}: pass a token, or insecure=True")
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(where)
        listener.listen(512)
    except OSError as error:
        listener.close()
        if error.errno is None:
            raise OSError(f"cannot listen on {address}: {error}") from error
        advice = ""
        if error.errno == errno.EADDRINUSE:
            advice = "; another program listens there"
            if address.startswith("unix:"):
                advice += ", or it is a file: choose another path"
            else:
                advice += ": end it, or choose another port (0 is any free one)"
        text = f"cannot listen on {address}: {os.strerror(error.errno)}{advice}"
        raise OSError(error.errno, text) from error
    if not address.startswith("unix:"):
        address = f"{host}:{listener.getsockname()[1]}"
    return listener, address


def _imported(reference: str) -> Any:
    """Return the object that MODULE:NAME specifies, or raise SystemExit with the reason."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found
    except Exception as error:
        traceback.print_exc()
        sys.stderr.write(f"cannot import {reference} in {_PYTHON}: {error}\n")
        sys.exit(2)


def main(arguments: Optional[List[str]] = None) -> int:
    """Serve the environment given on the command line until SIGTERM or Ctrl-C; see `--help`.

    Returns the exit code: 0 if all environments were closed, otherwise 143 or 130.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("environment", help="MODULE:FACTORY of what makes the environment")
    parser.add_argument("--address", default="localhost:50051", help="HOST:PORT or unix:PATH")
    parser.add_argument("--token-file", help="a file with the secret that clients have to send")
    parser.add_argument("--cert", help="a PEM file with the certificate, for TLS")
    parser.add_argument("--key", help="a PEM file with its key")
    help_text = "let other machines in without a token"
    parser.add_argument("--insecure", action="store_true", help=help_text)
    help_text = "main: all environments are made and called in the main thread"
    parser.add_argument("--thread", choices=["main"], help=help_text)
    given = parser.parse_args(arguments)
    # Served modules must import this module, not a second copy.
    sys.modules.setdefault("dm_env_rpc_server", sys.modules[__name__])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    logging.basicConfig(level=logging.INFO)
    sys.path.insert(0, os.getcwd())
    try:
        factory = _imported(given.environment)
        token = os.environ.get("DM_ENV_RPC_TOKEN")
        if given.token_file:
            with open(given.token_file) as file:
                token = file.read().strip()
        if token is not None and not token.strip():
            parser.error(f"{given.token_file or 'DM_ENV_RPC_TOKEN'} does not contain a token")
        access = token, given.cert, given.key, given.insecure
        try:
            server = serve(factory, given.address, *access, thread=given.thread)
        except ValueError as error:
            parser.error(str(error))
        with server:
            print(f"serving {given.environment} at {server.address}", flush=True)
            try:
                server.wait()
            except KeyboardInterrupt:
                if not server.stop(1.0):
                    raise
    except KeyboardInterrupt as told:
        return int(128 + told.args[0])
    return 0


def _interrupt(number: int, frame: Any) -> None:
    # Several signals are common: one to the process group, another from the launcher.
    signal.signal(signal.SIGTERM, lambda *_: None)
    raise KeyboardInterrupt(number)


if __name__ == "__main__":
    sys.exit(main())
