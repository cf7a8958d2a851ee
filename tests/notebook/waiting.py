"""Waiting for what happens in another thread, or in another process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.scripted import settles


def wait_for(condition: Callable[[], Any], what: str, seconds: float = 30.0) -> Any:
    """Returns the first true value of `condition`."""
    values: list[Any] = []

    def holds() -> bool:
        values[:] = [condition()]
        return bool(values[0])

    assert settles(holds, seconds), f"waited {seconds} s in vain for {what}"
    return values[0]
