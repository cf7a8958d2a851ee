"""Settings and objects as they are written on a command line."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from dm_env_rpc_client.errors import SpecError

__all__ = ["load_object", "parse_settings"]


def parse_settings(settings: Iterable[str] | None) -> dict[str, Any]:
    """Parses NAME=VALUE strings; a value is JSON, or else the text as it stands.

    Raises:
      SpecError: one has no `=`, or a value is JSON that cannot be a tensor.
    """
    parsed: dict[str, Any] = {}
    for setting in settings or []:
        name, found, text = setting.partition("=")
        if not found or not name:
            raise SpecError(f"a setting looks like rows=6, got {setting!r}")
        try:
            parsed[name] = json.loads(text)
        except json.JSONDecodeError:
            parsed[name] = text
        if parsed[name] is None:
            raise SpecError(f"setting {name!r} has no value: {setting!r}")
    return parsed


def load_object(reference: str, what: str) -> Any:
    """Imports the object that MODULE:NAME names, from the current folder too.

    Args:
      reference: MODULE:NAME.
      what: what it is for, for error messages.

    Raises:
      SpecError: there is none, or its module cannot be imported.
    """
    module_name, found, name = reference.partition(":")
    if not found or not module_name or not name:
        raise SpecError(f"{what} looks like MODULE:NAME, such as my_envs:make, got {reference!r}")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        loaded: Any = importlib.import_module(module_name)
    except Exception as error:
        raise SpecError(
            f"cannot import {module_name!r}: {type(error).__name__}: {error}"
        ) from error
    for part in name.split("."):
        if not hasattr(loaded, part):
            raise SpecError(f"{module_name!r} has no {name!r}")
        loaded = getattr(loaded, part)
    return loaded
