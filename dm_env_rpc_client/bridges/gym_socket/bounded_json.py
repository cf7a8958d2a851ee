"""JSON from a peer that may mean harm, and JSON for a peer that takes the standard's word.

What a text asks for is counted before it is parsed: a megabyte of brackets would otherwise
become thirty megabytes of lists, or overrun the parser's stack.

NaN and Infinity are no JSON and are never written. They are read, as float values, for
that is how servers in Python write them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dm_env_rpc_client.errors import ProtocolError, SpecError

__all__ = ["MAX_DEPTH", "MAX_VALUES", "decode", "encode", "jsonable"]

MAX_DEPTH = 32
"""Levels of lists and objects."""

MAX_VALUES = 1 << 16
"""Values in one text, where nothing else is known about it."""

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)

_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))


def decode(text: bytes | bytearray, where: str, max_values: int = MAX_VALUES) -> Any:
    """Parses UTF-8 JSON.

    Args:
      text: the bytes.
      where: what they are, for error messages.
      max_values: how many values, keys included, it may hold.

    Raises:
      ProtocolError: it is not UTF-8, not JSON, too deep, or holds too many values.
    """
    containers = text.count(b"[") + text.count(b"{")
    values = 1 + containers + text.count(b",") + text.count(b":")
    if values > max_values:
        raise ProtocolError(
            f"{where}: JSON of {len(text)} bytes with about {values} values; at most "
            f"{max_values} are taken"
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
      SpecError: JSON cannot hold the value; `where` says what it is.
    """
    try:
        return _ENCODER.encode(value).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(f"{where}: JSON cannot hold it: {error}") from None


def jsonable(value: Any, depth: int = MAX_DEPTH // 2) -> Any:
    """Returns what JSON can hold of diagnostics, such as a step's info.

    NumPy values become numbers and lists, NaN and infinities null, keys strings; what
    JSON has no form for, or lies deeper than `depth`, becomes its type's name.
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
    """How deep brackets outside strings nest, as far as `text` is JSON."""
    # Escaped quotes do not end a string; taking the escapes out pair by pair, from the
    # left, leaves the quotes that do.
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
