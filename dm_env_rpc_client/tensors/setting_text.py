"""Parsing of command-line settings of the form NAME=VALUE."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from dm_env_rpc_client.errors import SpecError


def parse_settings(settings: Iterable[str] | None) -> dict[str, Any]:
    """Parse the NAME=VALUE strings in `settings`, keeping values that are not JSON as strings.

    Raises:
      SpecError: a setting has no `=` or no name, or its value is null.
    """
    parsed: dict[str, Any] = {}
    for setting in settings or []:
        name, found, text = setting.partition("=")
        if not found or not name:
            raise SpecError(f"expected NAME=VALUE, such as rows=6, got {setting!r}")
        try:
            parsed[name] = json.loads(text)
        except json.JSONDecodeError:
            parsed[name] = text
        if parsed[name] is None:
            raise SpecError(f"setting {name!r} must not be null, got {setting!r}")
    return parsed
