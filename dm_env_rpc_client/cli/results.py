"""Results as JSON, for programs that call the command."""

from __future__ import annotations

import json
import math
from typing import Any

import typer

__all__ = ["print_json"]


def print_json(result: Any) -> None:
    """Prints a result as one line of JSON.

    NaN and infinities, which JSON lacks, become the strings "NaN", "Infinity" and "-Infinity",
    as in the JSON of protobuf.

    Args:
      result: mappings, sequences, strings, numbers, bools and None; NumPy arrays and scalars;
        messages, which become their type and their bytes in hexadecimal.
    """
    typer.echo(json.dumps(_plain(result), allow_nan=False))


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if hasattr(value, "type_url"):
        return {"type_url": value.type_url, "value": value.value.hex()}
    return value
