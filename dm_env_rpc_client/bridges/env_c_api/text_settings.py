"""Settings as strings, the form in which the interface takes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dm_env_rpc_client import arguments
from dm_env_rpc_client.errors import SpecError
from dm_env_rpc_client.tensors import nesting


def text_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns settings as strings by flat name.

    Args:
      settings: values by name, nested or with periods in the names. A str stays as it is, a
        bool becomes "true" or "false", an int or float its shortest exact form.

    Raises:
      SpecError: a value is of another type, or two values have the same name.
    """
    arguments.mapping("settings", settings, expected="a mapping of names to values")
    flat = nesting.flatten_dict(settings, nesting.SEPARATOR, strict=False)
    return {name: _text(name, value) for name, value in flat.items()}


def _text(name: str, value: Any) -> str:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return repr(value)
    raise SpecError(
        f"setting {name!r} is of type {type(value).__name__}; a library takes strings, so pass a "
        "str, a bool, an int or a float"
    )
