"""JSON from a peer that may be hostile, and JSON for a peer that follows the standard strictly.

The values in a text are counted before it is parsed: a megabyte of brackets would otherwise
become thirty megabytes of lists, or overflow the parser's stack.

The standard has no NaN and no Infinity, so they are never written. They are read, as float
values, because servers in Python write them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dm_env_rpc_client.errors import ProtocolError, SpecError

MAX_DEPTH = 32
"""Levels of lists and objects."""

MAX_VALUES = 1 << 16
"""Values in one text, if nothing else is known about it."""

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))


def decode(text: bytes | bytearray, where: str, max_values: int = MAX_VALUES) -> Any:
    """Parses UTF-8 JSON.

    Args:
      text: the bytes.
      where: what they are, for error messages.
      max_values: the maximum number of values, keys included.

    Raises:
      ProtocolError: it is not UTF-8, not JSON, too deep, or holds too many values.
    """
    containers = text.count(b"[") + text.count(b"{")
    values = 1 + containers + text.count(b",") + text.count(b":")
    if values > max_values:
        raise ProtocolError(
            f"{where}: JSON of {len(text)} bytes with about {values} values; at most "
            f"{max_values} are allowed"
        )
    if containers > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise ProtocolError(f"{where}: JSON more than {MAX_DEPTH} levels deep")
    try:
        return json.loads(text.decode())
    except (ValueError, RecursionError) as error:  # Bad UTF-8 is a ValueError too.
        start = bytes(text[:40]) + (b"..." if len(text) > 40 else b"")
        raise ProtocolError(f"{where}: not UTF-8 JSON: {error}; it begins {start!r}") from None


def encode(value: Any, where: str) -> bytes:
    """Writes JSON without white space, in ASCII.

    Raises:
      SpecError: JSON has no form for the value; `where` names the value in the message.
    """
    try:
        return _ENCODER.encode(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"{where}: invalid as JSON: {error}") from None


def jsonable(value: Any, depth: int = MAX_DEPTH // 2) -> Any:
    """Returns a JSON value for diagnostics, such as a step's info.

    NumPy values become numbers and lists, NaN and infinities null, keys strings. A value that
    JSON has no form for, or that is nested deeper than `depth`, becomes the name of its type.
    """
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufU":
        value = value.tolist()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth > 0 and isinstance(value, Mapping):
        return {str(key): jsonable(item, depth - 1) for key, item in value.items()}
    if depth > 0 and isinstance(value, list | tuple):
        return [jsonable(item, depth - 1) for item in value]
    return type(value).__name__


def _depth(text: bytes | bytearray) -> int:
    """The depth to which brackets outside strings are nested, provided `text` is JSON."""
    # Escaped quotes do not end a string. Once the escapes are removed, pair by pair from the
    # left, the quotes that remain do.
    structure = text.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _ALL_BUT_STRUCTURE)
    depth = deepest = 0
    in_string = False
    for mark in structure:
        if mark == ord('"'):
            in_string = not in_string
        elif not in_string:
            depth += 1 if mark in b"[{" else -1
            deepest = max(deepest, depth)
    return deepest
