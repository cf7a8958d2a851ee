"""Conversion of property values and descriptions to text, and of text to values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dm_env import specs

from dm_env_rpc_client.cli.failures import UsageError
from dm_env_rpc_client.cli.inspect import describe
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.extensions.properties import PropertySpec
from dm_env_rpc_client.tensors import casting
from dm_env_rpc_client.tensors.displays.spec_tables import dtype_text, spec_text

_SHOWN_CHARACTERS = 200

_BOOLS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


def parse_value(key: str, text: str, spec: specs.Array | None) -> Any:
    """Parse a value given as `text` on the command line.

    Args:
      key: the property, for error messages.
      text: true or false for a bool; an integer, also as 0x1f; a float; a string without
        quotes; a JSON list for an array.
      spec: the property's spec; None if unknown, to parse the text as JSON if possible, or else as
        a string.

    Returns:
      A value of the spec's dtype and shape, within its bounds.

    Raises:
      UsageError: the text does not have the form of the spec.
    """
    if spec is None:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    where = f"property {key!r}"
    kind = dtype_text(spec)
    if kind == "proto":
        raise UsageError(f"{where} contains protobuf messages, which cannot be written as text")
    try:
        if spec.shape:
            parsed = json.loads(text)
            if not isinstance(parsed, list):
                raise ValueError("not a list")
        else:
            parsed = _SCALARS[spec.dtype.kind](text)
    except ValueError:
        expected = f"a JSON list of {kind}, shape {list(spec.shape)}" if spec.shape else kind
        raise UsageError(f"{where} requires {expected}, got {text!r}") from None
    try:
        array = casting.as_array(parsed, where)
        if kind != "string":
            array = casting.exact_cast(array, spec.dtype, where)
        spec.validate(array)
    except SpecError:
        raise
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where} does not accept the value {text}: {error}") from None
    return array if spec.shape else array[()]


def _parse_bool(text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise ValueError(text)
    return _BOOLS[text.lower()]


_SCALARS: dict[str, Callable[[str], Any]] = {
    "b": _parse_bool,
    "i": lambda text: int(text, 0),
    "u": lambda text: int(text, 0),
    "f": float,
    "O": str,
}


def describe_property(spec: PropertySpec) -> dict[str, Any]:
    """Return the specs and access rights of a property as JSON."""
    names = ("key", "readable", "writable", "listable", "description")
    described = {} if spec.spec is None else describe(spec.spec)
    return {**{name: getattr(spec, name) for name in names}, **described}


def show_spec(spec: PropertySpec) -> str:
    """Summarize the dtype, shape, bounds and access rights of a property in a short string."""
    parts = []
    if spec.spec is not None:
        parts.append(spec_text(spec.spec, ".."))
    if spec.spec is not None and not spec.writable:
        parts.append("read-only" if spec.readable else "no access")
    elif spec.writable and not spec.readable:
        parts.append("write-only")
    return ", ".join(parts)


def show_value(value: Any) -> str:
    """Return a value in one line, truncated if it is long."""
    text = " ".join(str(value.tolist() if hasattr(value, "tolist") else value).split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
